"""The self-test of an attached GPU: kernels, cuDNN plans, a captured graph of several streams, a model."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import product

from iosched.models.errors import DeviceError, ExecutionError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.zoo.light import light_model
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.profiler.devices.cuda.cudnn_plans import KnownCudnnPlans
from iosched.runtime.compare import rtol_of
from iosched.runtime.cuda.backend import CudaBackend, CudaModel
from iosched.runtime.cuda.execute.launches import source_calls
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower.lowering import Lowering
from iosched.runtime.cuda.samples import CUDNN_SAMPLES, SAMPLES, THREE_GROUPS, sample
from iosched.runtime.inputs import Arrays
from iosched.runtime.plan import PlanTask
from iosched.runtime.reference import SelfCheck, agrees_with_onnxruntime, passed, worst
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.precision import DEFAULT_PRECISION, PRECISIONS

MODEL = "light_squeezenet"
STREAMS = 3
_RUNS = 10


@dataclass(frozen=True, eq=False)
class _KernelCase:
    name: str
    backend: CudaBackend
    lowering: Lowering
    tasks: tuple[PlanTask, ...]
    rtol: float

    def run(self) -> str:
        """Runs each task alone.

        Raises:
            MismatchError: the kernel writes other numbers than it should.
            ExecutionError: it fails.
            DeviceError: cuDNN has no engine for it.
        """
        return passed(worst(self.backend.check_kernel(self.lowering, task, rtol=self.rtol) for task in self.tasks))


def cuda_checks(gpu: AttachedGpu) -> tuple[SelfCheck, ...]:
    """The checks of a GPU, those with the fewest requirements first."""
    own, cudnn = list(_cases(gpu, SAMPLES, tuple(Layout))), list(_cases(gpu, CUDNN_SAMPLES, (None,)))
    return (
        SelfCheck("compiler", "all kernels", partial(_compiles, gpu, own)),
        *(SelfCheck("kernels", case.name, case.run) for case in own),
        SelfCheck("graph", f"{STREAMS} streams", partial(_runs_streams, gpu)),
        *(SelfCheck("cuDNN", case.name, case.run) for case in cudnn),
        SelfCheck("model", MODEL, partial(_runs_model, gpu)),
    )


def _cases(gpu: AttachedGpu, samples: Mapping[str, str], layouts: Sequence[Layout | None]) -> Iterator[_KernelCase]:
    """Each sample in each precision of the GPU and in each layout (None is the best one), without repeated tasks."""
    precisions = [each for each in PRECISIONS if each != "tf32" or gpu.driver.gpu.has_tf32]
    for kernel, text in samples.items():
        model, known = sample(text), set[Hashable]()
        for precision, layout in product(precisions, layouts):
            backend = gpu.backend(model, precision, KnownCudnnPlans({}), layout)
            lowering = backend.lower_fused(sequential(backend.graph))
            tasks = {
                (lowering.kernels[task.kernel], task.reads, task.writes): task
                for task in lowering.plan.tasks
                if type(lowering.kernels[task.kernel]).__name__ == kernel
            }
            if new := tuple(task for form, task in tasks.items() if form not in known):
                name = " ".join((kernel, precision, *([layout.value] if layout else ())))
                yield _KernelCase(name, backend, lowering, new, rtol_of(precision))
            known.update(tasks)


def _compiles(gpu: AttachedGpu, cases: Sequence[_KernelCase]) -> str:
    """Compiles the cases' kernels in parallel; a failing kernel is reported by its own check."""
    calls = {(call.source, call.entry): call for case in cases for call in source_calls(case.lowering)}
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


def _runs_streams(gpu: AttachedGpu) -> str:
    """Repeats a plan of several streams in one graph, after overwriting its buffers."""
    branches = sample(THREE_GROUPS)
    with closing(_compiled(gpu, branches)) as model:
        streams = len(model.lowering.plan.lanes)
        if streams != STREAMS or not model.executor.is_captured:
            raise ExecutionError(
                f"the plan has {streams} streams instead of {STREAMS}, or is not captured in one CUDA graph"
            )

        def run(inputs: Arrays) -> Arrays:
            model.executor.poison()
            return model.run(inputs)

        return f"{_RUNS} runs, {agrees_with_onnxruntime(branches, run, runs=_RUNS)}"


def _runs_model(gpu: AttachedGpu) -> str:
    """Runs a network of the onnx package with concurrent groups and guessed cuDNN plans."""
    network = load_model(light_model(MODEL).SerializeToString(), name=MODEL)
    with closing(_compiled(gpu, network)) as model:
        return f"{model.kernel_count} kernels, {agrees_with_onnxruntime(network, model.run)}"


def _compiled(gpu: AttachedGpu, model: Model) -> CudaModel:
    backend = gpu.backend(model, DEFAULT_PRECISION, KnownCudnnPlans({}))
    return backend.compile(greedy(backend.graph))
