"""Measurements of `gpu.py` on networks: outputs, latencies compared with other programs, stages."""

from __future__ import annotations

import ctypes
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from gpu_case import Session, said
from gpu_cases import SLOW
from result_tables import compared
from testbed import zoo_model

from iosched import IoschedError, Model, Schedule, SearchResult, load_model, search
from iosched.models import zoo
from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError
from iosched.models.zoo.light import light_model
from iosched.profiler.baselines.gpu_openers import GPU_OPENERS, GpuSetup
from iosched.profiler.devices.analytic.device import SimulatedGpu
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.profiler.devices.cuda.cudnn_plans import KnownCudnnPlans
from iosched.profiler.devices.cuda.device import GPU_EFFORT
from iosched.profiler.devices.cuda.gpu_cost import CudaStageCost, open_cost
from iosched.profiler.devices.gpus import GpuSpec, gpu_named, spec_of
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.measuring.interleaved_models import Budget, measure_interleaved
from iosched.profiler.measuring.statistics import Measurement
from iosched.runtime.cuda.backend import CudaModel
from iosched.runtime.cuda.cudnn.cudnn_graph import load_cudnn
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.onnxruntime.provider import Provider
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.precision import PrecisionName, precision_named

Arrays = Mapping[str, np.ndarray]
LIMITS = {"fp32": 1e-4, "tf32": 2e-2, "fp16": 2e-2}
"""The largest error, relative to the largest output, of a correct result."""

KINDS = ("kernel", "copy", "fill", "host", "graph", "empty", "wait", "record")
"""Of `CUgraphNodeType`, by its numbers."""

PAPER = "h100"
"""The specification for a GPU that the table does not have."""

ROUNDS, MOST_COMPARED_S, LEAST_SEARCH_S = 20, 8.0, 3.0


@dataclass(frozen=True, eq=False)
class Network:
    """A model, inputs, and onnxruntime's outputs on the CPU."""

    model: Model
    inputs: Arrays
    expected: Arrays

    @classmethod
    def of(cls, session: Session) -> Network:
        """The network of the case; needs no GPU."""
        name, batch = session.case.network, session.case.batch
        with session.timed("build"):
            light = name not in zoo.names()
            model = load_model(light_model(name).SerializeToString(), name=name) if light else zoo_model(name, batch)
        inputs = random_inputs(model.graph.inputs, seed=batch)
        with session.timed("check"), Reference(model) as reference:
            return cls(model, inputs, reference.run(inputs))

    def error(self, found: Arrays) -> float:
        """The largest difference over the largest expected value; infinite if a value is not a number."""
        pairs = [(found[name].astype(np.float64), array) for name, array in self.expected.items()]
        errors = [float(np.abs(one - array).max() / max(np.abs(array).max(), 1e-30)) for one, array in pairs]
        return max(errors) if np.isfinite(errors).all() else float("inf")

    def poisoned(self, compiled: CudaModel) -> Arrays:
        """The outputs of a run after those of earlier runs were overwritten."""
        compiled.executor.poison()
        return compiled.run(self.inputs)


def precisions_of(gpu: AttachedGpu) -> tuple[PrecisionName, ...]:
    """All precisions of the GPU."""
    return ("fp32", "fp16", *(("tf32",) if gpu.driver.gpu.has_tf32 else ()))  # type: ignore[return-value]


def specification(gpu: AttachedGpu) -> GpuSpec:
    """The entry of the GPU, or of `PAPER` if the table lacks it."""
    found = spec_of(gpu.name) or gpu_named(PAPER)
    assert found is not None
    return found


def outputs(session: Session) -> None:
    """Errors of the sequential and the greedy schedule in each precision and layout, with cuDNN's first plans."""
    network = Network.of(session)
    largest = max(float(np.abs(array).max()) for array in network.expected.values())
    gpu = session.gpu

    def checked(key: str) -> dict[str, Any]:
        precision, layout = key.split()
        if precision == "fp16" and largest > np.finfo(np.float16).max:
            return {"skipped": f"an output is {largest:.0f}, more than fp16 can hold"}
        backend = gpu.backend(network.model, precision, KnownCudnnPlans({}), Layout(layout))
        errors = {}
        for name, schedule in {"sequential": sequential, "greedy": greedy}.items():
            compiled = backend.compile(schedule(backend.graph))
            errors[name] = network.error(network.poisoned(compiled))
            compiled.close()
        if max(errors.values()) >= LIMITS[precision]:
            raise ValueError(f"wrong outputs: {errors}")
        return {"errors": errors}

    session.each("outputs", [f"{p} {layout.value}" for p in precisions_of(gpu) for layout in Layout], checked)


