"""GoogLeNet, Inception V1 (Szegedy et al., 2014), without its auxiliary heads and local response normalisation."""

from __future__ import annotations

import onnx

from iosched.models.zoo.network import Network, Value

# Channels of a module: 1x1; 3x3 reduced, 3x3; 5x5 reduced, 5x5; after pooling.
_Module = tuple[int, int, int, int, int, int]
_STAGES: tuple[dict[str, _Module], ...] = (
    {"3a": (64, 96, 128, 16, 32, 32), "3b": (128, 128, 192, 32, 96, 64)},
    {
        "4a": (192, 96, 208, 16, 48, 64),
        "4b": (160, 112, 224, 24, 64, 64),
        "4c": (128, 128, 256, 24, 64, 64),
        "4d": (112, 144, 288, 32, 64, 64),
        "4e": (256, 160, 320, 32, 128, 128),
    },
    {"5a": (256, 160, 320, 32, 128, 128), "5b": (384, 192, 384, 48, 128, 128)},
)


def build() -> onnx.ModelProto:
    """GoogLeNet: input (1, 3, 224, 224), output (1, 1000) float32 logits."""
    net = Network("googlenet")
    x = net.conv(net.input(3, 224), 64, 7, "conv1", stride=2, padding=3)
    x = net.max_pool(x, 3, "pool1", stride=2, ceil=True)
    x = net.conv(x, 64, 1, "conv2/reduce")
    x = net.conv(x, 192, 3, "conv2", padding=1)
    for index, stage in enumerate(_STAGES, start=2):
        x = net.max_pool(x, 3, f"pool{index}", stride=2, ceil=True)
        for name, channels in stage.items():
            x = _module(net, x, channels, f"inception_{name}")
    x = net.flatten(net.global_average_pool(x, "pool5"), "flatten")
    return net.finish(net.linear(x, 1000, "output"))


def _module(net: Network, x: Value, channels: _Module, name: str) -> Value:
    one, reduce3, three, reduce5, five, pool = channels
    narrow3 = net.conv(x, reduce3, 1, f"{name}/3x3_reduce")
    narrow5 = net.conv(x, reduce5, 1, f"{name}/5x5_reduce")
    return net.concat(
        [
            net.conv(x, one, 1, f"{name}/1x1"),
            net.conv(narrow3, three, 3, f"{name}/3x3", padding=1),
            net.conv(narrow5, five, 5, f"{name}/5x5", padding=2),
            net.conv(net.max_pool(x, 3, f"{name}/pool", padding=1), pool, 1, f"{name}/pool_proj"),
        ],
        name,
    )
