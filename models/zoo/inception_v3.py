"""Inception V3 (Szegedy et al., 2015) as in the IOS thesis: no classifier, and pooling counts its padding."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from iosched.models.zoo.network import Network, Value

# A convolution of a branch: channels, kernel (height, width), stride, padding (height, width).
_Layer = tuple[int, tuple[int, int], int, tuple[int, int]]


def build() -> onnx.ModelProto:
    """Inception V3: input (1, 3, 299, 299), output (1, 2048, 1, 1) float32."""
    net = Network("inception_v3")
    x = _stem(net, net.input(3, 299))
    for name, pool_channels in (("mixed_5b", 32), ("mixed_5c", 64), ("mixed_5d", 64)):
        x = _module_a(net, x, pool_channels, name)
    x = _module_b(net, x, "mixed_6a")
    for name, channels in (("mixed_6b", 128), ("mixed_6c", 160), ("mixed_6d", 160), ("mixed_6e", 192)):
        x = _module_c(net, x, channels, name)
    x = _module_d(net, x, "mixed_7a")
    for name in ("mixed_7b", "mixed_7c"):
        x = _module_e(net, x, name)
    return net.finish(net.global_average_pool(x, "output"))


def _stem(net: Network, x: Value) -> Value:
    x = net.conv(x, 32, 3, "conv_1a_3x3", stride=2)
    x = net.conv(x, 32, 3, "conv_2a_3x3")
    x = net.conv(x, 64, 3, "conv_2b_3x3", padding=1)
    x = net.max_pool(x, 3, "pool_2", stride=2)
    x = net.conv(x, 80, 1, "conv_3b_1x1")
    x = net.conv(x, 192, 3, "conv_4a_3x3")
    return net.max_pool(x, 3, "pool_4", stride=2)


def _same(channels: int, height: int, width: int) -> _Layer:
    return channels, (height, width), 1, (height // 2, width // 2)


def _halve(channels: int) -> _Layer:
    return channels, (3, 3), 2, (0, 0)


def _branch(net: Network, x: Value, layers: Sequence[_Layer], name: str) -> Value:
    for index, (channels, kernel, stride, padding) in enumerate(layers, start=1):
        size = f"{kernel[0]}x{kernel[1]}"
        x = net.conv(x, channels, kernel, f"{name}/conv{index}_{size}", stride=stride, padding=padding)
    return x


def _pool_branch(net: Network, x: Value, channels: int, name: str) -> Value:
    pool = net.average_pool(x, 3, f"{name}/pool", padding=1)
    return net.conv(pool, channels, 1, f"{name}/conv_1x1")


def _module_a(net: Network, x: Value, pool_channels: int, name: str) -> Value:
    return net.concat(
        [
            _branch(net, x, [_same(64, 1, 1)], f"{name}/branch1x1"),
            _branch(net, x, [_same(48, 1, 1), _same(64, 5, 5)], f"{name}/branch5x5"),
            _branch(net, x, [_same(64, 1, 1), _same(96, 3, 3), _same(96, 3, 3)], f"{name}/branch3x3dbl"),
            _pool_branch(net, x, pool_channels, f"{name}/branch_pool"),
        ],
        name,
    )


def _module_b(net: Network, x: Value, name: str) -> Value:
    return net.concat(
        [
            _branch(net, x, [_halve(384)], f"{name}/branch3x3"),
            _branch(net, x, [_same(64, 1, 1), _same(96, 3, 3), _halve(96)], f"{name}/branch3x3dbl"),
            net.max_pool(x, 3, f"{name}/branch_pool", stride=2),
        ],
        name,
    )


def _module_c(net: Network, x: Value, c: int, name: str) -> Value:
    twice = [_same(c, 1, 1), _same(c, 7, 1), _same(c, 1, 7), _same(c, 7, 1), _same(192, 1, 7)]
    return net.concat(
        [
            _branch(net, x, [_same(192, 1, 1)], f"{name}/branch1x1"),
            _branch(net, x, [_same(c, 1, 1), _same(c, 1, 7), _same(192, 7, 1)], f"{name}/branch7x7"),
            _branch(net, x, twice, f"{name}/branch7x7dbl"),
            _pool_branch(net, x, 192, f"{name}/branch_pool"),
        ],
        name,
    )


def _module_d(net: Network, x: Value, name: str) -> Value:
    seven = [_same(192, 1, 1), _same(192, 1, 7), _same(192, 7, 1), _halve(192)]
    return net.concat(
        [
            _branch(net, x, [_same(192, 1, 1), _halve(320)], f"{name}/branch3x3"),
            _branch(net, x, seven, f"{name}/branch7x7x3"),
            net.max_pool(x, 3, f"{name}/branch_pool", stride=2),
        ],
        name,
    )


def _module_e(net: Network, x: Value, name: str) -> Value:
    return net.concat(
        [
            _branch(net, x, [_same(320, 1, 1)], f"{name}/branch1x1"),
            *_forked(net, x, [_same(384, 1, 1)], f"{name}/branch3x3"),
            *_forked(net, x, [_same(448, 1, 1), _same(384, 3, 3)], f"{name}/branch3x3dbl"),
            _pool_branch(net, x, 192, f"{name}/branch_pool"),
        ],
        name,
    )


def _forked(net: Network, x: Value, layers: Sequence[_Layer], name: str) -> tuple[Value, Value]:
    """A branch that ends in parallel 1x3 and 3x1 convolutions."""
    x = _branch(net, x, layers, name)
    return _branch(net, x, [_same(384, 1, 3)], f"{name}_a"), _branch(net, x, [_same(384, 3, 1)], f"{name}_b")