def stages(session: Session) -> None:
    """Each different stage of four schedules: its latency by the analytic model, and measured."""
    network = Network.of(session)
    bench = _Bench(session, network)
    if not bench.has_precision():
        return
    schedules = {"sequential": sequential(bench.graph), "greedy": greedy(bench.graph), "paper": bench.paper}
    schedules["found"] = bench.search().schedule
    analytic = SimulatedGpu(bench.spec).open(network.model, OpenSettings(precision=bench.precision)).cost
    rows: dict[str, dict[str, Any]] = {}
    for name, schedule in schedules.items():
        for stage in schedule.stages:
            row = rows.setdefault(str(stage.groups) + stage.strategy, {
                "strategy": stage.strategy.value, "groups": stage.groups, "schedules": [],
                "predicted_us": round(analytic.stage_latency_us(stage), 2),
                "measured_us": round(bench.cost.stage_latency_us(stage), 2),
            })  # fmt: skip
            row["schedules"] += [name]
    session.found |= {"network": session.case.network, "precision": bench.precision, "stages": [*rows.values()]}
    session.found["spec"] = bench.spec.key
    session.keep(complete=True)


def latency(session: Session) -> None:
    """Our schedules and other programs, interleaved, each CUDA graph with its nodes and plans."""
    os.environ["XDG_CACHE_HOME"] = str(session.folder.resolve())  # keeps TensorRT's engines
    with suppress(IoschedError, ImportError):  # slow imports, in the order of their use
        load_cudnn()
        import torch  # noqa: F401
    bench = _Bench(session, Network.of(session))
    if not bench.has_precision():
        return
    graph = bench.graph
    for name, schedule in {"sequential": sequential(graph), "greedy": greedy(graph), "paper": bench.paper}.items():
        bench.compile(name, schedule)
    bench.compare()
    session.keep()  # a search may crash the process, or take too long
    found = bench.search()
    bench.compile("found", found.schedule)
    bench.compile("found, no barriers", found.schedule, barriers=False)
    bench.compile("found, by demand", found.schedule, by_demand=True)
    bench.compare()
    ways = session.case.ways
    for group in filter(None, (set(ways) - set(SLOW), *({way} for way in SLOW if way in ways))):
        session.keep()  # so may other programs
        for way in sorted(group):
            bench.open(way)
        bench.compare()
    session.keep(complete=not bench.failed, error="; ".join(bench.failed))


