"""What an attached GPU is tried with: each kernel, plans of cuDNN, a captured graph of several streams, a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial

from iosched.models.errors import DeviceError, ExecutionError
from iosched.models.light import light_model
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.profiler.devices.cuda.cudnn_plans import KnownCudnnPlans
from iosched.profiler.devices.selfcheck import SelfCheck, agrees_with_onnxruntime, passed, worst
from iosched.runtime.cuda.backend import CudaBackend, CudaModel
from iosched.runtime.cuda.execute.launches import source_calls
from iosched.runtime.cuda.lower.plan import Lowering
from iosched.runtime.cuda.samples import CUDNN_SAMPLES, SAMPLES, THREE_GROUPS, Sample
from iosched.runtime.inputs import Arrays
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName

MODEL = "light_squeezenet"
STREAMS = 3
_RUNS = 10
_RTOL: Mapping[PrecisionName, float] = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 2e-2}


def cuda_checks(gpu: AttachedGpu) -> tuple[SelfCheck, ...]:
    """The checks of a GPU, those first that need least to work."""
    return (
        SelfCheck("compiler", "all kernels", partial(_compiles, gpu)),
        *_of_samples(gpu, "kernels", SAMPLES),
        SelfCheck("graph", f"{STREAMS} streams", partial(_runs_streams, gpu)),
        *_of_samples(gpu, "cuDNN", CUDNN_SAMPLES),
        SelfCheck("model", MODEL, partial(_runs_model, gpu)),
    )


def _of_samples(gpu: AttachedGpu, part: str, samples: Mapping[str, Sample]) -> Iterator[SelfCheck]:
    for kernel, sample, precision in _cases(gpu, samples):
        yield SelfCheck(part, f"{kernel} {precision}", partial(_computes, gpu, kernel, sample, precision))


def _cases(gpu: AttachedGpu, samples: Mapping[str, Sample]) -> Iterator[tuple[str, Sample, PrecisionName]]:
    """Each sample in each precision that it shows another kernel in and that the GPU has."""
    for kernel, sample in samples.items():
        for precision in sample.precisions:
            if precision != "tf32" or gpu.driver.gpu.has_tf32:
                yield kernel, sample, precision


def _compiles(gpu: AttachedGpu) -> str:
    """Compiles the samples' kernels side by side; of one that does not compile, its own check tells.

    Raises:
        ExecutionError: none compiles.
        DeviceError: the compiler is not installed.
    """
    lowered = (_lowered(gpu, sample, precision)[1] for _, sample, precision in _cases(gpu, SAMPLES))
    calls = {(call.source, call.entry): call for lowering in lowered for call in source_calls(lowering)}
    gpu.driver.prepare(calls.values())
    failures: list[ExecutionError | DeviceError] = []
    for call in calls.values():
        try:
            gpu.driver.load(call)
        except (ExecutionError, DeviceError) as error:
            failures.append(error)
    if len(failures) == len(calls):
        raise failures[0]
    return f"{len(calls) - len(failures)} of {len(calls)} sources compiled"


def _computes(gpu: AttachedGpu, kernel: str, sample: Sample, precision: PrecisionName) -> str:
    """Runs the kernel alone, wherever the sample's plan has it.

    Raises:
        MismatchError: it writes other numbers than it should.
        ExecutionError: it fails.
        DeviceError: cuDNN has no engine for it.
    """
    backend, lowering = _lowered(gpu, sample, precision)
    tasks = [task for task in lowering.plan.tasks if type(lowering.kernels[task.kernel]).__name__ == kernel]
    if not tasks:
        raise ExecutionError(f"the model that has this kernel was lowered without it: {lowering.kernels}")
    return passed(worst(backend.compare_alone(lowering, task, rtol=_RTOL[precision]) for task in tasks))


def _lowered(gpu: AttachedGpu, sample: Sample, precision: PrecisionName) -> tuple[CudaBackend, Lowering]:
    backend = gpu.backend(sample.model(), precision, KnownCudnnPlans({}))
    return backend, backend.lower_fused(sequential(backend.graph))


def _runs_streams(gpu: AttachedGpu) -> str:
    """Runs a plan of several streams, captured in one graph, again and again: what was there before is overwritten.

    Raises:
        MismatchError: a run gives other numbers than onnxruntime.
        ExecutionError: something fails, or the plan is not in one graph.
        DeviceError: onnxruntime is not installed.
    """
    sample = THREE_GROUPS.model()
    with closing(_compiled(gpu, sample)) as model:
        streams = len(model.lowering.plan.lanes)
        if streams != STREAMS or not model.executor.is_captured:
            raise ExecutionError(f"the plan has {streams} streams instead of {STREAMS}, or is not in one graph")

        def run(inputs: Arrays) -> Arrays:
            model.executor.poison()
            return model.run(inputs)

        return f"{_RUNS} runs, {agrees_with_onnxruntime(sample, run, runs=_RUNS)}"


def _runs_model(gpu: AttachedGpu) -> str:
    """Runs a network of the onnx package, its groups side by side, with cuDNN's first guesses.

    Raises:
        MismatchError: it computes other numbers than onnxruntime.
        ExecutionError: something fails.
        DeviceError: onnxruntime is not installed, the GPU has not enough memory, or cuDNN no engine.
    """
    network = load_model(light_model(MODEL).SerializeToString(), name=MODEL)
    with closing(_compiled(gpu, network)) as model:
        return f"{model.kernel_count} kernels, {agrees_with_onnxruntime(network, model.run)}"


def _compiled(gpu: AttachedGpu, model: Model) -> CudaModel:
    """The model with its groups side by side, and the plans that cuDNN guesses first."""
    backend = gpu.backend(model, DEFAULT_PRECISION, KnownCudnnPlans({}))
    return backend.compile(greedy(backend.graph))
