"""The baseline of the transformer benchmark: one fused attention node of onnxruntime computes the same."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest
from small_models import data, run


@pytest.mark.parametrize("name", ["bert_mini", "decoder_mini"])
def test_fused_attention_computes_the_same(script: Callable[[str], ModuleType], name: str) -> None:
    build = import_module(f"iosched.models.zoo.{name}").build
    random = np.random.default_rng(0)
    inputs = {"ids": random.integers(0, 8192, (2, 12)), "mask": np.ones((2, 12), np.int64)}
    inputs["mask"][1, 8:] = 0
    inputs = {value.name: inputs[value.name] for value in build(2, 12).graph.input}
    fused = script("attention").with_fused_attention(build(2, 12))
    assert sum(node.op_type == "MultiHeadAttention" for node in fused.graph.node) == 4
    assert not any(node.op_type == "Softmax" for node in fused.graph.node)
    expected, found = run(data(build(2, 12)), inputs)["output"], run(data(fused), inputs)["output"]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
