"""Time of each kernel on a CPU: onnxruntime, our executor one operator after another, and OpenVINO.

    python benchmarks/cpu_profile.py MODEL... [--rounds 5] [-o results.json]

`cpu_models.py` explains the names. Each library runs in a process of its own, on all cores and on one, interleaved. The
kernels that it reports are grouped by kind, and by operator of the model where their names allow it. Models in the
results file stay there. `cpu_profile_tables.py` has the tables.

Options:
    --output: raw results as JSON
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from children import REST_SECONDS, Child, serve
from command_line import read_options
from cpu_models import cpu_model, short_name
from cpu_profilers import LIBRARIES
from results_files import resumed_results, write_results

from iosched.runtime.cores import cpu_count


def main(words: Sequence[str]) -> None:
    if words[:1] == ["--child"]:
        library, name, threads = words[1:]
        serve(LIBRARIES[library](cpu_model(name), int(threads)))
        return
    options = read_options(__file__, words, {"models": {"nargs": "+"}}, rounds=5, output=Path)
    found = resumed_results(options.output).get("models", {})
    for name in options.models:
        found[short_name(name)] = profiled(name, options.rounds)
        write_results(options, {"models": found}, goes_on=True)


def profiled(name: str, rounds: int) -> dict[str, Any]:
    """The profile of each library on all cores and on one."""
    model = cpu_model(name)
    counts = sorted({cpu_count(), 1}, reverse=True)
    children = {
        (library, threads): Child.start(f"{library} on {threads}", __file__, [library, name, str(threads)])
        for library in LIBRARIES
        for threads in counts
    }
    latency_us: dict[tuple[str, int], list[list[float]]] = {key: [] for key in children}
    try:
        for _ in range(rounds):
            for key, child in children.items():
                time.sleep(REST_SECONDS)
                latency_us[key].append([round(us, 1) for us in child.ask("time")])
                child.ask("profiled")
        profiles = {key: child.ask("kernels") for key, child in children.items()}
    finally:
        for child in children.values():
            child.stop()
    return {
        "flops": sum(operator.flops for operator in model.graph.operators),
        "operators": {operator.name: operator.type for operator in model.graph.operators},
        "threads": counts,
        "libraries": {
            library: {str(n): {"latency_us": latency_us[library, n], **_rounded(profiles[library, n])} for n in counts}
            for library in LIBRARIES
        },
    }


def _rounded(profile: dict[str, Any]) -> dict[str, Any]:
    """A library's profile, with the parts of a kernel combined."""
    parts: dict[str, dict[str, Any]] = {}
    for kernel in profile["kernels"]:
        whole = parts.setdefault(kernel["name"], {**kernel, "us": 0.0})
        whole["us"] = round(whole["us"] + kernel["us"], 2)
    rest = {key: round(us, 2) if isinstance(us, float) else us for key, us in profile.items()}
    return {**rest, "kernels": list(parts.values())}


if __name__ == "__main__":
    main(sys.argv[1:])
