"""The results file matches the current kernels, and ratios are of whole launches."""

from __future__ import annotations

import json

import pytest
from host_cuda import needs_compiler

from iosched.runtime.cuda.layout import Layout

RESULTS = "kernel-sectors.json"


@pytest.mark.slow
@needs_compiler
def test_the_results_match_the_current_kernels(script) -> None:
    sectors = script("kernel_sectors")
    recorded = json.loads((script("results_files").RESULTS / RESULTS).read_text())["kernels"]
    known = [each for each in recorded if each["where"] == "squeezenet"]
    found = [sectors.counted(case) for case in sectors.cases_of("squeezenet")]
    assert json.loads(json.dumps(found)) == known, (
        f"stale: run  python benchmarks/kernel_sectors.py -o benchmarks/results/{RESULTS}"
    )


def test_a_ratio_is_of_whole_launches(script) -> None:
    record = {
        Layout.NHWC.value: {"sectors": 100, "blocks": 5, "of_blocks": 10},
        Layout.NCHW.value: {"sectors": 100, "blocks": 10, "of_blocks": 10},
    }
    assert script("kernel_sectors").ratio(record, "sectors") == pytest.approx(0.5)
