"""Examples in docstrings of public names run, and print the output shown."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import onnx
import pytest
from shipped import optimized_file
from small_models import branches

import iosched

FINDER = doctest.DocTestFinder(exclude_empty=True, recurse=False)
EXAMPLES = {
    name: found
    for name in iosched.__all__
    for found in FINDER.find(getattr(iosched, name), name, globs={"iosched": iosched, "np": np})
    if found.examples
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_print_the_output_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(branches("n"), "model.onnx")
    optimized_file(Path("model.iosched.onnx"), branches())
    failed, tried = doctest.DocTestRunner(verbose=False).run(EXAMPLES[name])
    assert tried > 0
    assert failed == 0, capsys.readouterr().out


def test_the_main_entry_points_have_examples() -> None:
    assert {"InferenceSession", "load", "optimize"} <= EXAMPLES.keys()
