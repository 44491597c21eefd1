"""`builtin:darts`: the cells that DARTS derives (Liu et al., 2019, section 2), four nodes in each.

A node adds two operations on two of the states before it; states are the cell's inputs and the nodes before. The four
nodes together are the output. The base is the cell that the paper calls DARTS, second order (DARTS_V2).
"""

from __future__ import annotations

from itertools import combinations

import onnx

from iosched.models.spaces import cells
from iosched.models.spaces.cells import BEFORE, NOW, Block, Cell, Cells, Operation
from iosched.models.spaces.redraw import Choose, Redraw
from iosched.models.zoo.network import Network, Value

OPERATIONS: dict[str, Operation] = {
    "max_pool_3x3": cells.max_pool(3),
    "avg_pool_3x3": cells.average_pool,
    "skip_connect": cells.skip,
    "sep_conv_3x3": cells.separable(3),
    "sep_conv_5x5": cells.separable(5),
    "dil_conv_3x3": cells.dilated_separable(3),
    "dil_conv_5x5": cells.dilated_separable(5),
}
_NODES, _FILTERS, _STEM_CHANNELS = 4, 16, 48


DARTS_V2 = Cells(
    normal=(
        Block(("before", "now"), ("sep_conv_3x3", "sep_conv_3x3")),
        Block(("before", "now"), ("sep_conv_3x3", "sep_conv_3x3")),
        Block(("before", "now"), ("skip_connect", "sep_conv_3x3")),
        Block(("before", "node1"), ("skip_connect", "dil_conv_3x3")),
    ),
    reduction=(
        Block(("before", "now"), ("max_pool_3x3", "max_pool_3x3")),
        Block(("now", "node1"), ("max_pool_3x3", "skip_connect")),
        Block(("before", "node1"), ("max_pool_3x3", "skip_connect")),
        Block(("now", "node1"), ("max_pool_3x3", "skip_connect")),
    ),
)


def pairs(node: int) -> tuple[str, ...]:
    """The pairs of states that node number `node` (from 1) may read."""
    states = (BEFORE, NOW, *(f"node{earlier}" for earlier in range(1, node)))
    return tuple("+".join(pair) for pair in combinations(states, 2))


def chosen_cell(choose: Choose, name: str) -> Cell:
    """A cell by its 12 choices."""
    return tuple(_chosen_node(choose, number, f"{name}/node{number}") for number in range(1, _NODES + 1))


def chosen_cells(choose: Choose) -> Cells:
    """Both cells by their choices, 24 together, of which two have one candidate and are not asked."""
    return Cells(chosen_cell(choose, "normal"), chosen_cell(choose, "reduction"))


def draw(net: Network, plan: Cells, pixels: int) -> onnx.ModelProto:
    """The network of these cells: input (1, 3, pixels, pixels), output (1, 10) float32."""
    stem = net.conv(net.input(3, pixels), _STEM_CHANNELS, 3, "stem", stride=2, padding=1, relu=False)
    x = cells.stacked(net, stem, _FILTERS, plan, _cell)
    return cells.classified(net, x)


def _chosen_node(choose: Choose, number: int, name: str) -> Block:
    before, _, now = choose(pairs(number), f"{name}/inputs").partition("+")
    operations = choose(tuple(OPERATIONS), f"{name}/operation1"), choose(tuple(OPERATIONS), f"{name}/operation2")
    return Block((before, now), operations)


def _cell(net: Network, cell: Cell, inputs: tuple[Value, Value], stride: int, name: str) -> Value:
    values = cells.written(net, cell, OPERATIONS, inputs, stride, name, called="node")
    return net.concat([value for state, value in values.items() if state not in (BEFORE, NOW)], name)


SPACE = Redraw("darts", plan=chosen_cells, draw=draw, base=DARTS_V2).space()
