"""VGG-16 (Simonyan and Zisserman, 2014): a chain, without parallelism."""

from __future__ import annotations

import onnx

from iosched.models.zoo.network import Network

# (convolutions, channels) between two poolings.
_STAGES = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))


def build() -> onnx.ModelProto:
    """VGG-16: input (1, 3, 224, 224), output (1, 1000) float32 logits."""
    net = Network("vgg16")
    x = net.input(3, 224)
    for stage, (layers, channels) in enumerate(_STAGES, start=1):
        for layer in range(1, layers + 1):
            x = net.conv(x, channels, 3, f"conv{stage}_{layer}", padding=1)
        x = net.max_pool(x, 2, f"pool{stage}", stride=2)
    x = net.flatten(x, "flatten")
    for layer in (6, 7):
        x = net.linear(x, 4096, f"fc{layer}", relu=True)
    return net.finish(net.linear(x, 1000, "output"))
