"""NASNet-A large (Zoph et al., 2017) as in the IOS thesis: no auxiliary head and no classifier.

The measured network differs from the paper's in a few operands, as comments say; operator counts depend on them.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx

from iosched.models.zoo.network import Network, Value

_STEM_CHANNELS = 96


def build(cells_per_stage: int = 6, filters: int = 168) -> onnx.ModelProto:
    """NASNet-A: input (1, 3, 331, 331), output (1, 20 * filters, 1, 1) float32.

    Args:
        cells_per_stage: normal cells in each of the three stages; NASNet-A large has 6.
        filters: of each operator of the first stage's cells, a multiple of 4; NASNet-A large has 168.
    """
    net = Network("nasnet_a")
    stem = net.conv(net.input(3, 331), _STEM_CHANNELS, 3, "stem", stride=2, relu=False)
    before = _first_stem_cell(net, stem, filters // 4, "stem_cell1")
    now = _second_stem_cell(net, before, stem, filters // 2, "stem_cell2")
    before, now = _stage(net, now, before, filters, "stage1", cells_per_stage)
    for index, wider in enumerate((2 * filters, 4 * filters), start=1):
        reduced = _reduction_cell(net, now, before, wider, f"reduction{index}")
        before, now = _stage(net, reduced, before, wider, f"stage{index + 1}", cells_per_stage)
    return net.finish(net.global_average_pool(net.relu(now, "relu"), "output"))


def _stage(net: Network, now: Value, before: Value, filters: int, name: str, cells: int) -> tuple[Value, Value]:
    for index in range(1, cells + 1):
        before, now = now, _normal_cell(net, now, before, filters, f"{name}/cell{index}")
    return before, now


def _separable(
    net: Network, x: Value, filters: int, kernel: int, name: str, *, stride: int = 1, middle: int | None = None
) -> Value:
    """Relu and separable convolution, twice; the first has the stride and `middle` channels."""
    x = net.relu_sep_conv(x, x.channels if middle is None else middle, kernel, f"{name}/1", stride=stride)
    return net.relu_sep_conv(x, filters, kernel, f"{name}/2")


def _normal_cell(net: Network, now: Value, before: Value, filters: int, name: str) -> Value:
    """Five parallel sums; `before` is halved and concatenated if it is twice as large."""
    resized = before.shape[1:] != now.shape[1:]
    if resized:
        halves = [net.relu_conv(before, filters // 2, f"{name}/before_{side}", stride=2) for side in "ab"]
        left = net.concat(halves, f"{name}/before")
    else:
        left = net.relu_conv(before, filters, f"{name}/before")
    right = net.relu_conv(now, filters, f"{name}/now")
    # The paper's first pair adds a convolution of `before`; in resized cells the measured network takes `now` twice.
    partner = right if resized else left
    pairs = [
        [
            _separable(net, right, filters, 5, f"{name}/sum1/5x5"),
            _separable(net, partner, filters, 3, f"{name}/sum1/3x3"),
        ],
        [_separable(net, left, filters, kernel, f"{name}/sum2/{kernel}x{kernel}") for kernel in (5, 3)],
        [net.average_pool(right, 3, f"{name}/sum3/pool", padding=1), left],
        [net.average_pool(left, 3, f"{name}/sum4/pool_{side}", padding=1) for side in "ab"],
        [_separable(net, right, filters, 3, f"{name}/sum5/3x3"), right],
    ]
    sums = [net.sum(pair, f"{name}/sum{index}") for index, pair in enumerate(pairs, start=1)]
    return net.concat([left, *sums] if resized else sums, name)


def _first_stem_cell(net: Network, stem: Value, filters: int, name: str) -> Value:
    now = net.relu_conv(stem, filters, f"{name}/now")
    return _reduce(net, now, stem, filters, name, middle=filters, fourth=lambda first, second: first)


def _second_stem_cell(net: Network, now: Value, stem: Value, filters: int, name: str) -> Value:
    right = net.relu_conv(now, filters, f"{name}/now")
    # The measured network adds the two halves of the resized stem, where the paper concatenates them.
    halves = [net.relu_conv(stem, filters // 2, f"{name}/before_{side}", stride=2) for side in "ab"]
    return _reduce(net, right, net.sum(halves, f"{name}/before"), filters, name, fourth=lambda first, second: second)


def _reduction_cell(net: Network, now: Value, before: Value, filters: int, name: str) -> Value:
    left = net.relu_conv(before, filters, f"{name}/before")
    right = net.relu_conv(now, filters, f"{name}/now")
    return _reduce(net, right, left, filters, name, fourth=lambda first, second: second, repeat=True)


def _reduce(
    net: Network,
    right: Value,
    left: Value,
    filters: int,
    name: str,
    *,
    fourth: Callable[[Value, Value], Value],
    middle: int | None = None,
    repeat: bool = False,
) -> Value:
    """`fourth` picks the fourth sum's second operand; `repeat` computes the second sum again for the concatenation."""

    def halved(x: Value, kernel: int, place: str, channels: int | None = None) -> Value:
        return _separable(net, x, filters, kernel, f"{name}/{place}", stride=2, middle=channels)

    first = net.sum([halved(right, 5, "sum1/5x5"), halved(left, 7, "sum1/7x7", middle)], f"{name}/sum1")
    pair = [net.max_pool(right, 3, f"{name}/sum2/pool", stride=2, padding=1), halved(left, 7, "sum2/7x7", middle)]
    # A separate operator, even if only the concatenation reads it.
    second = net.identity(net.sum(pair, f"{name}/sum2/sum"), f"{name}/sum2")
    third = [
        net.average_pool(right, 3, f"{name}/sum3/pool", stride=2, padding=1),
        halved(left, 5, "sum3/5x5", middle),
    ]
    pool = net.average_pool(first, 3, f"{name}/sum4/pool", padding=1)
    fifth = [
        _separable(net, first, filters, 3, f"{name}/sum5/3x3"),
        net.max_pool(right, 3, f"{name}/sum5/pool", stride=2, padding=1),
    ]
    return net.concat(
        [
            net.sum(pair, f"{name}/sum2_again") if repeat else second,
            net.sum(third, f"{name}/sum3"),
            net.sum([pool, fourth(first, second)], f"{name}/sum4"),
            net.sum(fifth, f"{name}/sum5"),
        ],
        name,
    )
