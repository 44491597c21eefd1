"""One operator after another in our executor, compared with plain onnxruntime and with earlier versions of ours.

    python benchmarks/cpu_sequential.py MODEL... [--before FOLDER]... [--rounds 15] [-o results.json]

`cpu_models.py` explains the names. Nothing is searched. Alternatives differ in kernels, layouts and the division over
the cores: ours ("sequential"), or onnxruntime's on the whole rewritten graph in one session ("session"). FOLDER has
another version of the package, as `iosched`; a checkout has it in `build/lint`. Each alternative has a process of its
own; they run interleaved, A B C A B C. The results also count the nodes, layout conversions, tasks per lane and waits
of the lowered plans.

Options:
    --before: folder of another version of the package
    --output: raw results as JSON
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from children import REST_SECONDS, Child, serve
from cpu_models import cpu_model, short_name

WARM, IN_A_ROW = 2, 6


def main(words: Sequence[str]) -> None:
    if words[:1] == ["--child"]:
        return answer(*words[1:])
    from command_line import read_options
    from results_files import write_results

    takes, before = {"models": {"nargs": "+"}}, {"action": "append", "default": []}
    options = read_options(__file__, words, takes, before=before, rounds=15, output=Path)
    found = {}
    for model in options.models:
        found[short_name(model)] = measure(model, options.before, options.rounds)
        write_results(options, {"models": found})
    return None


def measure(model: str, before: Sequence[str], rounds: int) -> dict[str, Any]:
    """Counts of the plans, and for every alternative the samples of each turn."""
    earlier = {f"before {number}" if number > 1 else "before": folder for number, folder in enumerate(before, start=1)}
    names = {"onnxruntime": None, "sequential": None, "session": None, **earlier}
    alternatives = [Child.start(name, __file__, [name, model], folder) for name, folder in names.items()]
    try:
        counts = {each.name: each.ask("counts") for each in alternatives}
        samples: dict[str, list[list[float]]] = {each.name: [] for each in alternatives}
        for _ in range(rounds):
            for each in alternatives:
                time.sleep(REST_SECONDS)
                samples[each.name].append(each.ask("time"))
    finally:
        for each in alternatives:
            each.stop()
    return {"counts": {name: found for name, found in counts.items() if found}, "samples_us": samples}


def answer(name: str, model: str) -> None:
    """The process of one alternative: answers each word on stdin with a line of JSON on stdout."""
    serve(onnxruntime_alternative(model) if name == "onnxruntime" else own_alternative(model, name == "session"))


def onnxruntime_alternative(name: str) -> Mapping[str, Any]:
    """Plain onnxruntime with all cores for one operator at a time, on the original model."""
    from iosched.runtime.cores import cpu_count
    from iosched.runtime.inputs import random_inputs
    from iosched.runtime.reference import Reference, ReferenceSettings

    model = cpu_model(name)
    reference = Reference(model, ReferenceSettings(intra_threads=cpu_count()))
    inputs = random_inputs(model.graph.inputs)
    return {"counts": lambda: None, "time": lambda: _rounded(reference.time(inputs, WARM + IN_A_ROW))}


def own_alternative(name: str, as_session: bool) -> Mapping[str, Any]:
    """The sequential schedule, or all as one session, in the executor of the package that this process imports."""
    from iosched.runtime.cpu.backend import CpuBackend
    from iosched.runtime.inputs import random_inputs
    from iosched.scheduler.baselines import sequential

    model = cpu_model(name)
    backend = CpuBackend(model)
    compiled = backend.compile(one_session(backend.graph) if as_session else sequential(backend.graph))
    inputs = random_inputs(model.graph.inputs)
    plan = compiled.lowering.plan
    counts = {
        "nodes": len(backend.kernels.nodes),
        "conversions": sum(node.op_type.startswith("Reorder") for node in backend.kernels.nodes),
        "tasks": [len(lane) for lane in plan.lanes],
        "waits": sum(len(task.waits) for task in plan.tasks),
    }
    return {"counts": lambda: counts, "time": lambda: _rounded(compiled.time(inputs, WARM + IN_A_ROW))}


def one_session(graph: Any) -> Any:
    """The schedule whose only stage is a session of all operators."""
    from iosched.scheduler.baselines import together
    from iosched.scheduler.schedule import Block, Schedule, Strategy

    stages = (replace(stage, strategy=Strategy.SESSION) for stage in together(graph).stages)
    return Schedule((Block(0, tuple(stages)),))


def _rounded(samples: Sequence[float]) -> list[float]:
    return [round(sample, 1) for sample in samples[WARM:]]


if __name__ == "__main__":
    main(sys.argv[1:])
