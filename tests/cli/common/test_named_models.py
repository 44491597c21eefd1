"""Models on one command line, by name."""

from __future__ import annotations

from iosched.cli.common.named_models import parse_numbered


def test_a_name_that_is_taken_gets_a_number() -> None:
    texts = ("x/a.onnx", "y/a.onnx", "b.onnx", "a=c.onnx", "a-2=d.onnx")
    found = parse_numbered(texts)
    assert [each.name for each in found] == ["a", "a-2", "b", "a-3", "a-2-2"]
    assert [each.source for each in found] == ["x/a.onnx", "y/a.onnx", "b.onnx", "c.onnx", "d.onnx"]
