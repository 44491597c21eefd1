"""On a GPU, kernels fused from a depthwise and a pointwise convolution or slices of a Concat compute the same."""

from __future__ import annotations

import pytest
from gpu_kernels import IS_DESK
from gpu_plans import expected_outputs, relative_error
from scripted import fire
from small_models import separables

from iosched.models import zoo
from iosched.models.load import load_model
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.profiler.devices.cuda.cudnn_plans import KnownCudnnPlans
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import preferred_layout
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.timed_choices import fusion_keys
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy

TOLERANCE = {"fp32": 1e-4, "tf32": 2e-2, "fp16": 2e-2}


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
@pytest.mark.parametrize("name", ["randwire", "nasnet_a", "googlenet"])
def test_fused_kernels_compute_the_same_as_onnxruntime(gpu: AttachedGpu, name: str, precision: str) -> None:
    small = fire() if name == "googlenet" else separables()
    model = small if IS_DESK else load_model(zoo.build(name).SerializeToString(), name=name)
    computed = Precision(precision)
    network = LoweredModel(model, computed, preferred_layout(computed.name, gpu.driver.gpu), gpu=gpu.driver.gpu)
    kinds = ("ReluSepConv", "Concat")
    pinned = {key: "one kernel, variant 0" for kind in kinds for key in fusion_keys(network, kind).values()}
    compiled = gpu.backend(model, precision, KnownCudnnPlans(pinned)).compile(greedy(model.graph))
    assert any(key.startswith("fused ") for key in compiled.cudnn_plans)
    for seed in (1, 2):
        inputs = random_inputs(model.graph.inputs, seed=seed)
        compiled.executor.poison()
        assert relative_error(compiled.run(inputs), expected_outputs(model, inputs)) < TOLERANCE[precision]
    compiled.close()
