"""Profiles one model by onnxruntime, OpenVINO and our executor; `cpu_profile.py` runs each in a process.

Every profiler answers three requests: `time` (latencies of a few runs without a profile), `profiled` (the same with a
profile) and `kernels` (the `Kernel`s of the profiled runs). Times are medians of the faster half of the runs, in
microseconds, to exclude interference.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cpu_models import chain

from iosched.models.model import Model
from iosched.models.source import read_proto
from iosched.runtime.cpu.backend import CompiledModel, CpuBackend
from iosched.runtime.cpu.kernels import Copy, Program
from iosched.runtime.cpu.kernels import Kernel as PlanKernel
from iosched.runtime.cpu.native import NativeExecutor
from iosched.runtime.cpu.ownership import owner_of, tensor_owners
from iosched.runtime.cpu.python_executor import open_program
from iosched.runtime.hazards import CheckedPlan
from iosched.runtime.inputs import random_inputs
from iosched.runtime.plan import Buffer, ExecutionPlan, MemorySpace, PlanTask, View
from iosched.runtime.reference import Reference, ReferenceSettings, bound_source
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.baselines import sequential

WARM, RUNS = 3, 8
ALONE_RUNS = 12
EMPTY_CALLS = 64

Answers = Mapping[str, Callable[[], Any]]
Coarse = Mapping[str, tuple[str, ...]]

_LANE = re.compile(r"\[\d+\]$")  # after the name of a node in that of a task for a part of it

_PRODUCTS = ("Gemm", "MatMul", "FusedMatMul", "FusedGemm", "FullyConnected")
_LAYOUT = ("ReorderInput", "ReorderOutput", "Reorder", "Transpose", "Convert", "Cast")
_COPIES = (
    "Concat", "Concatenation", "Slice", "StridedSlice", "Pad", "Split", "Gather", "Reshape", "Squeeze", "Unsqueeze",
    "Flatten", "Copy", "Expand", "Tile", "ShuffleChannels",
)  # fmt: skip


def _kernel(name: str, kind: str, operators: Sequence[str], us: float) -> dict[str, Any]:
    """One kernel of a library, with the latency that it adds to a run.

    Args:
        name: of the library.
        kind: of its work, a few words for a table.
        operators: names of the operators of the computation graph that it computes, as far as known.
        us: on several threads of ours, the sum over the threads divided by their number.
    """
    return {"name": name, "kind": kind, "operators": operators, "us": us}


def kind_of(op_type: str, weight: Sequence[int] = ()) -> str:
    """The kind of work of an operator; `weight` is the shape of a convolution's filters."""
    if "Conv" in op_type and op_type != "Convert":
        if (len(weight) > 1 and weight[1] == 1 and weight[0] > 1) or (not weight and op_type == "GroupConvolution"):
            return "depthwise convolution"
        return "1x1 convolution" if all(extent == 1 for extent in weight[2:]) else "other convolution"
    if op_type in _PRODUCTS:
        return "matrix product"
    if "Pool" in op_type or op_type.startswith("Reduce"):
        return "pooling"
    if op_type in _LAYOUT:
        return "layout change"
    return "copy" if op_type in _COPIES else "elementwise"


def _typical(us: np.ndarray) -> np.ndarray:
    """The median over the faster half of the runs of an array (runs, ...)."""
    totals = us.reshape(len(us), -1).sum(axis=1)
    return np.median(us[totals <= np.median(totals)], axis=0)


class Owners:
    """The operators of the computation graph that a kernel computes, by its names in libraries."""

    def __init__(self, model: Model) -> None:
        """Reads the names of tensors and nodes in the original model."""
        self._by_name = dict(tensor_owners(model))
        # of convolutions, by the names of their nodes and, of the last one, of their operator
        self.filters: dict[str, Sequence[int]] = {}
        graph = read_proto(model.original).graph
        shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        later: dict[str, str] = {}  # for a tensor, the operator of a node that reads it
        for node in reversed(graph.node):
            near = [*(self._by_name.get(name) for name in node.output), *(later.get(name) for name in node.output)]
            owner = next((name for name in near if name is not None), None)
            if owner is None:
                continue
            later.update(dict.fromkeys(node.input, owner))
            for name in (node.name or node.output[0], node.output[0].removesuffix(":0")):  # OpenVINO has no number
                self._by_name.setdefault(name, owner)
                if node.op_type == "Conv":
                    self.filters[name] = shapes.get(node.input[1], ())
                    self.filters.setdefault(owner, self.filters[name])

    def of(self, names: Iterable[str]) -> tuple[str, ...]:
        """The operators of kernels with these names, each once."""
        found = (owner_of(_undecorated(name), self._by_name) for name in names)
        return tuple(dict.fromkeys(owner for owner in found if owner is not None))


