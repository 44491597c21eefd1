"""Networks sampled from a space like MnasNet's around MobileNetV2 (Tan et al., 2019).

Each stage draws a kernel, an expansion, squeeze and excitation, a number of blocks and a width. The seed determines the
network and its weights. The space `builtin:mnasnet` shares tables and layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import onnx

from iosched.models.zoo.network import Network, Value

MOBILENET_V2 = ((24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1))
"""(channels, blocks, stride of the first block) of MobileNetV2's stages after the first."""

KERNELS, EXPANSIONS, WIDTHS = (3, 5), (3, 6), (0.75, 1.0, 1.25)
"""Candidates of a stage; widths are multiples of MobileNetV2's."""

_EXCITED = 4  # ratio of a block's input channels to those inside squeeze and excitation
_MULTIPLE = 8
_CLASSES = 1000


@dataclass(frozen=True)
class StageSpec:
    """Inverted residual blocks with a depthwise convolution of `kernel` x `kernel`."""

    channels: int
    blocks: int
    stride: int
    kernel: int
    expansion: int
    excites: bool


def block_counts(blocks: int) -> tuple[int, int, int]:
    """The candidates where MobileNetV2 has `blocks`: one fewer, the same number, one more; at least one."""
    return max(1, blocks - 1), blocks, blocks + 1


def rounded(channels: float) -> int:
    """The nearest multiple of 8, at least 8."""
    return max(_MULTIPLE, int(channels + _MULTIPLE / 2) // _MULTIPLE * _MULTIPLE)


def sampled_stages(seed: int) -> tuple[StageSpec, ...]:
    """The stages of network `seed`, with uniform choices."""
    random = Random(seed)
    return tuple(
        StageSpec(
            channels=rounded(channels * random.choice(WIDTHS)),
            blocks=random.choice(block_counts(blocks)),
            stride=stride,
            kernel=random.choice(KERNELS),
            expansion=random.choice(EXPANSIONS),
            excites=random.random() < 0.5,
        )
        for channels, blocks, stride in MOBILENET_V2
    )


def sampled(seed: int, size: int = 224) -> onnx.ModelProto:
    """Network `seed`: input (1, 3, size, size), output (1, 1000) float32 logits."""
    return drawn(Network(f"mnasnet-{seed}"), sampled_stages(seed), size)


def drawn(net: Network, stages: Sequence[StageSpec], size: int) -> onnx.ModelProto:
    """The network of `stages` between MobileNetV2's first and last layers: (1, 3, size, size) to (1, 1000)."""
    x = net.conv(net.input(3, size), 32, 3, "stem", stride=2, padding=1)
    x = net.conv(x, 32, 3, "first/depthwise", padding=1, groups=32)
    x = net.conv(x, 16, 1, "first", relu=False)
    for number, stage in enumerate(stages, start=1):
        for block in range(1, stage.blocks + 1):
            x = _block(net, x, stage, stage.stride if block == 1 else 1, f"stage{number}/block{block}")
    x = net.global_average_pool(net.conv(x, 1280, 1, "last"), "pool")
    return net.finish(net.linear(net.flatten(x, "flatten"), _CLASSES, "output"))


def _block(net: Network, x: Value, stage: StageSpec, stride: int, name: str) -> Value:
    wide = x.channels * stage.expansion
    y = net.conv(x, wide, 1, f"{name}/expand")
    y = net.conv(y, wide, stage.kernel, f"{name}/depthwise", stride=stride, padding=stage.kernel // 2, groups=wide)
    if stage.excites:
        y = net.excited(y, max(x.channels // _EXCITED, _MULTIPLE), f"{name}/excite")
    y = net.conv(y, stage.channels, 1, f"{name}/project", relu=False)
    return net.sum([y, x], name) if stride == 1 and x.channels == stage.channels else y
