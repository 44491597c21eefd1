"""The tables of where the time goes group kernels as the report describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def page(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("cpu_profile_tables")


def kernel(kind: str, us: float, *operators: str) -> Mapping[str, object]:
    return {"name": f"{kind} {operators}", "kind": kind, "us": us, "operators": operators}


def profiled(latency_us: float, kernels: Sequence[Mapping[str, object]], **more: object) -> Mapping[str, object]:
    return {"latency_us": [[latency_us, 50 * latency_us]], "kernels": kernels, **more}


@pytest.fixture
def entry() -> Mapping[str, Any]:
    """onnxruntime runs a and b separately; ours too, with waits; OpenVINO fuses them."""
    apart = [kernel("1x1 convolution", 60, "a"), kernel("elementwise", 30, "b"), kernel("pooling", 10, "c")]
    ours = [kernel("1x1 convolution", 50, "a"), kernel("elementwise", 20, "b"), kernel("pooling", 30, "c")]
    as_one = [kernel("1x1 convolution", 65, "a", "b"), kernel("pooling", 12, "c")]
    return {
        "flops": 1,
        "threads": [2, 1],
        "operators": {"a": "Conv", "b": "Add", "c": "MaxPool"},
        "libraries": {
            "onnxruntime": {"2": profiled(110, apart), "1": profiled(200, apart)},
            "ours": {"2": profiled(115, ours, calls_us=4.0, waiting_us=6.0), "1": profiled(180, ours)},
            "openvino": {"2": profiled(80, as_one), "1": profiled(150, as_one)},
        },
    }


def test_the_parts_of_a_latency_add_up(page: ModuleType, entry: Mapping[str, Any]) -> None:
    for library in entry["libraries"].values():
        for each in library.values():
            assert sum(page.parts_us(each).values()) == pytest.approx(page.latency_us(each))
    assert page.parts_us(entry["libraries"]["ours"]["2"])["rest"] == pytest.approx(5)
    assert page.time_table(entry)[1][-1] == ["more than 1/2 of one core", "0.01", "", "0.03", "", "0.01", ""]


def test_operators_that_one_library_runs_together_are_compared_together(
    page: ModuleType, entry: Mapping[str, Any]
) -> None:
    assert page.groups(entry) == {
        ("a", "b"): {"onnxruntime": 90, "ours": 70, "openvino": 65},
        ("c",): {"onnxruntime": 10, "ours": 30, "openvino": 12},
    }
    _, (first, second) = page.loss_table(entry)
    assert first[0] == "MaxPool: `c`"
    assert second == ["Conv, Add: `a`", "90", "70", "65"]


@pytest.mark.parametrize(
    ("op_type", "weight", "kind"),
    [
        ("Conv", (64, 32, 1, 1), "1x1 convolution"), ("FusedConv", (64, 32, 3, 3), "other convolution"),
        ("Conv", (32, 1, 3, 3), "depthwise convolution"), ("GroupConvolution", (), "depthwise convolution"),
        ("GroupConvolution", (64, 8, 1, 1), "1x1 convolution"), ("Convert", (), "layout change"),
        ("ReorderInput", (), "layout change"), ("GlobalAveragePool", (), "pooling"), ("QuickGelu", (), "elementwise"),
    ],
)  # fmt: skip
def test_kinds_of_kernels(
    script: Callable[[str], ModuleType], op_type: str, weight: tuple[int, ...], kind: str
) -> None:
    assert script("cpu_profilers").kind_of(op_type, weight) == kind