def _undecorated(name: str) -> str:
    """The name without the suffix of libraries for convolutions and former normalizations."""
    return name.removesuffix("/WithoutBiases").removesuffix("_nchwc").removesuffix("_mul").removesuffix("_bn")


# --- onnxruntime --------------------------------------------------------------------------------------------------


def _onnxruntime(model: Model, threads: int) -> Answers:
    inputs, owners = random_inputs(model.graph.inputs), Owners(model)
    plain = Reference(model, ReferenceSettings(intra_threads=threads))
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    folder = _profiled_in(options)
    source, kept = bound_source(model, options)
    text = source if isinstance(source, bytes) else str(source)
    session = onnxruntime.InferenceSession(text, options, providers=["CPUExecutionProvider"])
    feeds = {value.name: inputs[value.name] for value in session.get_inputs()}

    def profiled() -> None:
        for _ in range(WARM + RUNS):
            session.run(None, feeds)

    def kernels() -> Any:
        del kept[:]
        found, own_us = _events(Path(session.end_profiling())), profiling_us(threads)
        folder.cleanup()
        us = np.maximum(_typical(np.transpose([event.us for event in found])) - own_us, 0.0)
        each = [
            _kernel(e.name, kind_of(e.op_type, e.filters), owners.of([e.name]), float(own))
            for e, own in zip(found, us, strict=True)
        ]
        return {"kernels": each, "profiling_us": own_us}

    return {"time": lambda: plain.time(inputs, WARM + RUNS)[WARM:], "profiled": profiled, "kernels": kernels}


@dataclass(frozen=True)
class _Event:
    """A node of a session, with the microseconds of each of its runs but the first ones."""

    name: str
    op_type: str
    filters: Sequence[int]
    us: Sequence[float]


def _profiled_in(options: Any) -> tempfile.TemporaryDirectory[str]:
    """Makes the session write its profile to the returned folder."""
    folder = tempfile.TemporaryDirectory(prefix="iosched-")
    options.enable_profiling = True
    options.profile_file_prefix = str(Path(folder.name) / "profile")
    return folder


def _events(path: Path) -> list[_Event]:
    """The nodes of a profile that onnxruntime wrote, in the order of the session's nodes."""
    nodes: dict[int, dict[str, Any]] = {}
    us: dict[int, list[float]] = defaultdict(list)
    for event in json.loads(path.read_text(encoding="utf-8")):
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            index = int(event["args"]["node_index"])
            nodes.setdefault(index, event)
            us[index].append(event["dur"])
    found = []
    for index, event in sorted(nodes.items()):
        shapes = [next(iter(entry.values()), []) for entry in event["args"].get("input_type_shape", [])]
        name = event["name"].removesuffix("_kernel_time")
        filters = shapes[1] if len(shapes) > 1 else ()
        found.append(_Event(name, event["args"]["op_name"], filters, us[index][WARM:]))
    return found


def profiling_us(threads: int) -> float:
    """Profiled time of a nearly empty node: the overhead of onnxruntime's profiler."""
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    folder = _profiled_in(options)
    source = chain(EMPTY_CALLS, ("Neg",), (1, 16))
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    for _ in range(WARM + ALONE_RUNS):
        session.run(None, {"t0": np.ones((1, 16), np.float32)})
    events = _events(Path(session.end_profiling()))
    folder.cleanup()
    return float(np.mean([us for event in events for us in event.us]))


# --- OpenVINO -----------------------------------------------------------------------------------------------------


