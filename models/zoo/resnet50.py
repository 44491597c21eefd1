"""ResNet-50 (He et al., 2015) with folded batch normalization."""

from __future__ import annotations

import onnx

from iosched.models.zoo.network import Network, Value

# (blocks, channels of the bottleneck) of each stage.
_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
_EXPANSION = 4


def build() -> onnx.ModelProto:
    """ResNet-50: input (1, 3, 224, 224), output (1, 1000) float32 logits."""
    net = Network("resnet50")
    x = net.conv(net.input(3, 224), 64, 7, "conv1", stride=2, padding=3)
    x = net.max_pool(x, 3, "pool1", stride=2, padding=1)
    for stage, (blocks, channels) in enumerate(_STAGES, start=1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            x = _bottleneck(net, x, channels, stride, f"stage{stage}/block{block}")
    x = net.flatten(net.global_average_pool(x, "pool5"), "flatten")
    return net.finish(net.linear(x, 1000, "output"))


def _bottleneck(net: Network, x: Value, channels: int, stride: int, name: str) -> Value:
    wide = channels * _EXPANSION
    y = net.conv(x, channels, 1, f"{name}/conv1")
    y = net.conv(y, channels, 3, f"{name}/conv2", stride=stride, padding=1)
    y = net.conv(y, wide, 1, f"{name}/conv3", relu=False)
    if x.channels != wide:
        x = net.conv(x, wide, 1, f"{name}/shortcut", stride=stride, relu=False)
    return net.relu(net.sum([y, x], f"{name}/sum"), name)
