"""`builtin:enas`: the cells of ENAS's micro search (Pham et al., 2018, section 2.4), five blocks in each.

A block adds two operations on earlier states; unread blocks are the output. Networks are stacked as NASNet's. The base
is the authors' final model (`cifar10_micro_final.sh`).
"""

from __future__ import annotations

from functools import partial

from iosched.models.spaces.cells import BEFORE, NOW, CellBlock, Cells, chosen_cells, chosen_pair
from iosched.models.spaces.nasnet import BLOCKS, draw, states
from iosched.models.spaces.redraw import Choose, Redraw

OPERATIONS = ("sep_conv_3x3", "sep_conv_5x5", "avg_pool_3x3", "max_pool_3x3", "identity")

ENAS = Cells(
    normal=(
        CellBlock((BEFORE, BEFORE), ("avg_pool_3x3", "sep_conv_3x3")),
        CellBlock((BEFORE, BEFORE), ("identity", "sep_conv_5x5")),
        CellBlock((BEFORE, NOW), ("identity", "sep_conv_5x5")),
        CellBlock((NOW, BEFORE), ("sep_conv_3x3", "sep_conv_5x5")),
        CellBlock((BEFORE, NOW), ("avg_pool_3x3", "sep_conv_5x5")),
    ),
    reduction=(
        CellBlock((NOW, NOW), ("sep_conv_3x3", "sep_conv_3x3")),
        CellBlock((BEFORE, BEFORE), ("max_pool_3x3", "avg_pool_3x3")),
        CellBlock((NOW, "block2"), ("sep_conv_5x5", "sep_conv_5x5")),
        CellBlock((NOW, BEFORE), ("sep_conv_3x3", "identity")),
        CellBlock((BEFORE, NOW), ("max_pool_3x3", "sep_conv_5x5")),
    ),
)


def chosen_block(choose: Choose, number: int, name: str) -> CellBlock:
    """A block by its four choices."""
    inputs = chosen_pair(choose, states(number), f"{name}/input")
    return CellBlock(inputs, chosen_pair(choose, OPERATIONS, f"{name}/operation"))


SPACE = Redraw("enas", plan=partial(chosen_cells, chosen_block, BLOCKS, "block"), draw=draw, base=ENAS).space()