def _openvino(model: Model, threads: int) -> Answers:
    inputs, owners = random_inputs(model.graph.inputs), Owners(model)
    from iosched.profiler.baselines.openvino import open_openvino

    plain = open_openvino(model, threads, inputs)
    compiled = _compiled_by_openvino(model, threads)
    request = compiled.create_infer_request()
    runs: list[dict[str, float]] = []
    types: dict[str, str] = {}

    def profiled() -> None:
        for index in range(WARM + RUNS):
            request.infer(dict(inputs), share_inputs=True, share_outputs=True)
            if index < WARM:
                continue
            timed = [each for each in request.profiling_info if each.real_time.total_seconds() > 0]
            types.update({each.node_name: each.node_type for each in timed})
            runs.append({each.node_name: each.real_time.total_seconds() * 1e6 for each in timed})

    def kernels() -> Any:
        layers = {}
        for node in compiled.get_runtime_model().get_ordered_ops():
            info = node.get_rt_info()
            names = info["originalLayersNames"].astype(str) if "originalLayersNames" in info else ""
            layers[node.friendly_name] = [name for name in names.split(",") if name] or [node.friendly_name]
        us = dict(zip(types, _typical(np.array([[run.get(name, 0.0) for name in types] for run in runs])), strict=True))
        found = []
        for name, op_type in types.items():
            covered = [_undecorated(each) for each in layers.get(name, [name])]
            operators = owners.of(covered)
            filters = next((owners.filters[each] for each in (*covered, *operators) if each in owners.filters), ())
            found.append(_kernel(name, kind_of(op_type, filters), operators, float(us[name])))
        return {"kernels": found}

    return {"time": lambda: plain.time(WARM + RUNS)[WARM:], "profiled": profiled, "kernels": kernels}


def _compiled_by_openvino(model: Model, threads: int) -> Any:
    import openvino

    core = openvino.Core()
    original = model.original
    network = core.read_model(str(original) if isinstance(original, Path) else original)
    network.reshape({name: list(shape) for name, shape in model.bindings.items()})
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    return core.compile_model(network, "CPU", {**settings, "PERF_COUNT": "YES"})


# --- our executor -------------------------------------------------------------------------------------------------


def _own(model: Model, threads: int) -> Answers:
    inputs = random_inputs(model.graph.inputs)
    backend = CpuBackend(model, lanes=threads)
    compiled = backend.compile(sequential(backend.graph))
    assert isinstance(compiled.executor, NativeExecutor), "the profile is that of the compiled executor"
    executor = compiled.executor
    given = {b.name: inputs[b.name] for b in compiled.lowering.plan.buffers if b.is_input}
    spans: list[np.ndarray] = []

    def profiled() -> None:
        spans.append(executor.trace(given, WARM + RUNS)[1][WARM:])

    def kernels() -> Any:
        call_us = empty_call_us(backend.cpus.of(threads)[:1])
        return _told(compiled, np.concatenate(spans), _operators_by_node(backend), threads, call_us)

    return {"time": lambda: compiled.time(inputs, WARM + RUNS)[WARM:], "profiled": profiled, "kernels": kernels}


def _told(compiled: CompiledModel, spans_us: np.ndarray, coarse: Coarse, lanes: int, call_us: float) -> dict[str, Any]:
    """Profile of a plan's runs: kernels, their calls, and waiting lanes; all divided by the number of lanes.

    In a task that is a session of several nodes, its time is divided in proportion to the nodes' times in runs of
    that session alone.
    """
    plan, found = compiled.lowering.plan, []
    whole_us = spans_us[..., 1].max(axis=1)
    spans_us = spans_us[whole_us <= np.median(whole_us)]
    task_us = np.median(spans_us[..., 1] - spans_us[..., 0], axis=0)
    shares: dict[int, list[tuple[_Event, float]]] = {}
    for task, of_task_us in zip(plan.tasks, task_us, strict=True):
        if task.kernel not in shares:
            shares[task.kernel] = _shares(compiled.lowering.kernels[task.kernel])
        us = max(float(of_task_us) - call_us, 0.0)
        calls = [_LANE.sub("", name) for name in task.name.split("+")]
        for call, (event, share) in zip(calls, shares[task.kernel], strict=True):
            kind = kind_of(event.op_type, event.filters)
            found.append(_kernel(call, kind, coarse.get(call, ()), us * share / lanes))
    return {
        "kernels": found,
        "calls_us": min(call_us * len(plan.tasks), float(task_us.sum())) / lanes,
        "call_us": call_us,
        "waiting_us": _waiting_us(plan, spans_us) / lanes,
        "tasks": [len(lane) for lane in plan.lanes],
    }


