"""Counts of cuDNN plans that copy tensors, and the tables of these counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

TOP = Path(__file__).parents[2]
RESULTS = [TOP / f"benchmarks/results/cudnn-layouts-{gpu}.json" for gpu in ("h100", "v100")]


def row(layout: str, first: str, taken: str, *, preferred: bool = False) -> dict[str, Any]:
    return {
        "network": "net", "batch_size": 1, "precision": "fp32", "layout": layout, "preferred": preferred,
        "graph": "Conv stride (1, 1) pads (0, 0, 0, 0) + bias 1x3x8x8 4x1x1x3 1x4x8x8",
        "first": "eng1", "first_copies": first, "taken": "eng2", "taken_copies": taken,
    }  # fmt: skip


def test_before_is_the_first_choice_in_nhwc_and_now_the_plan_taken_in_the_preferred_layout(
    script: Callable[[str], ModuleType],
) -> None:
    layouts = script("cudnn_layouts")
    rows = [
        *[row("nhwc", "tensors", "nothing")] * 2, row("nhwc", "generic", "generic"), row("nhwc", "slices", "slices"),
        *[row("nchw", "tensors", "nothing", preferred=True)] * 2, row("nchw", "nothing", "tensors", preferred=True),
    ]  # fmt: skip
    found = [{"about": {"device": "A GPU", "cudnn": "9.19.0"}, "graphs": rows}]
    assert layouts.before_and_now(found)[1] == [["A GPU", "fp32", *"421310"]]
    assert layouts.table(found)[1] == [
        ["A GPU, cuDNN 9.19.0", "fp32", "1", "NHWC", "4", "0, 1, 1, 2", "2, 1, 1, 0"],
        ["A GPU, cuDNN 9.19.0", "fp32", "1", "**NCHW**", "3", "1, 0, 0, 2", "2, 0, 0, 1"],
    ]
    assert layouts.left(found)[1] == [["A GPU", "fp32", "net", "tensors", "1x3x8x8, 4x1x1x3"]]