@dataclass(eq=False)
class _Bench:
    """All alternatives of one network; compiled ones stay open, so that all are measured interleaved."""

    session: Session
    network: Network
    ours: dict[str, CudaModel] = field(default_factory=dict)
    others: dict[str, Candidate] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    searched: dict[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @property
    def precision(self) -> PrecisionName:
        return precision_named(self.session.case.precision)

    def has_precision(self) -> bool:
        """Whether the GPU has the case's precision; if not, there is nothing to do."""
        if self.precision in precisions_of(self.session.gpu):
            return True
        self.session.found["skipped"] = f"{self.session.gpu.name} has no {self.precision}"
        self.session.keep(complete=True)
        return False

    @cached_property
    def spec(self) -> GpuSpec:
        return specification(self.session.gpu)

    @cached_property
    def paper(self) -> Schedule:
        """The best schedule by the analytic model."""
        with self.session.timed("paper"):
            opened = SimulatedGpu(self.spec).open(self.network.model, OpenSettings(precision=self.precision))
            return search(opened.graph, opened.cost, effort=opened.effort).schedule

    @cached_property
    def cost(self) -> CudaStageCost:
        """The cost model, opened as by `optimize`."""
        session = self.session
        with session.timed("open"):
            return open_cost(
                session.gpu, self.network.model, self.precision, session.database, suggest=lambda: self.paper.stages
            )

    @property
    def graph(self) -> Any:
        return self.cost.backend.graph

    def search(self) -> SearchResult:
        """Searches as `optimize` does, until only the time to compare is left."""
        reserve_s = 5.0 + 2 * MOST_COMPARED_S + sum(s for name, s in self.session.seconds.items() if "compile" in name)
        until = max(self.session.deadline - reserve_s, time.monotonic() + LEAST_SEARCH_S)
        with self.session.timed("search"):
            result = search(self.graph, self.cost, effort=GPU_EFFORT, deadline=lambda: time.monotonic() > until)
        is_late, cost = time.monotonic() > until, self.cost
        self.failed += ["no time to search to the end"] if is_late else []
        self.searched = {
            "measurements": cost.measurements, "from_database": cost.cache_hits, "signatures": cost.signatures,
            "predicted_us": result.schedule.predicted_us, "gap": result.gap, "ended_by_time": is_late,
            "dropped": dict(cost.dropped), "throttled": dict(cost.throttled),
        }  # fmt: skip
        return result

    def compile(self, name: str, schedule: Schedule, **way: bool) -> None:
        """Adds a schedule of ours; if the sequential one is there, others may fail, for example for lack of memory."""
        with self.session.timed(f"compile {name}"):
            try:
                compiled = self.cost.backend.compile(schedule, **way)
                self.errors[name] = self.network.error(self.network.poisoned(compiled))
            except (DeviceError, ExecutionError) as error:
                if isinstance(error, DeviceLostError) or not self.ours:
                    raise
                self.failed += [f"{name}: {said(error)}"]
                return
        self.ours[name] = compiled
        if self.errors[name] >= LIMITS[self.precision]:
            self.failed += [f"{name}: wrong outputs, error {self.errors[name]:.0e}"]

    def open(self, way: str) -> None:
        """Adds another program, or why it is missing."""
        network, gpu = self.network, self.session.gpu
        with self.session.timed(f"open {way}"):
            try:
                if way.startswith("onnxruntime"):
                    candidate = open_onnxruntime(way, network, gpu, self.precision)
                else:
                    import torch_peers

                    run = torch_peers.opened(way, network.model, network.inputs, self.precision)
                    candidate, self.errors[way] = Candidate(run.time), network.error(run.outputs())
                candidate.time(2)
                self.others[way] = candidate
            except (IoschedError, ImportError, ValueError, RuntimeError) as error:
                self.missing[way] = said(error)

    def compare(self) -> None:
        """All alternatives interleaved, A B A B, with the rest of the record."""
        gpu, ours = self.session.gpu, self.ours
        before = gpu.clock()
        candidates = {name: Candidate(each.executor.time_launches) for name, each in ours.items()} | self.others
        with self.session.timed("compare"):
            found = measure_interleaved(candidates, Budget(ROUNDS, MOST_COMPARED_S), rest=lambda: None)
        after = gpu.clock()
        self.session.found |= {
            "network": self.session.case.network, "batch": self.session.case.batch, "precision": self.precision,
            "layout": self.cost.backend.layout.value, "spec": self.spec.key,
            "clock": [None if each is None else asdict(each) for each in (before, after)],
            "search": self.searched, "missing": self.missing, "notes": list(self.cost.backend.notes),
            "relative_error": self.errors,
            "correct": all(self.errors[name] < LIMITS[self.precision] for name in ours),
            "kernels": {name: each.kernel_count for name, each in ours.items()},
            "nodes": {name: node_counts(each.executor.graphs) for name, each in ours.items()},
            "plans": {name: dict(each.cudnn_plans) for name, each in ours.items()},
            **latencies(found),
        }  # fmt: skip


def latencies(found: Mapping[str, Measurement]) -> dict[str, Any]:
    """Medians, all samples in a row and from an idle GPU, and speedups over the sequential schedule."""
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


def open_onnxruntime(way: str, network: Network, gpu: AttachedGpu, precision: PrecisionName) -> Candidate:
    """onnxruntime with its CUDA or TensorRT provider.

    Raises:
        DeviceError: it is not installed, or cannot run the model.
    """
    computed = Precision(precision)
    provider, engine = Provider.cuda(gpu.index, computed), gpu.engine(network.model, precision)
    setup = GpuSetup(network.model, network.inputs, computed, gpu.driver, provider, engine)
    return GPU_OPENERS[way](setup)


def node_counts(graphs: Iterable[Any]) -> dict[str, int] | None:
    """Nodes of CuPy's graphs by kind, and edges between them; None without a driver."""
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
