"""`builtin:nasnet`: the cells of NASNet (Zoph et al., 2018, section 3), five blocks in each.

A block applies an operation to each of two earlier states, and adds or concatenates the results: five choices. Unread
blocks are the output. The base is NASNet-A.
"""

from __future__ import annotations

from functools import partial

import onnx

from iosched.models.spaces import cells
from iosched.models.spaces.cells import BEFORE, NOW, Cell, CellBlock, Cells, Operation
from iosched.models.spaces.redraw import Choose, Redraw
from iosched.models.zoo.network import Network, Value

OPERATIONS: dict[str, Operation] = {
    "identity": cells.skip,
    "conv_1x3_3x1": partial(cells.split_convolution, 3),
    "conv_1x7_7x1": partial(cells.split_convolution, 7),
    "dilated_3x3": partial(cells.convolution, 3, 2),
    "avg_pool_3x3": cells.average_pool,
    "max_pool_3x3": partial(cells.max_pool, 3),
    "max_pool_5x5": partial(cells.max_pool, 5),
    "max_pool_7x7": partial(cells.max_pool, 7),
    "conv_1x1": partial(cells.convolution, 1, 1),
    "conv_3x3": partial(cells.convolution, 3, 1),
    "sep_conv_3x3": partial(cells.separable, 3),
    "sep_conv_5x5": partial(cells.separable, 5),
    "sep_conv_7x7": partial(cells.separable, 7),
}
COMBINATIONS = ("add", "concat")
BLOCKS, _FILTERS, _STEM_CHANNELS = 5, 16, 32


NASNET_A = Cells(
    normal=(
        CellBlock((NOW, BEFORE), ("sep_conv_5x5", "sep_conv_3x3")),
        CellBlock((BEFORE, BEFORE), ("sep_conv_5x5", "sep_conv_3x3")),
        CellBlock((NOW, BEFORE), ("avg_pool_3x3", "identity")),
        CellBlock((BEFORE, BEFORE), ("avg_pool_3x3", "avg_pool_3x3")),
        CellBlock((NOW, NOW), ("sep_conv_3x3", "identity")),
    ),
    reduction=(
        CellBlock((NOW, BEFORE), ("sep_conv_5x5", "sep_conv_7x7")),
        CellBlock((NOW, BEFORE), ("max_pool_3x3", "sep_conv_7x7")),
        CellBlock((NOW, BEFORE), ("avg_pool_3x3", "sep_conv_5x5")),
        CellBlock(("block2", "block1"), ("identity", "avg_pool_3x3")),
        CellBlock(("block1", NOW), ("sep_conv_3x3", "max_pool_3x3")),
    ),
)


def states(block: int) -> tuple[str, ...]:
    """The states that block number `block` (from 1) may read."""
    return (BEFORE, NOW, *(f"block{earlier}" for earlier in range(1, block)))


def chosen_block(choose: Choose, number: int, name: str) -> CellBlock:
    """A block by its five choices, in the order of the paper's steps."""
    return CellBlock(
        inputs=cells.chosen_pair(choose, states(number), f"{name}/input"),
        operations=cells.chosen_pair(choose, tuple(OPERATIONS), f"{name}/operation"),
        combination=choose(COMBINATIONS, f"{name}/combination"),
    )


def draw(net: Network, plan: Cells, pixels: int) -> onnx.ModelProto:
    """The network of these cells: input (1, 3, pixels, pixels), output (1, 10) float32."""
    x = cells.stacked(net, pixels, _STEM_CHANNELS, _FILTERS, plan, _cell)
    return cells.classified(net, net.relu(x, "relu"))


def _cell(net: Network, cell: Cell, inputs: tuple[Value, Value], stride: int, name: str) -> Value:
    values = cells.written(net, cell, OPERATIONS, inputs, stride, name)
    taken = {state for block in cell for state in block.inputs} | {BEFORE, NOW}
    open_ends = [value for state, value in values.items() if state not in taken]
    return open_ends[0] if len(open_ends) == 1 else net.concat(open_ends, name)


SPACE = Redraw(
    "nasnet", plan=partial(cells.chosen_cells, chosen_block, BLOCKS, "block"), draw=draw, base=NASNET_A
).space()
