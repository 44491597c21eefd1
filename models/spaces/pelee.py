"""`builtin:pelee`: PeleeNet as varied by EA-Pelee (the TPDS paper on distributed evolution).

Each of the four stages has a gene: paths of its dense layers, their number, and their growth; 12 integers. The base is
PeleeNet (Wang et al., 2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from iosched.models.spaces.cells import classified
from iosched.models.spaces.redraw import Choose, Redraw
from iosched.models.zoo.network import Network, Value

WAYS, REPETITIONS, GROWTHS = (1, 2), tuple(range(1, 11)), (8, 16, 32)
_STEM_CHANNELS = 32
_BOTTLENECKS = (1, 2, 4, 4)
"""The ratio of a path's 1x1 width to its growth, for each stage."""


@dataclass(frozen=True)
class Gene:
    """A stage: `repetitions` dense layers of one or two `ways`, each adding `growth` channels."""

    ways: int
    repetitions: int
    growth: int


PELEENET: tuple[Gene, ...] = (Gene(2, 3, 32), Gene(2, 4, 32), Gene(2, 8, 32), Gene(2, 6, 32))


def chosen_genes(choose: Choose) -> tuple[Gene, ...]:
    """The four genes by their choices."""
    return tuple(
        Gene(
            ways=choose(WAYS, f"stage{number}/ways"),
            repetitions=choose(REPETITIONS, f"stage{number}/repetitions"),
            growth=choose(GROWTHS, f"stage{number}/growth"),
        )
        for number in range(1, len(_BOTTLENECKS) + 1)
    )


def draw(net: Network, genes: tuple[Gene, ...], pixels: int) -> onnx.ModelProto:
    """The network of these genes: input (1, 3, pixels, pixels), output (1, 10) float32."""
    x = _stem(net, net.input(3, pixels))
    for number, (gene, bottleneck) in enumerate(zip(genes, _BOTTLENECKS, strict=True), start=1):
        name = f"stage{number}"
        for repetition in range(1, gene.repetitions + 1):
            x = _dense_layer(net, x, gene, bottleneck, f"{name}/layer{repetition}")
        x = net.conv(x, x.channels, 1, f"{name}/transition")
        if number < len(genes):
            x = net.average_pool(x, 2, f"{name}/pool", stride=2)
    return classified(net, x)


def _stem(net: Network, x: Value) -> Value:
    """A quarter of the image's size, by a convolution and a pool in parallel."""
    x = net.conv(x, _STEM_CHANNELS, 3, "stem/conv1", stride=2, padding=1)
    left = net.conv(x, _STEM_CHANNELS // 2, 1, "stem/conv2")
    left = net.conv(left, _STEM_CHANNELS, 3, "stem/conv3", stride=2, padding=1)
    pooled = net.max_pool(x, 2, "stem/pool", stride=2, ceil=True)
    return net.conv(net.concat([left, pooled], "stem/concat"), _STEM_CHANNELS, 1, "stem")


def _dense_layer(net: Network, x: Value, gene: Gene, bottleneck: int, name: str) -> Value:
    """The input concatenated with each path: one 3x3 convolution, or two."""
    growth = gene.growth // gene.ways
    narrow = growth * bottleneck // 4 * 4
    if narrow > x.channels // 2:  # PeleeNet's rule: no layer is wider inside than its input
        narrow = x.channels // 8 * 4
    ways = [_way(net, x, narrow, growth, depth, f"{name}/way{depth}") for depth in range(1, gene.ways + 1)]
    return net.concat([x, *ways], name)


def _way(net: Network, x: Value, narrow: int, growth: int, depth: int, name: str) -> Value:
    x = net.conv(x, narrow, 1, f"{name}/narrow")
    for number in range(1, depth + 1):
        x = net.conv(x, growth, 3, f"{name}/conv{number}", padding=1)
    return x


EA_PELEE = Redraw("pelee", plan=chosen_genes, draw=draw, base=PELEENET)
SPACE = EA_PELEE.space()
