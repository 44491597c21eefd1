"""Whether a network gains from running some stretches of it on OpenVINO and the others by a schedule.

    python benchmarks/library_stretches.py MODEL... [--pieces 8] [--budget 60] [--rounds 15] [-o results.json]

MODEL is as for `second_library.py`. It is optimized, and cut between operators where few bytes cross. Each piece is a
model of its own, with tensors in the plain layout at its borders: on OpenVINO, and by what the schedule found does with
its operators, measured in turn. Then neighbours that are faster by the same library are joined, and the chain of these
stretches is measured in turn with the whole network by the schedule and on OpenVINO. The chain is run from Python, some
ten microseconds a stretch.

Options:
    --budget: seconds to optimize the network
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from cpu_models import cpu_model
from second_library import samples_of
from testbed import NAMES, Table, latency_cells, print_table, read_options, write_results

from iosched import Block, Model, Operator, Schedule, Stage, load_model, write_model
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.models.wiring import reads
from iosched.runtime.cores import cpu_count
from iosched.runtime.cpu.backend import CompiledModel, CpuBackend
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.openvino.openvino_model import OpenvinoModel
from iosched.scheduler.baselines import sequential

OURS, OPENVINO = "ours", "openvino"
PIECE_ROUNDS = 9


Opened = CompiledModel | OpenvinoModel


@dataclass(frozen=True, eq=False)
class Chain:
    """Stretches that run one after another, each on the tensors that it reads."""

    stretches: Sequence[tuple[Opened, tuple[str, ...]]]

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs."""
        latencies_us = []
        for _ in range(repeats):
            began = time.perf_counter_ns()
            known = dict(inputs)
            for opened, names in self.stretches:
                known.update(opened.run({name: known[name] for name in names}))
            latencies_us.append((time.perf_counter_ns() - began) / 1e3)
        return tuple(latencies_us)

    def close(self) -> None:
        """Closes all stretches."""
        for opened, _ in self.stretches:
            opened.close()


def main(words: Sequence[str] | None = None) -> None:
    """Measures each network and prints the table."""
    options = read_options(__file__, words, {"models": {"nargs": "+"}}, pieces=8, budget=60.0, rounds=15, output=Path)
    found: dict[str, dict[str, Any]] = {}
    for text in options.models:
        model = cpu_model(text)
        found[model.name] = measured(model, options)
        write_results(options, {"models": found}, rivals=["openvino"])
    print_table(*table(found))


def table(models: Mapping[str, Any]) -> Table:
    """Pieces alone by either library, and the chain of the faster ones with speedups over the whole by a schedule."""
    rows = []
    for name, entry in models.items():
        pieces = [{way: median(us) / 1e3 for way, us in piece["samples_us"].items()} for piece in entry["pieces"]]
        faster = sum(piece[OPENVINO] < piece[OURS] for piece in pieces)
        sums = sum(piece[OURS] for piece in pieces), sum(min(piece.values()) for piece in pieces)
        samples = {way: entry["samples_us"][way] for way in (OURS, OPENVINO, "chain")}
        cells = (f"{ms:.2f}" for ms in sums)
        rows.append(
            [NAMES.get(name, name), f"{faster} of {len(pieces)}", *cells, *latency_cells(samples, OURS, in_rounds=True)]
        )
    headers = ["network", "pieces in which OpenVINO's median is less", "sum of our pieces", "of the faster ones"]
    return [*headers, "the whole by our schedule", "on OpenVINO", "as the chain of segments"], rows


def measured(model: Model, options: Namespace) -> dict[str, Any]:
    """Optimizes the network, joins its pieces by what is faster, and measures the chain in turn with the whole."""
    with tempfile.TemporaryDirectory() as folder:
        settings = OptimizeSettings(device="cpu", budget_s=options.budget, profile_db=Path(folder) / "p.db")
        found = optimize(model, settings)
    by_name = {each.name: each.schedule for each in found.document.alternatives}
    schedule = by_name.get("iosched", found.schedule)
    pieces = _pieces(model, options.pieces)
    taken = [_in_turn(_ways(_part(model, piece), schedule), PIECE_ROUNDS) for piece in pieces]
    best = [min(each, key=lambda name: median(each[name])) for each in taken]
    joined = [
        (library, [operator for piece, _ in group for operator in piece])
        for library, group in groupby(zip(pieces, best, strict=True), key=lambda pair: pair[1])
    ]
    parts = [(library, _part(model, operators)) for library, operators in joined]
    chain = Chain([(OPENERS[library](each, schedule), _names(each)) for library, each in parts])
    return {
        "pieces": [
            {"operators": len(piece), "samples_us": each, "best": library}
            for piece, each, library in zip(pieces, taken, best, strict=True)
        ],
        "stretches": [(library, len(operators)) for library, operators in joined],
        "samples_us": _in_turn({**_ways(model, schedule), "chain": (chain, model)}, options.rounds),
    }


