"""`builtin:mnasnet`: a space like MnasNet's around MobileNetV2 (Tan et al., 2019, section 4).

Six stages, each with a width, a number of blocks, a kernel, an expansion, and optional squeeze and excitation: 30
choices. The base is MobileNetV2, from `models/zoo/mnasnet.py`.
"""

from __future__ import annotations

from iosched.models.spaces.redraw import Choose, Redraw
from iosched.models.zoo.mnasnet import (
    EXPANSIONS,
    KERNELS,
    MOBILENET_V2,
    WIDTHS,
    StageSpec,
    block_counts,
    drawn,
    rounded,
)

EXCITES = ("no", "yes")

BASE = tuple(
    StageSpec(channels, blocks, stride, kernel=3, expansion=6, excites=False)
    for channels, blocks, stride in MOBILENET_V2
)


def chosen_stages(choose: Choose) -> tuple[StageSpec, ...]:
    """The stages by their choices."""
    return tuple(
        StageSpec(
            channels=rounded(channels * choose(WIDTHS, f"stage{number}/width")),
            blocks=choose(tuple(dict.fromkeys(block_counts(blocks))), f"stage{number}/blocks"),
            stride=stride,
            kernel=choose(KERNELS, f"stage{number}/kernel"),
            expansion=choose(EXPANSIONS, f"stage{number}/expansion"),
            excites=choose(EXCITES, f"stage{number}/excites") == "yes",
        )
        for number, (channels, blocks, stride) in enumerate(MOBILENET_V2, start=1)
    )


SPACE = Redraw("mnasnet", plan=chosen_stages, draw=drawn, base=BASE).space()
