"""How many kernels a run of the bundled networks launches: the numbers of benchmarks/reports/cuda-kernels.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from networks import zoo_model
from small_models import separable_operators

from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.kernels.copy import Copy
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower import lowered_model as network_module
from iosched.runtime.cuda.lower.fused import KernelChoice
from iosched.runtime.cuda.lower.hoist import is_relu
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import lower
from iosched.scheduler.baselines import sequential

_REPORT = Path(__file__).parents[4] / "benchmarks" / "reports" / "cuda-kernels.md"
PAGE = " ".join(_REPORT.read_text(encoding="utf-8").split())


def network(name: str) -> LoweredModel:
    return LoweredModel(zoo_model(name), Precision("fp32"), Layout.NCHW)


def n_kernels(found: LoweredModel) -> int:
    return sum(map(len, lower(found, sequential(found.model.graph)).plan.lanes))


def n_relus(found: LoweredModel) -> int:
    return sum(is_relu(call) for own in found.calls.values() for call in own)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "before", "after"), [("densenet121", 61, 0), ("nasnet_a", 47, 8)])
def test_the_number_of_relu_only_kernels(monkeypatch: pytest.MonkeyPatch, name: str, before: int, after: int) -> None:
    assert "none of DenseNet-121's 61 kernels of nothing but a ReLU, and 8 of NASNet-A's 47" in PAGE
    assert n_relus(network(name)) == after
    monkeypatch.setattr(network_module, "rectifiable", lambda *_: frozenset())
    assert n_relus(network(name)) == before


@pytest.mark.slow
@pytest.mark.parametrize(("name", "two", "one"), [("nasnet_a", 613, 375), ("randwire", 237, 179)])
def test_fused_separable_convolutions_reduce_the_number_of_kernels(name: str, two: int, one: int) -> None:
    assert "in strict float32 NASNet-A runs 375 kernels instead of 613, RandWire 179 instead of 237" in PAGE
    plain = network(name)
    assert n_kernels(plain) == two
    assert n_kernels(plain.with_fused(dict.fromkeys(separable_operators(plain.model), KernelChoice(0)))) == one


@pytest.mark.parametrize("name", ["squeezenet", "inception_v3", "densenet121", "resnet50"])
def test_nothing_is_copied_in_nchw(name: str) -> None:
    assert "so none of the bundled networks copies anything there" in PAGE
    found = network(name)
    lowering = lower(found, sequential(found.model.graph))
    assert not [kernel for kernel in lowering.kernels if isinstance(kernel, Copy)]
    assert not found.caller_inputs
    assert not found.caller_outputs
