"""`builtin:nasnet`: the cells of NASNet (Zoph et al., 2018, section 3), five blocks in each.

A block takes two states, puts an operation on each, and adds or concatenates the two: five choices. States are the
cell's inputs and the blocks before; what no block takes is the output. The base is NASNet-A.
"""

from __future__ import annotations

import onnx

from iosched.models.spaces import cells
from iosched.models.spaces.cells import BEFORE, NOW, Block, Cell, Cells, Operation
from iosched.models.spaces.redraw import Choose, Redraw
from iosched.models.zoo.network import Network, Value

OPERATIONS: dict[str, Operation] = {
    "identity": cells.skip,
    "conv_1x3_3x1": cells.split_convolution(3),
    "conv_1x7_7x1": cells.split_convolution(7),
    "dilated_3x3": cells.convolution(3, dilation=2),
    "avg_pool_3x3": cells.average_pool,
    "max_pool_3x3": cells.max_pool(3),
    "max_pool_5x5": cells.max_pool(5),
    "max_pool_7x7": cells.max_pool(7),
    "conv_1x1": cells.convolution(1),
    "conv_3x3": cells.convolution(3),
    "sep_conv_3x3": cells.separable(3),
    "sep_conv_5x5": cells.separable(5),
    "sep_conv_7x7": cells.separable(7),
}
COMBINATIONS = ("add", "concat")
_BLOCKS, _FILTERS, _STEM_CHANNELS = 5, 16, 32


NASNET_A = Cells(
    normal=(
        Block((NOW, BEFORE), ("sep_conv_5x5", "sep_conv_3x3")),
        Block((BEFORE, BEFORE), ("sep_conv_5x5", "sep_conv_3x3")),
        Block((NOW, BEFORE), ("avg_pool_3x3", "identity")),
        Block((BEFORE, BEFORE), ("avg_pool_3x3", "avg_pool_3x3")),
        Block((NOW, NOW), ("sep_conv_3x3", "identity")),
    ),
    reduction=(
        Block((NOW, BEFORE), ("sep_conv_5x5", "sep_conv_7x7")),
        Block((NOW, BEFORE), ("max_pool_3x3", "sep_conv_7x7")),
        Block((NOW, BEFORE), ("avg_pool_3x3", "sep_conv_5x5")),
        Block(("block2", "block1"), ("identity", "avg_pool_3x3")),
        Block(("block1", NOW), ("sep_conv_3x3", "max_pool_3x3")),
    ),
)


def states(block: int) -> tuple[str, ...]:
    """What block number `block` (from 1) may take."""
    return (BEFORE, NOW, *(f"block{earlier}" for earlier in range(1, block)))


def chosen_cell(choose: Choose, name: str) -> Cell:
    """A cell by its 25 choices, in the order of the paper's steps 1 to 5."""
    return tuple(_chosen_block(choose, number, f"{name}/block{number}") for number in range(1, _BLOCKS + 1))


def chosen_cells(choose: Choose) -> Cells:
    """Both cells by their choices, 50 together."""
    return Cells(chosen_cell(choose, "normal"), chosen_cell(choose, "reduction"))


def draw(net: Network, plan: Cells, pixels: int) -> onnx.ModelProto:
    """The network of these cells: input (1, 3, pixels, pixels), output (1, 10) float32."""
    stem = net.conv(net.input(3, pixels), _STEM_CHANNELS, 3, "stem", stride=2, padding=1, relu=False)
    x = cells.stacked(net, stem, _FILTERS, plan, _cell)
    return cells.classified(net, net.relu(x, "relu"))


def _chosen_block(choose: Choose, number: int, name: str) -> Block:
    names, operations = states(number), tuple(OPERATIONS)
    return Block(
        inputs=(choose(names, f"{name}/input1"), choose(names, f"{name}/input2")),
        operations=(choose(operations, f"{name}/operation1"), choose(operations, f"{name}/operation2")),
        combination=choose(COMBINATIONS, f"{name}/combination"),
    )


def _cell(net: Network, cell: Cell, inputs: tuple[Value, Value], stride: int, name: str) -> Value:
    values = cells.written(net, cell, OPERATIONS, inputs, stride, name)
    taken = {state for block in cell for state in block.inputs} | {BEFORE, NOW}
    return cells.joined(net, [value for state, value in values.items() if state not in taken], name)


SPACE = Redraw("nasnet", plan=chosen_cells, draw=draw, base=NASNET_A).space()
