"""Latency of networks on the cores of this machine, compared with all baselines, in calls of some minutes that resume.

    python benchmarks/cpu_networks.py [--keras FOLDER] [--networks NAME,...] [--batch-sizes 1,8,32] [--minutes 5]
                                      [--rounds N] [--list] [-o results.json]

For each network, `optimize` searches and decides what ships. Then all alternatives run interleaved in one process,
A B C A B C, each after the threads have stopped spinning, and every sample is added to the results file. Nothing in
that file is measured again: repeat the call until it reports that nothing is missing. Schedules and the profile
database are in `results/cpu_networks/`; without them, an unfinished case starts again. FOLDER has the networks that
`keras_models.py` exported; without it, these are omitted.

    onnxruntime          the fastest of its sequential and parallel modes and numbers of threads
    onnxruntime-default  a session with default settings
    openvino             its low-latency settings, in fp32
    sequential           one operator after another, each divided over all cores
    both                 the schedule found
    iosched              the alternative that `optimize` ships
    aligned, rewritten   plain onnxruntime on the model with aligned channels, and with all rewrites for our executor;
                         they divide the speedup into steps (batch size 1 only, like the greedy schedule)

Options:
    --networks: comma-separated names of the list; all by default
    --keras: exports of keras_models.py
    --minutes: time limit of this call
    --budget: seconds for one search and its comparison; no later call continues a search that had them all
    --rounds: samples of each alternative; by default fewer for larger batches
    --list: print what is missing, and measure nothing
    --threads: cores to use; all by default
"""

from __future__ import annotations

import math
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from command_line import read_options
from cpu_models import cpu_model, short_name
from results_files import RESULTS, origin, resumed_results, write_results

from iosched import DeviceError, IoschedError, Model, Schedule, ScheduleDocument, TensorSpec
from iosched.jobs.open_model import opened
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.models.editable_graph import EditableGraph
from iosched.profiler.devices.cpu.open import OpenOnCpu
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.profiled_device import Way
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.interleaved_models import Budget, close_all
from iosched.profiler.measuring.statistics import quantile
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.kernels import EXTERNAL_LOCATION, Program
from iosched.runtime.cpu.python_executor import open_program
from iosched.runtime.cpu.rewrite.align import align_channels
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import ReferenceSettings, bound_source
from iosched.runtime.session import external_weights, load_onnxruntime, open_session
from iosched.scheduler.baselines import greedy, sequential

INLINE_NBYTES = 1024


def alternatives(
    there: OpenOnCpu, document: ScheduleDocument, inputs: Arrays, *, splits: bool
) -> tuple[dict[str, Candidate], dict[str, str]]:
    """All alternatives that can be measured, in order, and the reasons why others cannot.

    Args:
        there: the model, open on the CPU.
        document: the result of `optimize`.
        inputs: inputs of each run.
        splits: whether to include the greedy schedule and the alternatives that split the gain.
    """
    model, lanes, plain = there.model, there.cost.backend.lanes, there.baselines.onnxruntime
    assert plain is not None
    setting = document.runtime.get("reference") or {"mode": "sequential", "intra_threads": lanes}
    openers: dict[str, Callable[[], Candidate]] = {
        "onnxruntime": partial(plain.ready, ReferenceSettings(**setting), inputs),
        "onnxruntime-default": partial(_plain_by_default, model, inputs),
        "openvino": partial(there.baselines.openers["openvino"], inputs),
        "sequential": partial(there.ready, Way(sequential(there.graph)), inputs),
        "both": partial(there.ready, Way(schedule_found(document)), inputs),
        "iosched": lambda: there.device.executor(model, document, lanes).ready(inputs),
    }
    if splits:
        openers["greedy"] = partial(there.ready, Way(greedy(there.graph)), inputs)
        openers["aligned"] = partial(_plain_on_aligned, model, there.cost.backend.kernels.channel_block, lanes, inputs)
        openers["rewritten"] = partial(_plain_on_rewritten, there.cost.backend.kernels, lanes, inputs)
    found, missing = {}, {}
    for name, opener in openers.items():
        try:
            found[name] = opener()
        except DeviceError as error:
            missing[name] = str(error)
    return found, missing


