"""`builtin:spos`: one of four blocks for each of 20 layers (Guo et al., Single Path One-Shot NAS, 2020, section 4).

Blocks are ShuffleNet V2's with a kernel of 3, 5 or 7, and one with three depthwise convolutions as in Xception. The
base is the authors' published architecture, without its choice of channels.
"""

from __future__ import annotations

import numpy as np
import onnx

from iosched.models.spaces.redraw import Choose, Redraw
from iosched.models.zoo.network import Network, Value

BLOCKS = ("shuffle3", "shuffle5", "shuffle7", "xception")
STAGES = ((64, 4), (160, 4), (320, 8), (640, 4))
"""Channels and number of layers of each stage; the first layer halves the image."""

_STEM_CHANNELS, _LAST_CHANNELS, _CLASSES = 16, 1024, 1000
_BASE = tuple(BLOCKS[block] for block in (0, 0, 3, 1, 1, 1, 0, 0, 2, 0, 2, 1, 1, 0, 2, 0, 2, 1, 3, 2))


def chosen_layers(choose: Choose) -> tuple[str, ...]:
    """The blocks of all layers by their choices."""
    return tuple(choose(BLOCKS, f"layer{number}") for number in range(1, 1 + sum(layers for _, layers in STAGES)))


def draw(net: Network, blocks: tuple[str, ...], pixels: int) -> onnx.ModelProto:
    """The network of these blocks: input (1, 3, pixels, pixels), output (1, 1000) float32."""
    x = net.conv(net.input(3, pixels), _STEM_CHANNELS, 3, "stem", stride=2, padding=1)
    firsts = [(channels, layer == 0) for channels, layers in STAGES for layer in range(layers)]
    for number, (block, (channels, halves)) in enumerate(zip(blocks, firsts, strict=True), start=1):
        x = _layer(net, x, block, channels, halves, f"layer{number}")
    x = net.conv(x, _LAST_CHANNELS, 1, "last")
    return net.finish(net.linear(net.flatten(net.global_average_pool(x, "pool"), "flatten"), _CLASSES, "output"))


def _layer(net: Network, x: Value, block: str, channels: int, halves: bool, name: str) -> Value:
    """Half of the channels, or a projection of all, concatenated with the block's result."""
    kernel, stride = 3 if block == "xception" else int(block[-1]), 2 if halves else 1
    if halves:
        kept = _depthwise(net, x, kernel, stride, f"{name}/kept/depthwise")
        kept = net.conv(kept, x.channels, 1, f"{name}/kept")
    else:
        kept, x = _every_other(net, x, 0, f"{name}/kept"), _every_other(net, x, 1, f"{name}/half")
    if block == "xception":
        x = _depthwise(net, x, kernel, stride, f"{name}/depthwise1")
        x = net.conv(x, channels // 2, 1, f"{name}/pointwise1")
        x = _depthwise(net, x, kernel, 1, f"{name}/depthwise2")
        x = net.conv(x, channels // 2, 1, f"{name}/pointwise2")
        x = _depthwise(net, x, kernel, 1, f"{name}/depthwise3")
    else:
        x = net.conv(x, channels // 2, 1, f"{name}/pointwise1")
        x = _depthwise(net, x, kernel, stride, f"{name}/depthwise1")
    return net.concat([kept, net.conv(x, channels - kept.channels, 1, f"{name}/block")], name)


def _depthwise(net: Network, x: Value, kernel: int, stride: int, name: str) -> Value:
    padding = kernel // 2
    return net.conv(x, x.channels, kernel, name, stride=stride, padding=padding, groups=x.channels, relu=False)


def _every_other(net: Network, x: Value, first: int, name: str) -> Value:
    """Every other channel from number `first` on; both halves together are ShuffleNet's shuffle."""
    bounds = {"starts": first, "ends": x.channels, "axes": 1, "steps": 2}
    inputs = [net.constant(f"{name}/{what}", np.array([number], np.int64)) for what, number in bounds.items()]
    net.append("Slice", [x.name, *inputs], name)
    return Value(name, (x.channels // 2, *x.shape[1:]), x.mean_square)


SPACE = Redraw("spos", plan=chosen_layers, draw=draw, base=_BASE).space()
