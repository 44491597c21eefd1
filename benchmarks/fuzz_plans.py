"""Opens and runs damaged plan files under sanitizers.

    python benchmarks/fuzz_plans.py                      # 10,000 files, in a minute
    python benchmarks/fuzz_plans.py --first 1234 --count 1

Each file is drawn from its number (`tests/support/plan_files.py`): words, sections, weights or a kernel's model of a
valid file are changed, and its checksums are corrected or not. A file must be refused with an error, or its programs
must run twice on buffers of the described sizes. It is a fault if the process ends, if a file takes more than 30 s, or
if it opens with wrong checksums; each fault is printed with the number of its file.

onnxruntime 1.32 itself ends the process for some models, in a plan file or not, which count as faults here: a Split
whose number of outputs is not `num_outputs`, a pool in blocked layout with an empty output, and a QLinearConcat without
a zero point (files 15289, 28904 and 123032).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from command_line import read_options

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/support"))

import plan_files

BATCH = 200  # files in a process


def main(words: Sequence[str] | None = None) -> int:
    """The number of faults."""
    options = read_options(__file__, words, first=0, count=10_000)
    counts: Counter[str] = Counter()
    end = options.first + options.count
    with tempfile.TemporaryDirectory() as folder:
        driver = plan_files.build_driver(Path(folder))
        for first in range(options.first, end, BATCH):
            for each in plan_files.outcomes(driver, range(first, min(first + BATCH, end))):
                kind, _, text = each.text.partition(" ")
                counts["fault" if each.is_fault else "ran" if kind == "opened" and not text else kind] += 1
                if each.is_fault:
                    print(f"{each.number}: {each.text}", flush=True)
    print(dict(counts))
    return counts["fault"]


if __name__ == "__main__":
    sys.exit(os.EX_SOFTWARE if main() else 0)
