"""Networks stacked from cells, and the operations inside them: what NASNet, DARTS and ENAS have in common.

A cell reads the outputs of the two cells before it, both brought to the cell's width by a convolution of 1x1. Normal
cells keep the size of the image; reduction cells halve it and are twice as wide (Zoph et al., 2018, section 3).
Every convolution has the Relu before it, and a batch normalisation that is folded into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from iosched.models.spaces.redraw import Choose
from iosched.models.zoo.network import Network, Value

CLASSES = 10
"""Of CIFAR-10, on which both searched."""

BEFORE, NOW = "before", "now"
"""Names of a cell's two inputs: the output of the cell before the last, and of the last."""

Operation = Callable[[Network, Value, int, str], Value]
"""Writes an operation at a stride; it keeps the number of channels."""


@dataclass(frozen=True)
class Block:
    """A part of a cell: the two states it reads, the operation on each, and how it joins them: "add" or "concat".

    States are the cell's inputs and the blocks before.
    """

    inputs: tuple[str, str]
    operations: tuple[str, str]
    combination: str = "add"


Cell = tuple[Block, ...]


@dataclass(frozen=True)
class Cells:
    """What a network is stacked from."""

    normal: Cell
    reduction: Cell


ChosenBlock = Callable[[Choose, int, str], Block]
"""Makes the block of a number (from 1) and a name by its choices."""

Write = Callable[[Network, Cell, tuple[Value, Value], int, str], Value]
"""Writes a cell between its two inputs, at a stride, and returns what it puts out."""


def chosen_cells(block: ChosenBlock, count: int, called: str, choose: Choose) -> Cells:
    """Both cells by the choices of their blocks, so many in each, which are `called` so."""
    normal, reduction = (
        tuple(block(choose, number, f"{cell}/{called}{number}") for number in range(1, count + 1))
        for cell in ("normal", "reduction")
    )
    return Cells(normal, reduction)


def chosen_pair(choose: Choose, candidates: Sequence[str], name: str) -> tuple[str, str]:
    """Two choices among the same candidates."""
    return choose(candidates, f"{name}1"), choose(candidates, f"{name}2")


def written(
    net: Network,
    cell: Cell,
    operations: Mapping[str, Operation],
    inputs: tuple[Value, Value],
    stride: int,
    name: str,
    called: str = "block",
) -> dict[str, Value]:
    """All states of a cell whose blocks are `called` so: its inputs, and what each block makes, halved at a stride."""
    values = dict(zip((BEFORE, NOW), inputs, strict=True))
    for number, block in enumerate(cell, start=1):
        label = f"{name}/{called}{number}"
        pair = [
            # What a block makes is halved already.
            operations[operation](net, values[state], stride if state in (BEFORE, NOW) else 1, f"{label}/{place}")
            for place, (state, operation) in enumerate(zip(block.inputs, block.operations, strict=True), start=1)
        ]
        values[f"{called}{number}"] = _combined(net, pair, block.combination, label)
    return values


def _combined(net: Network, pair: list[Value], combination: str, name: str) -> Value:
    if combination == "add":
        return net.sum(pair, name)
    # Every state has the cell's width: a convolution of 1x1 brings twice the width back to it.
    return net.relu_conv(net.concat(pair, f"{name}/concat"), pair[0].channels, name)


def stacked(net: Network, pixels: int, channels: int, filters: int, plan: Cells, write: Write) -> Value:
    """A convolution of so many channels that halves the image, and normal cells with reduction cells between them.

    The first cell has `filters` channels in each of its states.
    """
    before = now = net.conv(net.input(3, pixels), channels, 3, "stem", stride=2, padding=1, relu=False)
    for number, stride in enumerate((1, 2, 1, 2, 1), start=1):
        name = f"cell{number}"
        filters *= stride
        halves = 1 if before.shape[1:] == now.shape[1:] else 2
        first = net.relu_conv(before, filters, f"{name}/{BEFORE}", stride=halves)
        inputs = first, net.relu_conv(now, filters, f"{name}/{NOW}")
        before, now = now, write(net, plan.normal if stride == 1 else plan.reduction, inputs, stride, name)
    return now


def classified(net: Network, x: Value) -> onnx.ModelProto:
    """The network with a global pool and a linear layer at its end: output (1, 10) float32 logits."""
    x = net.flatten(net.global_average_pool(x, "pool"), "flatten")
    return net.finish(net.linear(x, CLASSES, "output"))


def skip(net: Network, x: Value, stride: int, name: str) -> Value:
    """The value itself; where it is halved, by a convolution of 1x1."""
    return x if stride == 1 else net.relu_conv(x, x.channels, name, stride=stride)


def separable(kernel: int, net: Network, x: Value, stride: int, name: str) -> Value:
    """Relu, a depthwise and a pointwise convolution; twice, the first at the stride."""
    first = net.relu_sep_conv(x, x.channels, kernel, f"{name}/1", stride=stride)
    return net.relu_sep_conv(first, x.channels, kernel, f"{name}/2")


def dilated_separable(kernel: int, net: Network, x: Value, stride: int, name: str) -> Value:
    """Relu, a depthwise convolution that skips every other pixel, and a pointwise one."""
    x = net.relu(x, f"{name}/relu")
    x = net.conv(
        x, x.channels, kernel, f"{name}/depthwise",
        stride=stride, padding=kernel - 1, dilation=2, groups=x.channels, relu=False,
    )  # fmt: skip
    return net.conv(x, x.channels, 1, name, relu=False)


def convolution(kernel: int, dilation: int, net: Network, x: Value, stride: int, name: str) -> Value:
    """Relu and a full convolution."""
    padding = dilation * (kernel // 2)
    x = net.relu(x, f"{name}/relu")
    return net.conv(x, x.channels, kernel, name, stride=stride, padding=padding, dilation=dilation, relu=False)


def split_convolution(kernel: int, net: Network, x: Value, stride: int, name: str) -> Value:
    """Relu, a convolution along rows, and one along columns."""
    half = kernel // 2
    x = net.relu(x, f"{name}/relu")
    x = net.conv(x, x.channels, (1, kernel), f"{name}/rows", stride=(1, stride), padding=(0, half), relu=False)
    return net.conv(x, x.channels, (kernel, 1), name, stride=(stride, 1), padding=(half, 0), relu=False)


def max_pool(kernel: int, net: Network, x: Value, stride: int, name: str) -> Value:
    """The largest value around each."""
    return net.max_pool(x, kernel, name, stride=stride, padding=kernel // 2)


def average_pool(net: Network, x: Value, stride: int, name: str) -> Value:
    """The mean of the 3x3 values around each."""
    return net.average_pool(x, 3, name, stride=stride, padding=1)