def schedule_found(document: ScheduleDocument) -> Schedule:
    """The schedule found by the search, even if the file has another one."""
    others = (each.schedule for each in document.alternatives if each.name == "iosched")
    return next(others, document.schedule)


def _plain_by_default(model: Model, inputs: Arrays) -> Candidate:
    """Plain onnxruntime with default settings."""
    options = _quiet_options()
    source, kept = bound_source(model, options)
    return _bound(open_session(source, options), inputs, kept)


def _plain_on_aligned(model: Model, block: int, threads: int, inputs: Arrays) -> Candidate:
    """Plain onnxruntime on the model with channels that fill whole blocks."""
    graph = EditableGraph.of(model.proto, model.weights, model.graph.tensor)
    align_channels(graph, block)
    graph.drop_unread()
    proto = graph.to_proto()
    options = _quiet_options()
    options.intra_op_num_threads = threads
    names, values, arrays = external_weights(proto, graph.weights)
    if names:
        options.add_external_initializers(names, values)
    return _bound(open_session(proto.SerializeToString(), options), inputs, arrays)


def _plain_on_rewritten(kernels: KernelGraph, threads: int, inputs: Arrays) -> Candidate:
    """Plain onnxruntime on the nodes that our executor runs, all in one session."""
    program = as_program(kernels)
    options = _quiet_options()
    options.intra_op_num_threads = threads
    session = open_program(program, options)
    return _bound(session, {name: inputs[name] for name in program.inputs}, program)


def as_program(kernels: KernelGraph) -> Program:
    """All of a kernel graph as one program."""
    graph = onnx.GraphProto(name="rewritten", node=kernels.nodes)
    graph.input.extend(_value(kernels.tensors[name]) for name in kernels.inputs)
    computed = [name for name in kernels.outputs if name in kernels.producer]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in computed)
    graph.initializer.extend(_initializer(name, array) for name, array in kernels.weights.items())
    opsets = [onnx.OperatorSetIdProto(domain=domain, version=version) for domain, version in kernels.opsets.items()]
    proto = onnx.ModelProto(ir_version=kernels.ir_version, graph=graph, opset_import=opsets)
    weights = tuple((name, array) for name, array in kernels.weights.items() if array.nbytes > INLINE_NBYTES)
    return Program(proto.SerializeToString, tuple(kernels.inputs), tuple(computed), weights)


def _value(spec: TensorSpec) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(spec.name, _element(np.dtype(spec.dtype)), spec.shape)


def _initializer(name: str, array: np.ndarray) -> onnx.TensorProto:
    if array.nbytes <= INLINE_NBYTES:
        return onnx.numpy_helper.from_array(array, name)
    tensor = onnx.TensorProto(name=name, data_type=_element(array.dtype), dims=array.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=EXTERNAL_LOCATION)
    return tensor


def _element(dtype: np.dtype[Any]) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(dtype)


def _quiet_options() -> Any:
    options = load_onnxruntime().SessionOptions()
    options.log_severity_level = 4
    return options


def _bound(session: Any, inputs: Mapping[str, np.ndarray], kept: object) -> Candidate:
    """A session with its inputs and outputs bound once; `kept` must live as long as the session."""
    binding = session.io_binding()
    for value in session.get_inputs():
        binding.bind_cpu_input(value.name, np.asarray(inputs[value.name], order="C"))
    for value in session.get_outputs():
        binding.bind_output(value.name)

    return Candidate(partial(_timed, session, binding, kept))


def _timed(session: Any, binding: Any, kept: object, repeats: int) -> tuple[float, ...]:
    del kept
    samples = []
    for _ in range(repeats):
        started = time.perf_counter_ns()
        session.run_with_iobinding(binding)
        samples.append((time.perf_counter_ns() - started) / 1e3)
    return tuple(samples)


