"""Every JSON result has its provenance, and files of the same measurements are identical."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripted import LATENCIES_US, script_models, script_stages

from iosched.cli.common.output import INPUTS_SEED, _without_secrets
from iosched.models.version import iosched_version
from iosched.runtime.inputs import DEFAULT_SEED
from iosched.scheduler.document import ScheduleDocument

PROFILE = ("--profile-db", "p.db")
V100 = ("--device", "v100")


def test_inputs_are_drawn_from_the_reported_seed() -> None:
    assert INPUTS_SEED == {"inputs": DEFAULT_SEED}


@pytest.mark.parametrize(
    ("words", "seeds"),
    [
        (("run", "branches.onnx", "--json"), INPUTS_SEED),
        (("optimize", "branches.onnx", *V100, "--json"), INPUTS_SEED),
        (("rank", "branches.onnx", *V100, "--json"), INPUTS_SEED),
        (("matrix", "branches.onnx", "--device", "v100", "--batch-sizes", "1", "--json"), INPUTS_SEED),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_result_says_where_it_comes_from(invoke, model: Path, words: tuple[str, ...], seeds) -> None:
    found = json.loads(invoke(*words, "-q").stdout)["provenance"]
    assert set(found) == {"machine", "versions", "seeds", "command", "time"}
    assert found["command"] == ["iosched", *words, "-q"]
    assert found["seeds"] == dict(seeds)
    assert found["versions"]["iosched"] == iosched_version()
    assert found["machine"]["cores"]


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (["./My models/m.onnx", "--cluster", "ray://user:pass@head:1"], ["--cluster", "ray://***@head:1"]),
        (["--score-cmd", "TOKEN=abc score.py --api-key xyz -n 3"], ["TOKEN=*** score.py --api-key *** -n 3"]),
        (["--auth-token", "abc", "m.onnx"], ["--auth-token", "***", "m.onnx"]),
        (["tokenizer.onnx", "password.onnx"], ["tokenizer.onnx", "password.onnx"]),
    ],
)
def test_paths_stay_as_typed_and_secrets_do_not(typed: list[str], kept: list[str]) -> None:
    assert list(_without_secrets(typed))[-len(kept) :] == kept


def test_differences_have_their_provenance_too(invoke, model: Path) -> None:
    for name in ("a.json", "b.json"):
        invoke("optimize", model, *V100, "--schedule", name, "-o", "out.onnx", "-q")
    found = json.loads(invoke("diff", "a.json", "b.json", "--json").stdout)
    assert found["provenance"]["command"] == ["iosched", "diff", "a.json", "b.json", "--json"]


def bench_line(**provenance: object) -> str:
    rows = [{"name": "iosched"}]
    line = {"model": "m", "device": "d", "batch_size": 1, "rows": rows, "samples_us": {"iosched": [1.0] * 8}}
    return json.dumps({**line, **({"provenance": provenance} if provenance else {})})


def test_diff_names_the_machines_and_versions_that_differ(invoke, workdir: Path) -> None:
    Path("a.json").write_text(bench_line(machine={"cpu": "A"}, versions={"onnxruntime": "1.31"}))
    Path("b.json").write_text(bench_line(machine={"cpu": "B"}, versions={"onnxruntime": "1.32"}))
    result = invoke("diff", "a.json", "b.json")
    assert result.exit_code == 0
    assert "The two are from different machines (cpu A and B)." in result.stderr
    assert "The two are from different versions (onnxruntime 1.31 and 1.32)." in result.stderr


def test_diff_still_reads_results_without_provenance(invoke, workdir: Path) -> None:
    Path("a.json").write_text(bench_line())
    Path("b.json").write_text(bench_line(machine={"cpu": "B"}))
    result = invoke("diff", "a.json", "b.json")
    assert result.exit_code == 0
    assert "different" not in result.stderr


def test_the_same_measurements_make_the_same_file_whatever_the_command(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    for name in ("a", "b"):
        words = ("optimize", model, "--threads", 2, *PROFILE, "-q")
        assert invoke(*words, "--schedule", f"{name}.json", "-o", f"{name}.onnx").exit_code == 0
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()
    kept = ScheduleDocument.from_json(Path("a.json").read_text()).provenance
    assert set(kept) == {"machine", "versions", "seeds"}


def test_a_computed_schedule_has_no_provenance(invoke, model: Path) -> None:
    invoke("optimize", model, *V100, "--schedule", "a.json", "-o", "out.onnx", "-q")
    assert "provenance" not in json.loads(Path("a.json").read_text())
