"""What it takes to prove of every plan that its result cannot depend on timing, beside opening and compiling the model.

    python benchmarks/checking.py [--rounds 5] [--networks squeezenet,...] [-o F.json]

For the greedy schedule of each bundled network: loading the model, opening it on the device, compiling the whole, and
the check of that plan, alone; then the same of every stage alone. Needs no GPU: there, opening and compiling end with
the plan, so that the check's share of what a GPU takes in all is smaller than told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

from testbed import option_parser, print_table, write_results

from iosched.models import zoo
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.lower import lower as lower_on_cpu
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.lower.network import Network
from iosched.runtime.cuda.lower.plan import lower, lower_stage
from iosched.runtime.hazards import HazardError, check
from iosched.runtime.plan import ExecutionPlan
from iosched.runtime.processor import cpu_name
from iosched.scheduler.baselines import greedy
from iosched.scheduler.schedule import Stage

Result = TypeVar("Result")
Times = dict[str, float]
TITLES = ("network", "device", "views", "load", "open", "compile", "check", "share", "stages", "checks", "share")


def main() -> None:
    parser = option_parser(__doc__, networks=",".join(zoo.names()), device="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found: list[dict[str, object]] = []
    rows = []
    for name in options.networks.split(","):
        source = zoo.build(name).SerializeToString()
        for device, observe in (("cpu", on_cpu), ("cuda", on_gpu)):
            samples = [observe(source, name) for _ in range(options.rounds)]
            found.append({"network": name, "device": device, "ms": samples})
            rows.append((name, device, *summary(samples)))
    print_table(TITLES, rows)
    words = ["--rounds", str(options.rounds)]
    write_results(options, Path(__file__).stem, words, {"device": cpu_name(), "networks": found})


def on_cpu(source: bytes, name: str) -> Times:
    """Milliseconds of every part, once, from the start."""
    model, load_ms = timed(lambda: load_model(source, name=name))
    backend, open_ms = timed(lambda: CpuBackend(model))
    with backend:
        schedule = greedy(backend.graph)
        compiled, compile_ms = timed(lambda: backend.compile(schedule))
        stages, stages_ms = timed(lambda: [backend.compile_stage(stage) for stage in schedule.stages])
        plans = [stage_plan_on_cpu(backend, stage) for stage in schedule.stages]
        compiled.close()
        for each in stages:
            assert each is not None
            each.executor.close()
    return times(load_ms, open_ms, compile_ms, compiled.lowering.plan, stages_ms, plans)


def stage_plan_on_cpu(backend: CpuBackend, stage: Stage) -> ExecutionPlan:
    """The plan of a stage as `compile_stage` makes it."""
    nodes = [[[index for unit in group for index in backend.coarse.nodes[unit]] for group in stage.groups]]
    return lower_on_cpu(backend.kernels, backend._placement, nodes, backend.lanes, backend._cache, partial=True).plan


def on_gpu(source: bytes, name: str) -> Times:
    """Milliseconds of every part, as far as no GPU is needed."""
    model: Model
    model, load_ms = timed(lambda: load_model(source, name=name))
    network, open_ms = timed(lambda: Network(model, Precision("fp32")))
    schedule = greedy(model.graph)
    lowering, compile_ms = timed(lambda: lower(network, schedule))
    stages, stages_ms = timed(lambda: [lower_stage(network, stage) for stage in schedule.stages])
    plans = [each.plan for each in stages if each is not None]
    return times(load_ms, open_ms, compile_ms, lowering.plan, stages_ms, plans)


def times(
    load_ms: float,
    open_ms: float,
    compile_ms: float,
    plan: ExecutionPlan,
    stages_ms: float,
    plans: Sequence[ExecutionPlan],
) -> Times:
    return {
        "views": sum(len(task.reads) + len(task.writes) for lane in plan.lanes for task in lane),
        "load": load_ms,
        "open": open_ms,
        "compile": compile_ms,
        "check": timed(lambda: check(plan))[1],
        "stages": stages_ms,
        "stage_checks": timed(lambda: [checked(each) for each in plans])[1],
    }


def checked(plan: ExecutionPlan) -> bool:
    """Whether the plan passes; versions that did not check all plans made some that do not."""
    try:
        check(plan)
    except HazardError:
        return False
    return True


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What `work` gives, and its milliseconds."""
    started = time.perf_counter_ns()
    result = work()
    return result, round((time.perf_counter_ns() - started) / 1e6, 3)


def summary(samples: Sequence[Times]) -> tuple[str, ...]:
    """Medians, and the median of the check's share within rounds."""
    parts = {key: median(sample[key] for sample in samples) for key in samples[0]}
    whole = median(each["check"] / (each["load"] + each["open"] + each["compile"]) for each in samples)
    stages = median(each["stage_checks"] / each["stages"] for each in samples)
    shown = (f"{parts[key]:.1f}" for key in ("load", "open", "compile", "check"))
    alone = (f"{parts[key]:.1f}" for key in ("stages", "stage_checks"))
    return f"{parts['views']:.0f}", *shown, f"{whole:.2%}", *alone, f"{stages:.2%}"


if __name__ == "__main__":
    main()
