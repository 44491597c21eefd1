"""The graph of the thesis's figure 1.2, and the schedules drawn there.

    python benchmarks/four_convolutions.py -o four_convolutions.onnx

This writes it as an ONNX model with seeded weights, for `iosched optimize` and `iosched show`. All convolutions are
3x3: a reads the input and b reads a; c and d read the input; b, c and d are concatenated. a and c have 384 channels, b
and d 768. The figure does not give the image size: 15x15 fits the operations printed there.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from command_line import read_options

from iosched.models.zoo.network import Network
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

CHANNELS, SIZE = 384, 15

Groups = tuple[tuple[str, ...], ...]
PUBLISHED: dict[str, tuple[Groups, ...]] = {
    "sequential": ((("a",),), (("b",),), (("c",),), (("d",),), (("concat",),)),
    "greedy": ((("a",), ("c",), ("d",)), (("b",),), (("concat",),)),
    "IOS": ((("a",), ("d",)), (("b",), ("c",)), (("concat",),)),
}


def build() -> onnx.ModelProto:
    """Input (1, 384, 15, 15), output (1, 1920, 15, 15) float32."""
    net = Network("four_convolutions")
    x = net.input(CHANNELS, SIZE)
    a = net.conv(x, CHANNELS, 3, "a", padding=1)
    b = net.conv(a, 2 * CHANNELS, 3, "b", padding=1)
    c = net.conv(x, CHANNELS, 3, "c", padding=1)
    d = net.conv(x, 2 * CHANNELS, 3, "d", padding=1)
    return net.finish(net.concat([b, c, d], "concat"))


def published(name: str) -> Schedule:
    """A schedule of the figure, by its name there; the thesis omits the concatenation."""
    return Schedule((Block(0, tuple(Stage(Strategy.CONCURRENT, groups) for groups in PUBLISHED[name])),))


def main() -> None:
    onnx.save(build(), read_options(__file__, output=Path("four_convolutions.onnx")).output)


if __name__ == "__main__":
    main()