def _operators_by_node(backend: CpuBackend) -> Coarse:
    """For the name of each optimized node, the operators of its unit."""
    nodes = backend.kernels.nodes
    return {
        nodes[index].name or nodes[index].output[0]: backend.coarse.units.members[unit]
        for unit, indices in backend.coarse.nodes.items()
        for index in indices
    }


def _waiting_us(plan: ExecutionPlan, spans_us: np.ndarray) -> float:
    """Total waiting time of the lanes: from the end of a task to the start of the next, and for the last lane."""
    waited, first = 0.0, 0
    ends = spans_us[:, :, 1].max(axis=1)
    for lane in plan.lanes:
        own = spans_us[:, first : first + len(lane)]
        first += len(lane)
        if len(lane):
            begun = np.concatenate([np.zeros((len(own), 1)), own[:, :, 1]], axis=1)
            until = np.concatenate([own[:, :, 0], ends[:, None]], axis=1)
            waited += float(np.median(until - begun, axis=0).sum())
        else:
            waited += float(np.median(ends))
    return waited


def _shares(kernel: PlanKernel) -> list[tuple[_Event, float]]:
    """The nodes of a kernel, each with its share of the kernel's time when it runs alone."""
    if isinstance(kernel, Copy):
        return [(_Event("", "Copy", (), ()), 1.0)]
    options = load_onnxruntime().SessionOptions()
    options.intra_op_num_threads = 1
    folder = _profiled_in(options)
    session = open_program(kernel, options)
    feeds = _sample_feeds(session)
    for _ in range(WARM + ALONE_RUNS):
        session.run(None, feeds)
    events = _events(Path(session.end_profiling()))
    folder.cleanup()
    own_us = _noted_on_one_thread_us()
    means = [max(float(np.mean(event.us)) - own_us, 0.0) for event in events]
    total = sum(means)
    return [(event, us / total if total else 1 / len(means)) for event, us in zip(events, means, strict=True)]


@cache
def _noted_on_one_thread_us() -> float:
    return profiling_us(1)


def _sample_feeds(session: Any) -> dict[str, np.ndarray]:
    numpy_types = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}
    rng = np.random.default_rng(0)
    return {
        value.name: np.abs(rng.standard_normal(value.shape)).astype(numpy_types.get(value.type, np.float32))
        for value in session.get_inputs()
    }


def empty_call_us(cpus: Sequence[int]) -> float:
    """Latency of a nearly empty task: the call of a session."""
    views = [View(f"t{index}", "float32", (1, 16), 0, 64) for index in range(EMPTY_CALLS + 1)]
    tasks = tuple(PlanTask(f"call {i}", 0, (views[i],), (views[i + 1],)) for i in range(EMPTY_CALLS))
    spaces = {0: MemorySpace.INPUT, EMPTY_CALLS: MemorySpace.OUTPUT}
    buffers = tuple(Buffer(v.buffer, spaces.get(i, MemorySpace.ARENA), 64, 64 * i) for i, v in enumerate(views))
    plan = ExecutionPlan((tasks,), buffers, 64 * len(views), outputs=(views[-1],))
    program = Program(lambda: chain(1, ("Neg",), (1, 16)), ("t0",), ("t1",))
    with NativeExecutor(CheckedPlan(plan), [program], cpus=cpus) as executor:
        spans_us = executor.trace({"t0": np.ones((1, 16), np.float32)}, 60)[1][10:, 1:-1]
        return float(np.median(spans_us[..., 1] - spans_us[..., 0]))


LIBRARIES: Mapping[str, Callable[[Model, int], Answers]] = {
    "onnxruntime": _onnxruntime, "ours": _own, "openvino": _openvino,
}  # fmt: skip
"""The words of each library on a number of threads."""