ZOO = ("squeezenet", "googlenet", "inception_v3", "randwire", "nasnet_a", "nasnet_a@224")
KERAS = ("nasnetmobile", "inceptionresnetv2", "xception", "inceptionv3", "densenet121", "efficientnetb0", "mobilenetv2")
ROUNDS = {1: 21}
FEWER_ROUNDS = 9  # at larger batch sizes
LEAST_SEARCH_S = 60.0
SEARCH_SHARE = 0.9  # maximum share of a call's time for a search and its comparison
MOST_SEARCHES = 3  # of one case; each resumes the measurements of the previous one
ROUNDS_AT_ONCE = 7
RIVALS = ("openvino",)


@dataclass(frozen=True)
class Case:
    """One network at one batch size."""

    name: str
    source: str
    batch_size: int

    @property
    def network(self) -> str:
        """Its name in the results."""
        return short_name(self.name)

    @property
    def title(self) -> str:
        """For people, and for the names of files."""
        return f"{self.network} batch {self.batch_size}"


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(
        __file__, words, networks=(), batch_sizes=(1, 8, 32), keras=Path, minutes=5.0, budget=math.inf, rounds=int,
        list=False, threads=int, work=RESULTS / "cpu_networks", output=RESULTS / "cpu_networks.json",
    )  # fmt: skip
    deadline = time.monotonic() + 60 * options.minutes
    results = Results(options)
    missing = [case for case in cases(options) if not results.is_done(case, _rounds(case, options))]
    for case in missing:
        if options.list:
            print(case.title)
            continue
        try:
            is_finished = time.monotonic() < deadline and advance(case, results, options, deadline)
        except IoschedError as error:
            print(f"{case.title}: {error}", file=sys.stderr)
            continue
        if not is_finished:
            print(f"time is up in {case.title}; call again to go on", file=sys.stderr)
            return
    if not missing:
        print("nothing is missing", file=sys.stderr)


def cases(options: Namespace) -> Iterator[Case]:
    """The requested cases, batch size after batch size."""
    sources = {name: f"zoo:{name}" for name in ZOO}
    if options.keras is not None:
        sources |= {f"keras_{name}": str(options.keras / f"keras_{name}.onnx") for name in KERAS}
    asked = options.networks if options.networks else list(sources)
    for batch_size in options.batch_sizes:
        yield from (Case(name, sources.get(name, name), batch_size) for name in asked)


def _rounds(case: Case, options: Namespace) -> int:
    return options.rounds or ROUNDS.get(case.batch_size, FEWER_ROUNDS)


class Results:
    """The results file: entries of networks at batch size 1 in "networks", of others in "batches" by their size."""

    def __init__(self, options: Namespace) -> None:
        """Reads the file; ends if another product, machine or library measured it."""
        self._options, self._content = options, resumed_results(options.output)

    def entry(self, case: Case) -> dict[str, Any] | None:
        """The entry of a case, if there is one."""
        found: dict[str, Any] | None = self._of(case.batch_size).get(case.network)
        return found

    def is_done(self, case: Case, rounds: int) -> bool:
        """Whether every alternative has that many samples."""
        entry = self.entry(case)
        return entry is not None and "command" in entry and _n_rounds(entry) >= rounds

    def put(self, case: Case, entry: Mapping[str, Any]) -> None:
        """Stores an entry, also in the file."""
        self._of(case.batch_size)[case.network] = dict(entry)
        known = self._content.get("batches", {})
        batches = {size: known[size] for size in sorted(known, key=int)}
        self._content = {"batch_size": 1, "networks": self._of(1), "batches": batches}
        write_results(self._options, self._content, rivals=RIVALS, goes_on=True)

    def _of(self, batch_size: int) -> dict[str, Any]:
        networks: dict[str, Any] = self._content.setdefault("networks", {})
        return networks if batch_size == 1 else self._content.setdefault("batches", {}).setdefault(str(batch_size), {})


