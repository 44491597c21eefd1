"""`iosched batch`: several files become one, whose models `run` and `show` know; JSON, tables and refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from click.testing import Result
from onnx import helper
from small_models import chain, headed, proto_of

from iosched.cli import batch as batch_command
from iosched.cli.batch import parse_memory
from iosched.jobs import batch as batch_job
from iosched.models.composition.members import members_of
from iosched.models.errors import MismatchError
from iosched.models.load import load_model

Invoke = Callable[..., Result]
PAPER = ("--device", "v100")
ROWS = {"name", "latency_us", "per_second", "low", "high", "after_rest_us", "how"}


@pytest.fixture
def files(workdir: Path) -> list[str]:
    """Three chains of one skeleton."""
    for seed, name in enumerate("abc"):
        onnx.save(chain(seed), workdir / f"{name}.onnx")
    return ["a.onnx", "b.onnx", "c.onnx"]


def test_several_files_become_one_that_runs(invoke: Invoke, files: list[str], workdir: Path) -> None:
    result = invoke("batch", *files, *PAPER, "-o", "super.onnx", "--schedule", "super.json")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("a, b, c on Tesla V100")
    assert [line.split()[0] for line in lines[2:6]] == ["serial", "packed", "batched", "mixed"]
    assert lines[-2:] == ["Wrote super.onnx and super.json.", "Next:  iosched run super.onnx --check"]
    assert json.loads((workdir / "super.json").read_text())["shipped"] in result.stdout
    np.save(workdir / "x.npy", np.ones((1, 4, 12, 12), np.float32))
    against = [word for name in "abc" for word in ("--against", f"{name}={name}.onnx")]
    ran = invoke("run", "super.onnx", "--input", "b/x=x.npy", *against, "--json")
    assert ran.exit_code == 0, ran.stderr
    assert json.loads(ran.stdout)["check"]["passed"]
    assert "a/x, c/x" in ran.stderr
    assert invoke("show", "super.onnx").exit_code == 0


def test_notes_are_not_among_the_results(invoke: Invoke, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_command, "notes_after", lambda _: ["A remark."])
    result = invoke("batch", *files, *PAPER)
    assert result.stderr == "A remark.\n"
    assert "A remark." not in result.stdout
    assert result.stdout.splitlines()[-1].startswith("Next:  iosched run batch.iosched.onnx")


def test_only_a_named_output_comes_with_a_schedule_file_of_that_name(
    invoke: Invoke, files: list[str], workdir: Path
) -> None:
    for words, written in (((), set()), (("-o", "super.v100.onnx"), {"super.v100.schedule.json"})):
        result = invoke("batch", *files, *PAPER, *words, "-q")
        assert result.exit_code == 0, result.stderr
        assert {path.name for path in workdir.glob("*.json")} == written


def test_pictures_and_explanations_know_the_models(invoke: Invoke, files: list[str]) -> None:
    words = ("batch", *files, *PAPER, "-o", "super.onnx", "-q", "--policy")
    invoke(*words, "packed")
    svg = invoke("show", "super.onnx", "--format", "svg").stdout
    legend = re.findall(r'rx="3" fill="(#\w+)"/>\n<text[^>]*>([^<]+)<', svg)
    assert [name for _, name in legend] == ["a", "b", "c"]
    assert len({colour for colour, _ in legend}) == 3
    found = json.loads(invoke("explain", "super.onnx", "b/c", "--json").stdout)
    assert found["side_by_side"] == ["a", "b", "c"]
    assert "models in parallel: a, b, c" in invoke("explain", "super.onnx", "b/c").stdout
    invoke(*words, "serial")
    assert json.loads(invoke("explain", "super.onnx", "b/c", "--json").stdout)["side_by_side"] == []


def test_models_of_another_batch_size_are_compared_and_replaced(invoke: Invoke, files: list[str]) -> None:
    """The files fix one image."""
    invoke("batch", *files, *PAPER, "-o", "super.onnx", "-q", "--batch-size", 2)
    ran = invoke("run", "super.onnx", "--against", "a=a.onnx", "--json")
    assert ran.exit_code == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert (found["check"]["passed"], found["outputs"]["a/y"]) == (True, [2, 4, 12, 12])
    assert invoke("batch", "super.onnx", "--replace", "a=b.onnx", "-o", "newer.onnx").exit_code == 0
    assert invoke("run", "newer.onnx", "--against", "a=b.onnx").exit_code == 0


def test_a_member_that_differs_from_its_original_fails_the_check(invoke: Invoke, files: list[str]) -> None:
    invoke("batch", *files, *PAPER, "-o", "super.onnx", "-q")
    wrong = invoke("run", "super.onnx", "--against", "a=b.onnx", "--against", "b=b.onnx")
    assert wrong.exit_code == 4
    assert "model 'a': output 'y' differs by" in wrong.stderr
    assert "model 'b'" not in wrong.stderr


def test_against_a_wrong_name_is_refused(invoke: Invoke, files: list[str], complains: Callable[..., str]) -> None:
    invoke("batch", *files, *PAPER, "-o", "super.onnx", "-q")
    complains(invoke("run", "super.onnx", "--against", "z=a.onnx"), 2, "no model 'z'", "it has a, b, c")
    complains(invoke("run", "a.onnx", "--against", "a.onnx", "--against", "b.onnx"), 2, "given twice")


def test_json_has_the_keys_that_scripts_rely_on(invoke: Invoke, files: list[str]) -> None:
    result = invoke("batch", "first=a.onnx", *files[1:], *PAPER, "-o", "super.onnx", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found.keys() >= {
        "outputs", "models", "clusters", "batched", "shared", "rows", "shipped", "memory_nbytes", "seconds"
    }  # fmt: skip
    assert found["outputs"] == ["super.onnx"]
    assert [model["name"] for model in found["models"]] == ["first", "b", "c"]
    assert all(model.keys() == {"name", "nodes", "latency_us"} for model in found["models"])
    assert [row["name"] for row in found["rows"]] == ["serial", "packed", "batched", "mixed"]
    assert all(row.keys() == ROWS for row in found["rows"])
    first = found["rows"][0]
    assert first["per_second"] == pytest.approx(3e6 / first["latency_us"])
    assert found["shipped"] in {row["name"] for row in found["rows"]}
    assert found["memory_nbytes"].keys() == {"alone", "together"}
    (cluster,) = found["clusters"]
    assert cluster["models"] == ["first", "b", "c"]
    assert cluster["estimated_nbytes"] > cluster["memory_nbytes"]["together"]
    assert cluster["plan_nbytes"] is None  # a simulated device has none
    assert cluster["rows"] == found["rows"]


def test_files_of_a_split_cluster_overwrite_no_input(
    invoke: Invoke, files: list[str], workdir: Path, complains: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(outputs: object, inputs: object, models: dict[str, object], members: object, *, rtol: float) -> None:
        if len(models) > 1:
            raise MismatchError("the models compute something else together")

    monkeypatch.setattr(batch_job, "check_members", fails)
    data = (workdir / "a.onnx").read_bytes()
    (workdir / "super.1.onnx").write_bytes(data)
    found = invoke("batch", "first=super.1.onnx", *files[1:], *PAPER, "-o", "super.onnx")
    complains(found, 2, "super.1.onnx would overwrite the input")
    assert (workdir / "super.1.onnx").read_bytes() == data
    assert not (workdir / "super.2.onnx").exists()


def test_models_that_do_not_fit_in_memory_are_written_to_separate_files(
    invoke: Invoke, files: list[str], workdir: Path, complains: Callable[..., str]
) -> None:
    limit = ("--memory", "12kB")
    result = invoke("batch", *files, *PAPER, *limit, "-o", "super.onnx", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["outputs"] == ["super.1.onnx", "super.2.onnx"]
    assert [each["schedule"] for each in found["clusters"]] == ["super.1.schedule.json", "super.2.schedule.json"]
    assert [each["models"] for each in found["clusters"]] == [["a", "b"], ["c"]]
    assert all((workdir / name).exists() for name in found["outputs"])
    complains(invoke("batch", *files, *PAPER, *limit, "-o", "-"), 2, "-o - takes one file, but there are 2")
    complains(invoke("batch", *files, *PAPER, "--memory", "1kB", "-o", "super.onnx"), 2, "alone", "--memory")


def test_a_dry_run_lists_the_clusters_and_writes_nothing(invoke: Invoke, files: list[str], workdir: Path) -> None:
    before = sorted(workdir.iterdir())
    found = json.loads(invoke("batch", *files, *PAPER, "--dry-run", "--json").stdout)
    assert found["clusters"] == [
        {
            "models": ["a", "b", "c"], "operators": 9, "alike": 9, "shared": 0,
            "memory_nbytes": {"alone": 15_744, "together": 15_744},
        }
    ]  # fmt: skip
    text = invoke("batch", *files, *PAPER, "--dry-run").stdout
    assert "a, b, c" in text
    assert sorted(workdir.iterdir()) == before


def test_an_input_that_is_shared_keeps_its_name(invoke: Invoke, workdir: Path) -> None:
    for seed, name in enumerate("ab"):
        onnx.save(headed(seed), workdir / f"{name}.onnx")
    result = invoke("batch", "a.onnx", "b.onnx", *PAPER, "--share-input", "x", "-o", "heads.onnx", "--json")
    assert json.loads(result.stdout)["shared"] == 2
    model = load_model(workdir / "heads.onnx")
    assert [spec.name for spec in model.graph.inputs] == ["x"]
    assert [member.name for member in members_of(model.proto)] == ["a", "b"]


def test_a_broken_file_is_named_and_may_be_left_out(
    invoke: Invoke, files: list[str], workdir: Path, complains: Callable[..., str]
) -> None:
    (workdir / "broken.onnx").write_bytes(b"no model")
    words = ("batch", *files, "broken.onnx", *PAPER, "-o", "super.onnx")
    complains(invoke(*words), 2, "model 'broken'")
    result = invoke(*words, "--skip-broken")
    assert result.exit_code == 0, result.stderr
    assert "Skipped 'broken'" in result.stderr
    assert len(members_of(onnx.load(workdir / "super.onnx"))) == 3
    complains(invoke("batch", "broken.onnx", *PAPER, "--skip-broken"), 2)


def test_dynamic_shapes_are_bound_for_one_model_or_for_all(
    invoke: Invoke, workdir: Path, complains: Callable[..., str]
) -> None:
    for name in "ab":
        nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
        onnx.save(proto_of(nodes, {"x": ["n", 8]}, ["y"]), workdir / f"{name}.onnx")
    words = ("batch", "a.onnx", "b.onnx", *PAPER, "-o", "super.onnx", "-q")
    shapes = ("--input-shape", "a/x=2x8", "--input-shape", "b/x=3x8")
    assert invoke(*words, *shapes).exit_code == 0
    assert load_model(workdir / "super.onnx").bindings == {"a/x": (2, 8), "b/x": (3, 8)}
    assert invoke(*words, "--input-shape", "x=4x8").exit_code == 0
    assert load_model(workdir / "super.onnx").bindings == {"a/x": (4, 8), "b/x": (4, 8)}
    complains(invoke(*words, *shapes, "--input-shape", "z=2x8"), 2, "--input-shape z")


def test_models_need_distinct_names(
    invoke: Invoke, files: list[str], workdir: Path, complains: Callable[..., str]
) -> None:
    (workdir / "other").mkdir()
    onnx.save(chain(5), workdir / "other" / "a.onnx")
    complains(invoke("batch", "a.onnx", "other/a.onnx", *PAPER), 2, "both be named 'a'", "OTHER=other/a.onnx")
    assert invoke("batch", "a.onnx", "z=other/a.onnx", *PAPER, "-q").exit_code == 0
    complains(invoke("batch", "a.onnx", "-", *PAPER), 2, "NAME=-")
    complains(invoke("batch", "a.onnx", "b.onnx", *PAPER, "-o", "a.onnx"), 2, "overwrite the input")
    complains(invoke("batch", "a.onnx", "missing.onnx", *PAPER), 2, "missing.onnx does not exist")


@pytest.mark.parametrize(
    ("text", "nbytes"), [("16GB", 16 * 10**9), ("512MiB", 2**29), ("1.5k", 1500), ("20", 20), ("1 tb", 10**12)]
)
def test_memory_is_read_with_its_unit(text: str, nbytes: int) -> None:
    assert parse_memory(text) == nbytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "1XB", "1IB", "a lot"])
def test_text_that_is_not_a_memory_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="16GB"):
        parse_memory(text)


@pytest.mark.parametrize("policy", ["greedy", "packed"])
def test_a_model_is_replaced_by_a_retrained_one(
    invoke: Invoke, files: list[str], workdir: Path, complains: Callable[..., str], policy: str
) -> None:
    invoke("batch", *files, *PAPER, "--policy", policy, "-o", "super.onnx", "-q")
    onnx.save(chain(50), workdir / "new.onnx")
    result = invoke("batch", "super.onnx", "--replace", "b=new.onnx", "-o", "newer.onnx", "--json")
    assert "Wrote newer.onnx and newer.schedule.json." in result.stderr
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {"output": "newer.onnx", "replaced": ["b"], "unshared": {"b": []}}
    against = [word for pair in ("a=a.onnx", "b=new.onnx", "c=c.onnx") for word in ("--against", pair)]
    assert invoke("run", "newer.onnx", *against).exit_code == 0
    assert invoke("run", "newer.onnx", "--against", "b=b.onnx").exit_code == 4
    words = ("batch", "super.onnx", "--replace", "b=new.onnx")
    complains(invoke(*words, "--budget", "3"), 2, "--replace searches nothing: leave --budget out")
    complains(invoke(*words, "-o", "new.onnx"), 2, "overwrite the input")
    complains(invoke(*words, "a.onnx"), 2, "takes one MODEL")
    complains(invoke("batch", "super.onnx", "--replace", "z=new.onnx"), 2, "the file has no model 'z'")
