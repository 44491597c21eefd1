"""`optimize --units FILE`: operators that are scheduled as one at the user's request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iosched.models.load import load_model


@pytest.fixture
def units(model: Path) -> list[list[str]]:
    """The first operator of `branches.onnx` and one that reads it, in `units.json`."""
    graph = load_model(model).graph
    first = next(name for name, after in graph.successors.items() if after)
    found = [[graph.successors[first][0], first]]
    Path("units.json").write_text(json.dumps(found))
    return found


def test_units_are_read_from_a_file_or_stdin_and_kept(invoke, model: Path, units: list[list[str]]) -> None:
    result = invoke("optimize", model, "--device", "v100", "--units", "units.json")
    assert result.exit_code == 0, result.stderr
    text = Path("branches.schedule.json").read_text()
    assert json.loads(text)["units"] == units
    piped = invoke("optimize", model, "--device", "v100", "--units", "-", stdin=Path("units.json").read_bytes())
    assert piped.exit_code == 0, piped.stderr
    assert Path("branches.schedule.json").read_text() == text
    taken = invoke("optimize", model, "--device", "v100", "--schedule-from", "branches.schedule.json", "-o", "b.onnx")
    assert taken.exit_code == 0, taken.stderr
    assert json.loads(Path("b.schedule.json").read_text())["units"] == units
    run = invoke("run", "branches.iosched.onnx", "--device", "cpu", "--check", "--json")
    assert json.loads(run.stdout)["check"]["passed"]


def test_explain_names_the_operators_of_units(invoke, model: Path, units: list[list[str]]) -> None:
    assert invoke("optimize", model, "--device", "v100", "--units", "units.json").exit_code == 0
    result = invoke("explain", "branches.iosched.onnx", units[0][0], "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert set(found["together"]) == set(units[0])
    for stage in (found["present"], *(each for place in found["placements"] for each in place["schedule"])):
        groups = [set(group) for group in stage["groups"]]
        assert all(not group & {*units[0]} or group >= {*units[0]} for group in groups)


def test_a_dry_run_counts_units(invoke, model: Path, units: list[list[str]]) -> None:
    del units
    n_operators = []
    for more in ((), ("--units", "units.json")):
        result = invoke("optimize", model, "--device", "v100", "--dry-run", "--json", *more)
        n_operators.append(sum(block["operators"] for block in json.loads(result.stdout)["blocks"]))
    n = len(load_model(model).graph.operators)
    assert n_operators == [n, n - 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[", ("bad.json: not a list of units", "Write a list of lists")),
        ("[]", ("bad.json: the list of units is empty",)),
        ('[["nowhere"]]', ("unit 1 names 'nowhere', which is not an operator",)),
    ],
)
def test_bad_files_are_refused(invoke, complains, model: Path, text: str, words: tuple[str, ...]) -> None:
    Path("bad.json").write_text(text)
    complains(invoke("optimize", model, "--device", "v100", "--units", "bad.json"), 2, *words)


def test_wrong_usage_with_units_is_refused(invoke, complains, model: Path, units: list[list[str]]) -> None:
    del units
    call = ("optimize", model, "--device", "cpu", "--units")
    complains(invoke(*call, "units.json", "--schedule-from", model), 2, "searches nothing: leave out --units")
    complains(invoke(*call, "units.json", "--objective", "throughput"), 2, "omit --units or --objective")
    complains(invoke(*call, "none.json"), 2, "none.json: No such file or directory")
    complains(invoke(*call, "units.json", "--schedule", "units.json"), 2, "would overwrite the input")
    complains(invoke("optimize", "-", "--units", "-", stdin=b"x"), 2, "MODEL and the units cannot both be '-'")
