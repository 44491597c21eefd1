"""Everything that one network is compared in on one GPU: our schedules, other frameworks, all measured in turn."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import IO, Any

import numpy as np
from gpu_cases import JAX, ONNXRUNTIME, NetworkCase
from gpu_prepare import PAPER, Paper, Peer, Prepared, alone, on_paper, timed
from testbed import compared, gpu_spec

from iosched import Effort, IoschedError, Model, Schedule, SearchResult, search
from iosched.models.version import iosched_version
from iosched.profiler.baselines.gpu_openers import GpuSetup, open_on_gpu
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.profiler.devices.cuda.device import GPU_EFFORT
from iosched.profiler.devices.cuda.gpu_cost import CudaStageCost, open_cost
from iosched.profiler.devices.gpus import spec_of
from iosched.profiler.measuring.interleaved_models import Budget, measure_interleaved
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cuda.backend import CudaBackend, CudaModel
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import Layout, preferred_layout
from iosched.runtime.cuda.lower.lowering import CUDA_LOWERING
from iosched.runtime.cuda.onnxruntime.provider import Provider
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays
from iosched.runtime.processor import cpu_name
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.precision import precision_named

KINDS = ("kernel", "copy", "fill", "host", "graph", "empty", "wait", "record")
"""Of `CUgraphNodeType`, by its numbers."""


def node_counts(graphs: Iterable[Any]) -> dict[str, int] | None:
    """Nodes of CuPy's graphs by kind, and edges between them; None where there is no driver to ask."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    found: Counter[str] = Counter()
    for graph in graphs:
        handle, count, edges = ctypes.c_void_p(graph.graph), ctypes.c_size_t(), ctypes.c_size_t()
        _check(cuda.cuGraphGetNodes(handle, None, ctypes.byref(count)))
        nodes = (ctypes.c_void_p * count.value)()
        _check(cuda.cuGraphGetNodes(handle, nodes, ctypes.byref(count)))
        found.update(_kind(cuda, node) for node in nodes)
        get_edges = cuda.cuGraphGetEdges_v2 if hasattr(cuda, "cuGraphGetEdges_v2") else None
        if get_edges is not None:
            _check(get_edges(handle, None, None, None, ctypes.byref(edges)))
            found["edges"] += edges.value
    return dict(sorted(found.items()))


