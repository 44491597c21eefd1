"""`builtin:darts`: the cells that DARTS derives (Liu et al., 2019, section 2), four nodes in each.

A node adds two operations on two of the states before it; states are the cell's inputs and the nodes before. The four
nodes together are the output. The base is the cell that the paper calls DARTS, second order (DARTS_V2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import combinations

import onnx

from iosched.models.spaces.cells import (
    BEFORE,
    NOW,
    Operation,
    average_pool,
    classified,
    dilated_separable,
    max_pool,
    separable,
    skip,
    stacked,
)
from iosched.models.spaces.redraw import Choose, Redraw
from iosched.models.zoo.network import Network, Value

OPERATIONS: dict[str, Operation] = {
    "max_pool_3x3": max_pool(3),
    "avg_pool_3x3": average_pool,
    "skip_connect": skip,
    "sep_conv_3x3": separable(3),
    "sep_conv_5x5": separable(5),
    "dil_conv_3x3": dilated_separable(3),
    "dil_conv_5x5": dilated_separable(5),
}
_NODES, _FILTERS, _STEM_CHANNELS = 4, 16, 48


@dataclass(frozen=True)
class Node:
    """One node of a cell: the two states it reads, as "before+now", and the operation on each."""

    inputs: str
    operations: tuple[str, str]


Cell = tuple[Node, ...]


@dataclass(frozen=True)
class Cells:
    """What the network is stacked from."""

    normal: Cell
    reduction: Cell


DARTS_V2 = Cells(
    normal=(
        Node("before+now", ("sep_conv_3x3", "sep_conv_3x3")),
        Node("before+now", ("sep_conv_3x3", "sep_conv_3x3")),
        Node("before+now", ("skip_connect", "sep_conv_3x3")),
        Node("before+node1", ("skip_connect", "dil_conv_3x3")),
    ),
    reduction=(
        Node("before+now", ("max_pool_3x3", "max_pool_3x3")),
        Node("now+node1", ("max_pool_3x3", "skip_connect")),
        Node("before+node1", ("max_pool_3x3", "skip_connect")),
        Node("now+node1", ("max_pool_3x3", "skip_connect")),
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


def draw(net: Network, cells: Cells, pixels: int) -> onnx.ModelProto:
    """The network of these cells: input (1, 3, pixels, pixels), output (1, 10) float32."""
    stem = net.conv(net.input(3, pixels), _STEM_CHANNELS, 3, "stem", stride=2, padding=1, relu=False)
    return classified(net, stacked(net, stem, _FILTERS, partial(_cell, cells.normal), partial(_cell, cells.reduction)))


def _chosen_node(choose: Choose, number: int, name: str) -> Node:
    operations = tuple(OPERATIONS)
    return Node(
        inputs=choose(pairs(number), f"{name}/inputs"),
        operations=(choose(operations, f"{name}/operation1"), choose(operations, f"{name}/operation2")),
    )


def _cell(cell: Cell, net: Network, before: Value, now: Value, stride: int, name: str) -> Value:
    values = {BEFORE: before, NOW: now}
    for number, node in enumerate(cell, start=1):
        label = f"{name}/node{number}"
        pair = [
            OPERATIONS[operation](net, values[state], stride if state in (BEFORE, NOW) else 1, f"{label}/{place}")
            for place, (state, operation) in enumerate(
                zip(node.inputs.split("+"), node.operations, strict=True), start=1
            )
        ]
        values[f"node{number}"] = net.sum(pair, label)
    return net.concat([value for state, value in values.items() if state not in (BEFORE, NOW)], name)


SPACE = Redraw("darts", plan=chosen_cells, draw=draw, base=DARTS_V2).space()
