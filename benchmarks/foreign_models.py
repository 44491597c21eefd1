"""Models that other programs wrote: each is read, scheduled, and run by two plans that are compared with onnxruntime.

python benchmarks/foreign_models.py MODELS.json     tests models, and keeps the outcome of each

MODELS.json is a list of objects: `file` next to it, `made_by`, and for open dimensions `batch_size` or `input_shapes`.
The first plan is the greedy schedule, which runs everything concurrently that can be. The second is the schedule found
for a V100 by the analytic model, which also merges. Nothing is timed, so it may run next to other work.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from command_line import read_options
from result_tables import markdown_table
from results_files import RESULTS, keep_results, known_results

from iosched import IoschedError, Model, ScheduleDocument, load_model, run
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.runtime.inputs import random_inputs
from iosched.runtime.processor import cpu_name
from iosched.scheduler.baselines import greedy
from iosched.scheduler.document import model_dtype

OUT = RESULTS / "foreign-models.json"
PLANS = ("side by side", "V100")
_NO_ESTIMATE = "latencies are known for floats alone"


def came_of(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome of one model: its size, and for each plan the largest difference or the reason for its absence."""
    shapes = {name: tuple(shape) for name, shape in asked.get("input_shapes", {}).items()}
    try:
        model = load_model(folder / asked["file"], batch_size=asked.get("batch_size"), input_shapes=shapes or None)
    except IoschedError as error:
        return {"refused": first_line(error)}
    plans = {"side by side": side_by_side, "V100": for_a_gpu}
    return {
        "nodes": len(model.proto.graph.node),
        "operators": len(model.graph.operators),
        "inputs": {name: list(shape) for name, shape in model.bindings.items()},
        "plans": {name: by_plan(model, plan) for name, plan in plans.items()},
    }


def by_plan(model: Model, plan: Callable[[Model], ScheduleDocument]) -> dict[str, Any]:
    """The error of a plan's outputs, and whether it passes; or why the plan could not be tried."""
    try:
        found = run(model, plan(model), random_inputs(model.graph.inputs), reference=model, device="cpu", threads=2)
    except IoschedError as error:
        return {"refused": first_line(error)}
    if found.check is None:
        return {"refused": found.notes[-1]}
    blamed = {} if found.first_difference is None else {"cause": found.first_difference.cause}
    return {"passed": found.check.passed, "max_rel": found.check.max_rel, **blamed}


def side_by_side(model: Model) -> ScheduleDocument:
    """The greedy schedule for this CPU."""
    device, dtype = {"kind": "cpu", "name": cpu_name()}, model_dtype(model.graph)
    return ScheduleDocument(model.name, model.digest, dict(model.bindings), dtype, device, greedy(model.graph))


def for_a_gpu(model: Model) -> ScheduleDocument:
    """The schedule found for a V100 by the analytic model."""
    with TemporaryDirectory() as folder:
        return optimize(model, OptimizeSettings(device="v100", profile_db=Path(folder) / "profile.db")).document


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows as Markdown, with a line of counts above."""
    kept = list(rows)
    plans = [plan for row in kept for plan in row.get("plans", {}).values()]
    counts = Counter(plan.get("passed") for plan in plans)
    head = ["model", "made by", "nodes", "operators", *(f"by the plan: {name}" for name in PLANS)]
    text = markdown_table(head, [list(_cells(row)) for row in kept])
    done = f"{counts[True]} computed what onnxruntime computes, {counts[False]} did not"
    said = f"{len(kept)} models, and {len(plans)} runs: {done}, and {counts[None]} could not be tried or compared."
    return f"{said}\n\n{text}\n"


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"`{Path(row['file']).name}`", row["made_by"])
    if "refused" in row:
        yield from ("", "", *[f"not read: {_safe(row['refused'])}"] * len(PLANS))
        return
    yield from (f"{row['nodes']:,}", f"{row['operators']:,}")
    yield from (_said(row["plans"][name]) for name in PLANS)


def _said(plan: Mapping[str, Any]) -> str:
    if "refused" in plan:
        return "whole numbers: no estimate" if _NO_ESTIMATE in plan["refused"] else _safe(plan["refused"])
    if plan["passed"]:
        return "equal" if plan["max_rel"] == 0 else f"off by {plan['max_rel']:.0e}"
    return f"**off by {plan['max_rel']:.0e}**, by {plan.get('cause') or 'an unknown cause'}"


def _safe(text: str) -> str:
    return (text if len(text) < 120 else f"{text[:117]}...").replace("|", "/").replace("<", "&lt;")


def main() -> None:
    asked = read_options(__file__, None, {"models": {"type": Path, "nargs": "?"}}, results=OUT)
    rows = known_results(asked.results).get("models", [])
    if asked.models is not None:
        done = {row["file"] for row in rows}
        for each in json.loads(asked.models.read_text()):
            if each["file"] in done:
                continue
            found = came_of(asked.models.parent, each)
            print(each["file"], {key: found.get(key) for key in ("refused", "plans")}, flush=True)
            rows.append({"file": each["file"], "made_by": each["made_by"], **found})
            rows.sort(key=lambda row: (row["made_by"], row["file"]))
            keep_results(asked.results, {"models": rows}, goes_on=True, in_lines=True)


if __name__ == "__main__":
    main()
