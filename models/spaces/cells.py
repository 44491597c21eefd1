"""Cells of NASNet, DARTS and ENAS: their operations, and networks stacked from them.

A cell reads the outputs of the two cells before it, both brought to its width by a 1x1 convolution. Reduction cells
halve the image and double the width (Zoph et al., 2018, section 3). Every convolution follows a Relu, and has its
batch normalization folded in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from iosched.models.spaces.redraw import Choose
from iosched.models.zoo.network import Network, Value

CLASSES = 10
"""The classes of CIFAR-10."""

BEFORE, NOW = "before", "now"
"""A cell's two inputs: the output of the cell before the last, and of the last."""

Operation = Callable[[Network, Value, int, str], Value]
"""Writes an operation at a stride, keeping the number of channels."""


@dataclass(frozen=True)
class CellBlock:
    """A part of a cell: two states, an operation on each, and their combination, "add" or "concat".

    States are the cell's inputs and earlier blocks.
    """

    inputs: tuple[str, str]
    operations: tuple[str, str]
    combination: str = "add"


Cell = tuple[CellBlock, ...]


@dataclass(frozen=True)
class Cells:
    """The cells of a network."""

    normal: Cell
    reduction: Cell


ChosenBlock = Callable[[Choose, int, str], CellBlock]
"""Chooses the block of a number (from 1) and a name."""

Write = Callable[[Network, Cell, tuple[Value, Value], int, str], Value]
"""Writes a cell on its two inputs, at a stride, and returns its output."""


def chosen_cells(block: ChosenBlock, count: int, called: str, choose: Choose) -> Cells:
    """Both cells with `count` chosen blocks each, named `called`."""
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
    """All states of a cell: its inputs and its blocks, halved by a stride of 2."""
    values = dict(zip((BEFORE, NOW), inputs, strict=True))
    for number, block in enumerate(cell, start=1):
        label = f"{name}/{called}{number}"
        pair = [
            # Blocks are halved already.
            operations[operation](net, values[state], stride if state in (BEFORE, NOW) else 1, f"{label}/{place}")
            for place, (state, operation) in enumerate(zip(block.inputs, block.operations, strict=True), start=1)
        ]
        values[f"{called}{number}"] = _combined(net, pair, block.combination, label)
    return values


def _combined(net: Network, pair: list[Value], combination: str, name: str) -> Value:
    if combination == "add":
        return net.sum(pair, name)
    # A 1x1 convolution restores the cell's width.
    return net.relu_conv(net.concat(pair, f"{name}/concat"), pair[0].channels, name)


def stacked(net: Network, pixels: int, channels: int, filters: int, plan: Cells, write: Write) -> Value:
    """A stem that halves the image, and normal cells with reduction cells between them.

    The first cell has `filters` channels in each state.
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
    """The network with global pooling and a linear layer: output (1, 10) float32 logits."""
    x = net.flatten(net.global_average_pool(x, "pool"), "flatten")
    return net.finish(net.linear(x, CLASSES, "output"))


def skip(net: Network, x: Value, stride: int, name: str) -> Value:
    """The identity; at a stride, a 1x1 convolution."""
    return x if stride == 1 else net.relu_conv(x, x.channels, name, stride=stride)


def separable(kernel: int, net: Network, x: Value, stride: int, name: str) -> Value:
    """Relu, depthwise and pointwise convolution, twice; the first at the stride."""
    first = net.relu_sep_conv(x, x.channels, kernel, f"{name}/1", stride=stride)
    return net.relu_sep_conv(first, x.channels, kernel, f"{name}/2")


def dilated_separable(kernel: int, net: Network, x: Value, stride: int, name: str) -> Value:
    """Relu, a depthwise convolution of dilation 2, and a pointwise one."""
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
    """Max pooling that keeps the size at stride 1."""
    return net.max_pool(x, kernel, name, stride=stride, padding=kernel // 2)


def average_pool(net: Network, x: Value, stride: int, name: str) -> Value:
    """3x3 average pooling."""
    return net.average_pool(x, 3, name, stride=stride, padding=1)
