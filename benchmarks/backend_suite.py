"""Counts the backend test cases of ONNX that run as in onnxruntime, with the reasons for the others.

python benchmarks/backend_suite.py
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from backend_cases import agree, case, case_names, left_out, on_the_cpu  # noqa: E402
from command_line import read_options  # noqa: E402
from results_files import keep_results  # noqa: E402

from iosched.models.errors import InvalidModelError, PlanError  # noqa: E402
from iosched.models.load import load_model  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "onnx-backend.json"


def came_of(name: str) -> tuple[str, str]:
    """Outcome of a case that onnxruntime runs, and its reason."""
    found = case(name)
    try:
        model = load_model(found.model, name=name, input_shapes=found.input_shapes)
        how, outputs = on_the_cpu(found, model)
    except (InvalidModelError, PlanError) as error:
        return "refused", str(error).splitlines()[0]
    try:
        agree(outputs, found.expected())
    except AssertionError as error:
        return "differs", str(error).strip().splitlines()[0]
    return how, ""


def main() -> None:
    asked = read_options(__file__, results=RESULTS)
    names, others = case_names(), left_out()
    came = {name: came_of(name) for name in names}
    content = {
        "cases": len(names) + len(others),
        "onnxruntime_runs": len(names),
        "here": Counter(what for what, _ in came.values()),
        "whole": [name for name, (what, _) in came.items() if what == "whole on onnxruntime"],
        "refused": {name: why for name, (what, why) in came.items() if what == "refused"},
        "differs": {name: why for name, (what, why) in came.items() if what == "differs"},
        "left_out": dict(Counter(others.values()).most_common()),
    }
    keep_results(asked.results, content, seeds={})
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
