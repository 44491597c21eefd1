"""`builtin:enas`: the cells of ENAS's micro search (Pham et al., 2018, section 2.4), five blocks in each.

A block adds two operations, each on one of the states before it; what no block takes is the output. Networks are
stacked as NASNet's are. The base is the cells of the authors' final model (`cifar10_micro_final.sh`).
"""

from __future__ import annotations

from iosched.models.spaces.cells import BEFORE, NOW, Block, Cell, Cells
from iosched.models.spaces.nasnet import draw, states
from iosched.models.spaces.redraw import Choose, Redraw

OPERATIONS = ("sep_conv_3x3", "sep_conv_5x5", "avg_pool_3x3", "max_pool_3x3", "identity")
_BLOCKS = 5

ENAS = Cells(
    normal=(
        Block((BEFORE, BEFORE), ("avg_pool_3x3", "sep_conv_3x3")),
        Block((BEFORE, BEFORE), ("identity", "sep_conv_5x5")),
        Block((BEFORE, NOW), ("identity", "sep_conv_5x5")),
        Block((NOW, BEFORE), ("sep_conv_3x3", "sep_conv_5x5")),
        Block((BEFORE, NOW), ("avg_pool_3x3", "sep_conv_5x5")),
    ),
    reduction=(
        Block((NOW, NOW), ("sep_conv_3x3", "sep_conv_3x3")),
        Block((BEFORE, BEFORE), ("max_pool_3x3", "avg_pool_3x3")),
        Block((NOW, "block2"), ("sep_conv_5x5", "sep_conv_5x5")),
        Block((NOW, BEFORE), ("sep_conv_3x3", "identity")),
        Block((BEFORE, NOW), ("max_pool_3x3", "sep_conv_5x5")),
    ),
)


def chosen_cell(choose: Choose, name: str) -> Cell:
    """A cell by its 20 choices."""
    return tuple(_chosen_block(choose, number, f"{name}/block{number}") for number in range(1, _BLOCKS + 1))


def chosen_cells(choose: Choose) -> Cells:
    """Both cells by their choices, 40 together."""
    return Cells(chosen_cell(choose, "normal"), chosen_cell(choose, "reduction"))


def _chosen_block(choose: Choose, number: int, name: str) -> Block:
    inputs = choose(states(number), f"{name}/input1"), choose(states(number), f"{name}/input2")
    return Block(inputs, (choose(OPERATIONS, f"{name}/operation1"), choose(OPERATIONS, f"{name}/operation2")))


SPACE = Redraw("enas", plan=chosen_cells, draw=draw, base=ENAS).space()