def _n_rounds(entry: Mapping[str, Any]) -> int:
    return min((len(samples) for samples in entry["samples_us"].values()), default=0)


def advance(case: Case, results: Results, options: Namespace, deadline: float) -> bool:
    """Measures missing results of one case while time is left; returns whether it is complete."""
    entry, rounds = results.entry(case), _rounds(case, options)
    model, path = cpu_model(case.source, case.batch_size), options.work / f"{case.title}.schedule.json"
    known = entry if entry is not None and "command" in entry and path.exists() else None
    if known is None or _is_cut_off(known, options.budget):
        left_s = (deadline - time.monotonic()) * SEARCH_SHARE
        if left_s < LEAST_SEARCH_S:
            return False
        calls = 1 if known is None else known["search"]["calls"] + 1
        entry = searched(model, options, min(left_s, options.budget), path, calls)
        results.put(case, entry)
        if _is_cut_off(entry, options.budget):
            return False
    assert entry is not None
    document = ScheduleDocument.from_json(path.read_text(encoding="utf-8"))
    while _n_rounds(entry) < rounds:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        budget = Budget(min(ROUNDS_AT_ONCE, rounds - _n_rounds(entry)), left_s, least_rounds=1)
        entry = measured(model, document, entry, options.threads, budget, splits=case.batch_size == 1)
        results.put(case, entry)
    print(f"{case.title}: shipped {entry['shipped']}", flush=True)
    return True


def _is_cut_off(entry: Mapping[str, Any], most_s: float) -> bool:
    """Whether the call's time ended the search before `most_s`, so that another call should resume it."""
    search = entry["search"]
    is_over = search["budget_s"] >= most_s or search["calls"] >= MOST_SEARCHES
    return bool(search["seconds"] > 0.95 * search["budget_s"] and not is_over)


def searched(model: Model, options: Namespace, budget_s: float, path: Path, call: int) -> dict[str, Any]:
    """Runs `optimize`, in n calls so far, and keeps its schedule at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    database = path.parent / "profile.db"
    result = optimize(model, OptimizeSettings(threads=options.threads, profile_db=database, budget_s=budget_s))
    path.write_text(result.document.to_json(), encoding="utf-8")
    return {
        **origin(rivals=RIVALS),
        "flops": sum(operator.flops for operator in model.graph.operators),
        "shipped": result.shipped,
        "candidate": result.candidate,
        "reason": result.reason,
        "optimal": result.optimal,
        "predicted_us": result.predicted_us,
        "search": {
            "seconds": result.seconds,
            "budget_s": budget_s,
            "calls": call,
            "stages": result.stages,
            "signatures": result.signatures,
            "measurements": result.measurements,
            "cache_hits": result.cache_hits,
        },
        "missing": {},
        "samples_us": {},
        "rested_us": {},
        "median_us": {},
    }


def measured(
    model: Model,
    document: ScheduleDocument,
    entry: Mapping[str, Any],
    threads: int | None,
    budget: Budget,
    *,
    splits: bool,
) -> dict[str, Any]:
    """The entry with the samples of more rounds of all alternatives."""
    inputs = random_inputs(model.graph.inputs)
    with opened(resolve("cpu"), model, OpenSettings(threads), None) as there:
        assert isinstance(there, OpenOnCpu)
        candidates, missing = alternatives(there, document, inputs, splits=splits)
        try:
            found = there.in_turn(candidates, budget, None)
        finally:
            close_all(candidates.values())
    samples = {name: [*entry["samples_us"].get(name, ()), *_rounded(m.samples_us)] for name, m in found.items()}
    rested = {name: [*entry["rested_us"].get(name, ()), *_rounded(m.rested_us)] for name, m in found.items()}
    medians = {name: round(quantile(each, 0.5), 1) for name, each in samples.items()}
    return {**entry, "missing": missing, "samples_us": samples, "rested_us": rested, "median_us": medians}


def _rounded(samples_us: Sequence[float]) -> list[float]:
    return [round(sample, 1) for sample in samples_us]


if __name__ == "__main__":
    main()
