"""RandWire (Xie et al., 2019) as in the IOS thesis: four stages of randomly wired separable convolutions.

The wirings are four draws of the Watts-Strogatz model with k = 4 neighbours and rewiring probability p = 0.75, of 16
and three times 32 nodes (32, 64, 64 and 64 edges), directed from lower to higher nodes. They are listed, because the
seed of the measured network was not published and its counts depend on every edge.
"""

from __future__ import annotations

import onnx

from iosched.models.zoo.network import Network, Value

Wiring = tuple[tuple[int, ...], ...]

# The predecessors of each node; "-" reads the stage's input.
_WIRINGS = (
    "- - - 1,2 - 0,4 - - 6,7 1,4,6,7 9 1,2,7,9 0,9 4,8,11,12 1,3,5,10,13 0,1,3,6,8,14",
    (
        "- - - 2 - 4 4 6 7 8 9 1,10 2,8 0,12 7 9,14 15 0,8,15 1,2,3,17 9,16,17 4,15 0,3,14,20 5,7,11,21 12,21 11,20 "
        "13,24 4,6,10,25 15,24 6,20,24 16,28 6,29 11,14,18,20,22,25,29,30"
    ),
    (
        "- 0 - - 3 4 - 6 6 8 9 9 7,8 0,12 - 14 12,14 8,9,11,14,16 17 1,3,4,18 2,16 1,11,13,20 8,14,20 22 11,15,23 "
        "2,7,21,23 19,20,24,25 10,12,19,26 5,8,21,27 5,6,14,27,28 9,20,22 4,30"
    ),
    (
        "- - 1 - 3 1,3 0,5 2,3 3,5,7 4,5,8 9 - 4,11 - 13 14 15 4,16 0,16 11,12,13,18 8,15,19 - 2,6,10,21 1,13,22 21 "
        "4,13,17,24 11,16,17,20,24 2,5,9,24 9,14,17,27 15,25,28 14,18,21 0,30"
    ),
)
_CHANNELS = (154, 308, 616, 1232)


def wirings() -> tuple[Wiring, ...]:
    """The predecessors of each node, by stage."""
    return tuple(tuple(_predecessors(node) for node in text.split()) for text in _WIRINGS)


def build() -> onnx.ModelProto:
    """RandWire: input (1, 3, 224, 224), output (1, 1280, 1, 1) float32."""
    net = Network("randwire")
    x = net.conv(net.input(3, 224), 77, 3, "stem", stride=2, padding=1, relu=False)
    for index, (wiring, channels) in enumerate(zip(wirings(), _CHANNELS, strict=True), start=1):
        x = _stage(net, x, wiring, channels, f"stage{index}")
    x = net.conv(net.relu(x, "relu"), 1280, 1, "conv", relu=False)
    return net.finish(net.global_average_pool(x, "output"))


def _predecessors(node: str) -> tuple[int, ...]:
    return () if node == "-" else tuple(int(text) for text in node.split(","))


def _stage(net: Network, x: Value, wiring: Wiring, channels: int, name: str) -> Value:
    """Nodes without predecessors halve the image; the output is the sum of unread nodes."""
    outputs: list[Value] = []
    for index, predecessors in enumerate(wiring):
        node = f"{name}/node{index}"
        source = net.sum([outputs[i] for i in predecessors], f"{node}/sum") if predecessors else x
        outputs.append(net.relu_sep_conv(source, channels, 3, node, stride=1 if predecessors else 2))
    read = {i for predecessors in wiring for i in predecessors}
    ends = [output for index, output in enumerate(outputs) if index not in read]
    return net.sum(ends, name) if len(ends) > 1 else net.identity(ends[0], name)
