"""`builtin:darts`: the cells of DARTS (Liu et al., 2019, section 2), four nodes in each.

A node adds two operations on two earlier states; the cell's output is the four nodes together. The base is the paper's
second-order cell (DARTS_V2).
"""

from __future__ import annotations

from functools import partial
from itertools import combinations

import onnx

from iosched.models.spaces import cells
from iosched.models.spaces.cells import BEFORE, NOW, Cell, CellBlock, Cells, Operation
from iosched.models.spaces.redraw import Choose, Redraw
from iosched.models.zoo.network import Network, Value

OPERATIONS: dict[str, Operation] = {
    "max_pool_3x3": partial(cells.max_pool, 3),
    "avg_pool_3x3": cells.average_pool,
    "skip_connect": cells.skip,
    "sep_conv_3x3": partial(cells.separable, 3),
    "sep_conv_5x5": partial(cells.separable, 5),
    "dil_conv_3x3": partial(cells.dilated_separable, 3),
    "dil_conv_5x5": partial(cells.dilated_separable, 5),
}
_NODES, _FILTERS, _STEM_CHANNELS = 4, 16, 48


DARTS_V2 = Cells(
    normal=(
        CellBlock(("before", "now"), ("sep_conv_3x3", "sep_conv_3x3")),
        CellBlock(("before", "now"), ("sep_conv_3x3", "sep_conv_3x3")),
        CellBlock(("before", "now"), ("skip_connect", "sep_conv_3x3")),
        CellBlock(("before", "node1"), ("skip_connect", "dil_conv_3x3")),
    ),
    reduction=(
        CellBlock(("before", "now"), ("max_pool_3x3", "max_pool_3x3")),
        CellBlock(("now", "node1"), ("max_pool_3x3", "skip_connect")),
        CellBlock(("before", "node1"), ("max_pool_3x3", "skip_connect")),
        CellBlock(("now", "node1"), ("max_pool_3x3", "skip_connect")),
    ),
)


def pairs(node: int) -> tuple[str, ...]:
    """The pairs of states that node number `node` (from 1) may read."""
    states = (BEFORE, NOW, *(f"node{earlier}" for earlier in range(1, node)))
    return tuple("+".join(pair) for pair in combinations(states, 2))


def chosen_node(choose: Choose, number: int, name: str) -> CellBlock:
    """A node by its three choices; the first node's inputs have one candidate."""
    before, _, now = choose(pairs(number), f"{name}/inputs").partition("+")
    return CellBlock((before, now), cells.chosen_pair(choose, tuple(OPERATIONS), f"{name}/operation"))


def draw(net: Network, plan: Cells, pixels: int) -> onnx.ModelProto:
    """The network of these cells: input (1, 3, pixels, pixels), output (1, 10) float32."""
    return cells.classified(net, cells.stacked(net, pixels, _STEM_CHANNELS, _FILTERS, plan, _cell))


def _cell(net: Network, cell: Cell, inputs: tuple[Value, Value], stride: int, name: str) -> Value:
    values = cells.written(net, cell, OPERATIONS, inputs, stride, name, called="node")
    return net.concat([value for state, value in values.items() if state not in (BEFORE, NOW)], name)


SPACE = Redraw("darts", plan=partial(cells.chosen_cells, chosen_node, _NODES, "node"), draw=draw, base=DARTS_V2).space()
