"""SqueezeNet with complex bypass (Iandola et al., 2016) as in the IOS thesis."""

from __future__ import annotations

import onnx

from iosched.models.zoo.network import Network, Value

# (squeeze, expand) channels; None is a pooling.
_LAYERS = ((16, 64), (16, 64), (32, 128), None, (32, 128), (48, 192), (48, 192), (64, 256), None, (64, 256))


def build() -> onnx.ModelProto:
    """SqueezeNet: input (1, 3, 224, 224), output (1, 1000, 1, 1) float32."""
    net = Network("squeezenet")
    x = net.conv(net.input(3, 224), 96, 7, "conv1", stride=2, padding=3)
    x = net.max_pool(x, 3, "pool1", stride=2)
    for index, layer in enumerate(_LAYERS, start=2):
        x = net.max_pool(x, 3, f"pool{index}", stride=2) if layer is None else _fire(net, x, *layer, f"fire{index}")
    x = net.conv(x, 1000, 1, "conv12")
    return net.finish(net.global_average_pool(x, "output"))


def _fire(net: Network, x: Value, squeeze: int, expand: int, name: str) -> Value:
    narrow = net.conv(x, squeeze, 1, f"{name}/squeeze1x1")
    expand3 = net.conv(narrow, expand, 3, f"{name}/expand3x3", padding=1)
    expand1 = net.conv(narrow, expand, 1, f"{name}/expand1x1")
    wide = net.concat([expand3, expand1], f"{name}/concat")
    bypass = x if x.channels == wide.channels else net.conv(x, wide.channels, 1, f"{name}/bypass")
    return net.sum([wide, bypass], name)
