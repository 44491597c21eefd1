"""`iosched batch --requests`: it writes a policy, and no model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from shipped import optimized_file
from small_models import branches, chain

import iosched
from iosched.jobs.load_test import policy_search as job
from iosched.jobs.load_test.latencies import LoadRow
from iosched.jobs.load_test.policy_search import PolicySearchResult
from iosched.jobs.load_test.sender import Answer
from iosched.jobs.serving.policy_file import PolicyFile, PolicyMachine


@pytest.fixture
def files(workdir: Path) -> tuple[str, str]:
    onnx.save(branches(), workdir / "a.onnx")
    onnx.save(chain(), workdir / "b.onnx")
    return "a.onnx", "b=b.onnx"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Replaces measuring with a made-up result; collects the arguments."""
    found: list[tuple[Any, ...]] = []

    def fake(paths: object, rates: object, *, observer: object, **more: object) -> PolicySearchResult:
        found.append((paths, rates, more))
        rows = (LoadRow("policy", "a", 3.0, 5e3, 2.0, (Answer("a", 1e3, 0.0),) * 6),)
        return PolicySearchResult(PolicyFile(PolicyMachine("Test CPU", {}, 2), {}, ()), rows, "policy")

    monkeypatch.setattr(job, "search_policy", fake)
    return found


def test_the_policy_is_the_only_file_that_is_written(invoke, files, asked, workdir: Path) -> None:
    words = ("batch", *files, "--requests", "a=20/s,b=5/s", "--p99", "50ms", "--threads", 2)
    result = invoke(*words, "-o", "POLICY.json")
    assert result.exit_code == 0, result.stderr
    assert asked == [
        (
            {"a": Path("a.onnx"), "b": Path("b.onnx")},
            {"a": 20.0, "b": 5.0},
            {"p99_s": {"a": 0.05, "b": 0.05}, "threads": 2, "folder": Path()},
        )
    ]
    assert {path.name for path in workdir.iterdir()} == {"a.onnx", "b.onnx", "POLICY.json"}
    assert json.loads((workdir / "POLICY.json").read_text())["machine"]["name"] == "Test CPU"
    assert result.stdout.splitlines()[0] == "a, b on Test CPU"
    assert "6 requests of a are too few for p99." in result.stderr
    assert "Wrote POLICY.json." in result.stderr
    assert invoke(*words).exit_code == 0
    assert (workdir / "policy.json").exists()


def test_a_model_may_be_an_exported_folder(invoke, files, asked, workdir: Path) -> None:
    iosched.export(optimized_file(workdir / "o.onnx", branches()), workdir / "e.plan", threads=1)
    assert invoke("batch", "e.plan", "--requests", "5/s").exit_code == 0
    ((paths, _, _),) = asked
    assert paths["e"].parent == Path("e.plan")


def test_json_has_the_keys_that_scripts_rely_on(invoke, files, asked) -> None:
    found = json.loads(invoke("batch", *files, "--requests", "20/s", "--json").stdout)
    assert set(found) == {"output", "rows", "chosen", "notes", "provenance"}
    assert (found["output"], found["chosen"], found["rows"][0]["p50_us"]) == ("policy.json", "policy", 1e3)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--p99", "5ms"), "--requests has no value"),
        (("--requests", "5/s", "--p99", "c=5ms"), "--p99 c"),
        (("--requests", "5/s", "--share-input", "x"), "--share-input"),
        (("--requests", "5/s", "--device", "v100"), "--device"),
        (("--requests", "5/s", "--input-shape", "x=1x2"), "--input-shape"),
        (("--requests", "5/s", "-o", "a.onnx"), "overwrite"),
        (("--requests", "5/s", "c=zoo:squeezenet"), "zoo:squeezenet is no file"),
        (("--requests", "5/s", "-o", "-", "--json"), "stdout"),
    ],
)
def test_wrong_usage_is_refused(invoke, complains, files, asked, words: tuple[str, ...], named: str) -> None:
    complains(invoke("batch", *files, *words), 2, named)
    assert asked == []
