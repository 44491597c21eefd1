"""DenseNet-121 (Huang et al., 2016).

Batch normalization is folded into a preceding convolution; those that open a layer read a concatenation, and stay.
"""

from __future__ import annotations

import onnx

from iosched.models.zoo.network import Network, Value

_LAYERS = (6, 12, 24, 16)
_GROWTH = 32


def build() -> onnx.ModelProto:
    """DenseNet-121: input (1, 3, 224, 224), output (1, 1000) float32 logits."""
    net = Network("densenet121")
    x = net.conv(net.input(3, 224), 64, 7, "conv1", stride=2, padding=3)
    x = net.max_pool(x, 3, "pool1", stride=2, padding=1)
    for block, layers in enumerate(_LAYERS, start=1):
        x = _dense_block(net, x, layers, f"block{block}")
        if block < len(_LAYERS):
            x = _transition(net, x, f"transition{block}")
    x = _normalised(net, x, "final")
    x = net.flatten(net.global_average_pool(x, "pool5"), "flatten")
    return net.finish(net.linear(x, 1000, "output"))


def _normalised(net: Network, x: Value, name: str) -> Value:
    return net.relu(net.batch_norm(x, f"{name}/norm"), f"{name}/relu")


def _dense_block(net: Network, x: Value, layers: int, name: str) -> Value:
    """Each layer reads all earlier ones of the block."""
    features = [x]
    for index in range(1, layers + 1):
        layer = f"{name}/layer{index}"
        seen = x if index == 1 else net.concat(features, f"{layer}/concat")
        narrow = net.conv(_normalised(net, seen, layer), 4 * _GROWTH, 1, f"{layer}/conv1")
        features.append(net.conv(narrow, _GROWTH, 3, layer, padding=1, relu=False))
    return net.concat(features, name)


def _transition(net: Network, x: Value, name: str) -> Value:
    x = _normalised(net, x, name)
    x = net.conv(x, x.channels // 2, 1, f"{name}/conv", relu=False)
    return net.average_pool(x, 2, name, stride=2)