def _names(part: Model) -> tuple[str, ...]:
    return tuple(spec.name for spec in part.graph.inputs)


def _in_turn(ways: Mapping[str, tuple[Opened | Chain, Model]], rounds: int) -> dict[str, list[float]]:
    candidates = {
        name: Candidate(partial(opened.time, random_inputs(model.graph.inputs)), opened.close)
        for name, (opened, model) in ways.items()
    }
    return samples_of({name: partial(replace, each) for name, each in candidates.items()}, rounds)


def _ways(part: Model, schedule: Schedule) -> dict[str, tuple[Opened | Chain, Model]]:
    return {library: (opener(part, schedule), part) for library, opener in OPENERS.items()}


OPENERS: Mapping[str, Callable[[Model, Schedule], Opened]] = {
    OPENVINO: lambda part, schedule: OpenvinoModel(part, cpu_count()),
    OURS: lambda part, schedule: CpuBackend(part, lanes=cpu_count()).compile(_restricted(schedule, part)),
}


def _restricted(schedule: Schedule, part: Model) -> Schedule:
    """What a schedule of the whole does with the operators of a part of it."""
    own = part.graph.by_name.keys()
    blocks = []
    for block in schedule.blocks:
        stages = tuple(filter(None, (_kept(stage, own) for stage in block.stages)))
        if stages:
            blocks.append(Block(len(blocks), stages))
    kept = {name for block in blocks for stage in block.stages for name in stage.operators}
    return Schedule(tuple(blocks)) if kept == set(own) else sequential(part.graph)


def _kept(stage: Stage, own: Iterable[str]) -> Stage | None:
    names = set(own)
    groups = tuple(filter(None, (tuple(name for name in group if name in names) for group in stage.groups)))
    return stage if groups == stage.groups else (Stage(stage.strategy, groups) if groups else None)


def _pieces(model: Model, count: int) -> list[list[Operator]]:
    """The operators in about `count` pieces of about equal work, cut where few bytes cross."""
    operators = list(model.graph.operators)
    done = np.cumsum([operator.flops for operator in operators])
    total = max(float(done[-1]), 1.0)
    crossing = [_crossing_nbytes(model, operators, index) for index in range(len(operators))]
    cuts = []
    for piece in range(1, count):
        near = [i for i in range(1, len(operators)) if abs(done[i - 1] / total - piece / count) < 0.4 / count]
        if near:
            cuts.append(min(near, key=lambda i: (crossing[i], abs(done[i - 1] / total - piece / count))))
    return [operators[begin:end] for begin, end in pairwise([0, *sorted(set(cuts)), len(operators)])]


def _crossing_nbytes(model: Model, operators: Sequence[Operator], place: int) -> int:
    before = {name for operator in operators[:place] for name in operator.outputs}
    crossing = {name for operator in operators[place:] for name in operator.inputs if name in before}
    return sum(_nbytes(model, name) for name in crossing)


def _nbytes(model: Model, name: str) -> int:
    spec = model.graph.tensor.get(name)
    return 1 << 40 if spec is None or spec.shape is None else int(np.prod(spec.shape)) * 4


def _part(model: Model, operators: Iterable[Operator]) -> Model:
    """Some operators of the model as a model of their own, which reads and returns what crosses their border."""
    names = {name for operator in operators for name in operator.nodes}
    own = [node for node in model.proto.graph.node if node.name in names]
    made = dict.fromkeys(name for node in own for name in node.output if name)
    used = dict.fromkeys(name for node in own for name in reads(node))
    outside = {name for node in model.proto.graph.node if node.name not in names for name in reads(node)}
    wanted = [name for name in made if name in outside or name in model.graph.outputs]
    inputs = [_value(model, name) for name in used if name not in made and name not in model.weights]
    graph = onnx.GraphProto(name=own[-1].name, node=own, input=inputs, output=[_value(model, name) for name in wanted])
    graph.initializer.extend(tensor for tensor in model.proto.graph.initializer if tensor.name in used)
    proto = onnx.ModelProto(ir_version=model.proto.ir_version, graph=graph, opset_import=model.proto.opset_import)
    weights: Mapping[str, np.ndarray] = {name: array for name, array in model.weights.items() if name in used}
    return load_model(write_model(proto, weights, None) or b"", name=f"{model.name}:{own[-1].name}")


def _value(model: Model, name: str) -> onnx.ValueInfoProto:
    spec = model.graph.tensor[name]
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return onnx.helper.make_tensor_value_info(name, kind, spec.shape)


if __name__ == "__main__":
    main()