def _kind(cuda: Any, node: int) -> str:
    kind = ctypes.c_int()
    _check(cuda.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
    return KINDS[kind.value] if kind.value < len(KINDS) else f"kind {kind.value}"


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA's driver answered {status}")


LIMITS = {"fp32": 1e-4, "tf32": 2e-2, "fp16": 2e-2}
"""The largest error, relative to the largest output, with which our results count as correct."""

QUICK = Effort(
    bound_slack=GPU_EFFORT.bound_slack, max_measurements=30, tolerance=GPU_EFFORT.tolerance, remeasure_rounds=0
)
"""A search for minutes that are dear: half of the measurements in a block, and no tuning of cuDNN's plans in stages."""

LEAST_SEARCH_S = 3.0
"""No search is begun that has less time than this: it would not get through the single operators."""

ROUNDS, MOST_COMPARED_S = 20, 8.0

Lock = IO[bytes]
NO_BARRIERS = ", no barriers"
BY_DEMAND = ", by demand"


class CaseRun:
    """One case on one GPU. What is compiled stays there until the end, so that all of it is measured in turn."""

    def __init__(
        self,
        case: NetworkCase,
        prepared: Prepared,
        gpu: AttachedGpu,
        database: ProfileDatabase,
        deadline: float,
        lock: Lock,
    ) -> None:
        self._case, self._prepared, self._gpu = case, prepared, gpu
        self._deadline, self._lock = deadline, lock
        self._before = _clock(gpu)
        self._seconds = prepared.seconds
        self._ours: dict[str, CudaModel] = {}
        self._peers: dict[str, Peer] = {}
        self._missing: dict[str, str] = {}
        preferred = preferred_layout(precision_named(case.precision), gpu.driver.gpu)
        with timed(self._seconds, "open"):
            layout = None if case.layout == "timed" else preferred
            self._opened = open_cost(
                gpu, prepared.model, case.precision, database, layout=layout,
                suggest=lambda: self._paper().schedule.stages,
            )  # fmt: skip
        self._others = [each for each in Layout if case.layout == "both" and each is not preferred]

    def close(self) -> None:
        """Frees what lies on the GPU."""
        for compiled in self._ours.values():
            compiled.close()

    def records(self) -> Iterator[dict[str, Any]]:
        """What was found: without a search, and then with one."""
        graph = self._opened.backend.graph
        paper = self._paper()
        unsearched = {"sequential": sequential(graph), "greedy": greedy(graph), "paper": paper.schedule}
        began = time.monotonic()
        for name, schedule in unsearched.items():
            self._compile(name, schedule)
        compiled_s = (time.monotonic() - began) / len(self._ours)
        for layout in self._others:
            about = self._prepared.model, self._case.precision, self._opened.database
            opened = open_cost(self._gpu, *about, layout=layout)
            for name, schedule in unsearched.items():
                self._compile(f"{name}, {layout.value}", schedule, backend=opened.backend)
        self._open_peers()
        first = self._compared({"paper": {"gpu": paper.spec.name, "seconds": paper.seconds}})
        if not self._case.strategies:
            yield {**first, "complete": True}
            return
        yield first
        reserve_s = (len(self._case.strategies) + 1) * compiled_s + 1.5 * self._seconds["compare"]
        until = self._deadline - reserve_s
        if until - time.monotonic() < LEAST_SEARCH_S:
            yield {**first, "complete": not self._case.tuned, "search": {**first["search"], "kind": "no time for one"}}
            return
        searches = self._searched(until)
        record = self._compared({**first["search"], **searches})
        yield {**record, "complete": not (self._case.tuned and searches["ended_by_time"])}

    def _paper(self) -> Paper:
        """The schedule of the simulated GPU, again if the GPU turned out to be another one than it was made for."""
        made, spec = self._prepared.paper, spec_of(self._gpu.name) or gpu_spec(PAPER)
        return made if made.spec == spec else on_paper(self._prepared.model, spec, self._case.precision)

    def _compile(self, name: str, schedule: Schedule, *, backend: CudaBackend | None = None, **way: bool) -> None:
        with timed(self._seconds, f"compile {name}"):
            compiled = (backend or self._opened.backend).compile(schedule, **way)
            self._ours[name] = compiled
            compiled.run(self._prepared.inputs)

    def _open_peers(self) -> None:
        for way in self._case.ways:
            with timed(self._seconds, f"open {way}"):
                try:
                    found, missing = open_peers(way, self._prepared, self._gpu, self._case.precision)
                except (IoschedError, ImportError, ValueError, RuntimeError) as error:
                    found, missing = {}, {way: f"{type(error).__name__}: {error}"[:300]}
            self._peers |= found
            self._missing |= missing

    def _searched(self, until: float) -> dict[str, Any]:
        """Searches as long as there is time, compiles what is found, and tells what it took.

        `both` is searched first, since the others find most of their stages measured.
        """
        opened, effort = self._opened, GPU_EFFORT if self._case.tuned else QUICK
        found: dict[str, Any] = {"kind": "as optimize does" if self._case.tuned else "quick", "strategies": {}}
        results: dict[str, SearchResult] = {}
        for strategy in self._case.strategies:
            cost = replace(opened, dropped={})
            began = time.monotonic()
            over = {"effort": effort, "deadline": lambda: time.monotonic() > until}
            results[strategy] = result = search(opened.backend.graph, cost, strategy=strategy, **over)
            found["strategies"][strategy] = _effort_made(result, cost, time.monotonic() - began)
        found["ended_by_time"] = time.monotonic() > until
        for index, (strategy, result) in enumerate(results.items()):
            self._compile(strategy, result.schedule)
            if index == 0:
                self._compile(strategy + NO_BARRIERS, result.schedule, barriers=False)
                self._compile(strategy + BY_DEMAND, result.schedule, by_demand=True)
        return found

    def _compared(self, searches: Mapping[str, Any]) -> dict[str, Any]:
        """All alternatives in turn, A B A B, with what else belongs to the record."""
        prepared, ours, peers = self._prepared, self._ours, self._peers
        outputs = {name: partial(_run_on_poison, each, prepared.inputs) for name, each in ours.items()}
        outputs |= {name: each.outputs for name, each in peers.items() if each.outputs is not None}
        errors = {name: relative_error(each(), prepared.expected) for name, each in outputs.items()}
        candidates = {name: Candidate(each.executor.time_launches) for name, each in ours.items()}
        candidates |= {name: Candidate(each.time) for name, each in peers.items()}
        with ExitStack() as until_compared:
            with timed(self._seconds, "wait for the host"):
                until_compared.enter_context(alone(self._lock))
            with timed(self._seconds, "compare"):
                found = measure_interleaved(candidates, Budget(ROUNDS, MOST_COMPARED_S), rest=lambda: None)
        return {
            "complete": False,
            "gpu": self._gpu.name,
            "versions": versions(self._gpu),
            "host": {"processor": cpu_name(), "cores": len(os.sched_getaffinity(0))},
            "network": self._case.network,
            "batch": self._case.batch,
            "precision": self._case.precision,
            "layout": self._opened.backend.layout.value,
            "clock": {"before": self._before, "after": _clock(self._gpu)},
            "search": dict(searches),
            "seconds": dict(self._seconds),
            "relative_error": errors,
            "correct": all(errors[name] < LIMITS[self._case.precision] for name in ours),
            "kernels": {name: each.kernel_count for name, each in ours.items()},
            "nodes": {name: node_counts(each.executor.graphs) for name, each in ours.items()},
            "plans": dict(ours["sequential"].cudnn_plans),
            "workspaces_nbytes": {p.key: p.workspace_nbytes for _, p in ours["sequential"].executor.cudnn_plans},
            "missing": self._missing,
            "notes": list(self._opened.backend.notes),
            "roofline_us": roofline_us(prepared.model, self._gpu.name, self._case.precision),
            **latencies(found),
        }


def latencies(found: Mapping[str, Measurement]) -> dict[str, Any]:
    """Medians, all samples in a row and from an idle GPU, and how many times as fast as the sequential schedule."""
    samples_us = {name: [round(sample, 2) for sample in each.samples_us] for name, each in found.items()}
    return {
        "median_us": {name: round(each.median_us, 2) for name, each in found.items()},
        "samples_us": samples_us,
        "idle_us": {name: [round(sample, 2) for sample in each.rested_us] for name, each in found.items()},
        "times_as_fast": {
            name: {"median": round(each.value, 4), "low": round(each.low, 4), "high": round(each.high, 4)}
            for name, each in compared(samples_us, "sequential").items()
        },
    }


def _effort_made(result: SearchResult, cost: CudaStageCost, seconds: float) -> dict[str, Any]:
    return {
        "seconds": round(seconds, 2),
        "measurements": cost.measurements,
        "from_database": cost.cache_hits,
        "signatures": cost.signatures,
        "predicted_us": result.schedule.predicted_us,
        "gap": result.gap,
        "gap_of": result.scope,
        "dropped": dict(cost.dropped),
        "throttled": dict(cost.throttled),
    }


def open_peers(
    way: str, prepared: Prepared, gpu: AttachedGpu, precision: str
) -> tuple[dict[str, Peer], dict[str, str]]:
    """Another framework ready to run, and what is missing, with the reason.

    Raises:
        DeviceError: it is not installed, or cannot run the model.
        ImportError: it is not installed.
    """
    model, inputs = prepared.model, prepared.inputs
    if way == JAX:
        import jax_peers

        return jax_peers.peers(model, inputs, precision), {}
    if way == ONNXRUNTIME:
        computed = Precision(precision_named(precision))
        provider, engine = Provider.cuda(gpu.index, computed), gpu.engine(model, computed.name)
        place = GpuSetup(model, inputs, computed, gpu.driver, provider, engine)
        return {way: Peer(open_on_gpu(place).time, None)}, {}
    import torch_peers

    return torch_peers.peers(model, inputs, precision, [way])


def relative_error(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """The largest difference over the largest expected value; infinite if something is no number."""
    errors = [
        float(np.abs(found[name].astype(np.float64) - array).max() / max(np.abs(array).max(), 1e-30))
        for name, array in expected.items()
    ]
    return max(errors) if np.isfinite(errors).all() else float("inf")


def _run_on_poison(model: CudaModel, inputs: Arrays) -> dict[str, np.ndarray]:
    """The outputs of a run that finds nothing of an earlier one."""
    model.executor.poison()
    return model.run(inputs)


def roofline_us(model: Model, gpu: str, precision: str) -> dict[str, float] | None:
    """Microseconds that arithmetic takes at the GPU's specified peak, and weights, inputs and outputs at its bandwidth.

    What lies between operators may stay in the cache. None where the GPU's specification is not known.
    """
    spec = spec_of(gpu)
    if spec is None:
        return None
    tflops = {"fp32": spec.fp32_tflops, "tf32": spec.tf32_tflops, "fp16": spec.fp16_tensor_tflops}[precision]
    graph = model.graph
    ends = [*graph.inputs, *(graph.tensor[name] for name in graph.outputs)]
    nbytes = sum(array.nbytes for array in model.weights.values()) + sum(end.nbytes for end in ends)
    moved = nbytes // 2 if precision == "fp16" else nbytes
    flops = sum(operator.flops for operator in graph.operators)
    return {
        "arithmetic": round(flops / ((tflops or spec.fp32_tflops) * 1e6), 2),
        "memory": round(moved / (spec.dram_gb_per_s * 1e3), 2),
    }


def versions(gpu: AttachedGpu) -> dict[str, str]:
    """Versions of the driver and of all libraries that were imported for this."""
    found = {**gpu.versions, **_nvidia_driver(), "iosched": iosched_version(), "lowering": str(CUDA_LOWERING)}
    for name in ("torch", "jax", "onnxruntime", "cupy", "numpy"):
        if name in sys.modules:
            found[name] = str(getattr(sys.modules[name], "__version__", ""))
    return {**found, "python": platform.python_version()}


def _nvidia_driver() -> dict[str, str]:
    """The driver's own version, where NVML tells it; the GPU's versions have that of its CUDA."""
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        return {"nvidia driver": str(pynvml.nvmlSystemGetDriverVersion())}
    except pynvml.NVMLError:
        return {}


def _clock(gpu: AttachedGpu) -> dict[str, object] | None:
    """Clocks, temperature, power and throttling now, where NVML tells them."""
    found = gpu.clock()
    return None if found is None else asdict(found)
