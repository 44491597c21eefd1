"""The examples in `docs/python.md` run as they stand, and print what stands below them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
from lowering import proto_of, weight
from onnx import helper

PAGE = Path(__file__).parent.parent / "docs" / "python.md"
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)


def two_branches() -> onnx.ModelProto:
    """Two branches of two convolutions each, and their Concat."""
    weights = {f"w{name}": weight(32, 32, 3, 3, seed=ord(name)) for name in "abcd"}
    nodes = [
        helper.make_node("Conv", [source, f"w{name}"], [name], pads=[1] * 4)
        for source, name in ("xa", "ab", "xc", "cd")
    ]
    nodes.append(helper.make_node("Concat", ["b", "d"], ["y"], axis=1))
    return proto_of(nodes, {"x": (1, 32, 28, 28)}, ["y"], weights)


def test_the_examples_print_what_stands_below_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(two_branches(), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    for code, printed in EXAMPLES:
        exec(compile(code, str(PAGE), "exec"), names)
        assert capsys.readouterr().out == printed


def test_every_example_says_what_it_prints() -> None:
    assert len(EXAMPLES) == PAGE.read_text().count("```python") == 11
