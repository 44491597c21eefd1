"""docs/json.md against the output of commands: every key is on the page, and every key of the page is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import onnx
import pytest
from click.testing import Result
from documented import Page, read_page
from scripted import LATENCIES_US, latencies_by_stage, script_models
from small_models import branches, chain
from thread_cluster import ThreadTransport, cpu_places

from iosched.cli.main import cli
from iosched.jobs import optimize as optimize_job
from iosched.jobs.load_test import policy_search
from iosched.jobs.optimize import optimize
from iosched.jobs.pool import cluster as pool_cluster
from iosched.jobs.pool import survey
from iosched.jobs.pool.messages import Facts
from iosched.jobs.pool.ray import ray_transport
from iosched.jobs.pool.transport import Place
from iosched.jobs.worker import Worker
from iosched.models.errors import DeviceError
from iosched.models.export import write_model
from iosched.models.load import load_model
from iosched.models.mutation.mutator import OperatorMutator, by_type
from iosched.models.mutation.variant import variant_of
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.runtime.reference import SelfCheck

Invoke = Callable[..., Result]
Printed = Iterator[tuple[str, Any]]

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
_NOON = "2026-01-01T12:00:00Z"
_OF_A_GPU = {"clock_mhz": 1410, "throttled_by": "power cap"}
PROFILE_LINES: tuple[dict[str, object], ...] = (
    {"table": "choice", "device": "d", "key": "k", "value": "v"},
    {"table": "yardstick", "device": "d", "measured_at": _NOON, "samples_us": [1.0]},
    {"table": "stage", "device": "d", "signature": "s", "turn": "first", "measured_at": _NOON, "samples_us": [1.0],
     "disturbed_by": "others", **_OF_A_GPU},
    {"table": "comparison", "device": "d", "key": "k", "candidate": "c", "measured_at": _NOON, "samples_us": [1.0],
     "rested_us": [1.0], "setting": "one thread", "others": [0.1], "stolen": [0.2], "slowness": [1.5]},
    {"table": "whole", "device": "d", "key": "k", "measured_at": _NOON, "shipped": "iosched", "samples_us": [1.0],
     "sequential_us": [1.0], "stages": 1, "sum_us": 1.0, "sequential_sum_us": 1.0},
)  # fmt: skip
SMALL = "devices, zoo list, profile stats"
V100 = ("--device", "v100")
CPU = ("--device", "cpu", "--threads", 2)
TEAMS = ("m.onnx", "--batch-size", 2, "--objective", "throughput", "--budget", 1, "-o", "teams.onnx")

NOT_ALWAYS_SEEN = {
    "explain.placements[].in_turn": "needs a place that looks faster",
    "optimize.error": "needs OpenVINO",
    "teams": "needs teams that are found to be faster",
}
"""Objects of the page that may be null in these tests, and why."""


@pytest.fixture
def ask(invoke: Invoke) -> Callable[..., list[Any]]:
    """Calls a command with `--json`, and returns the objects that it prints, one a line."""

    def call(*words: object) -> list[Any]:
        result = invoke(*words, "--json", "-q")
        assert result.stdout, (words, result.stderr, result.exception)
        return [json.loads(line) for line in result.stdout.splitlines()]

    return call


@pytest.fixture
def files(workdir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Models, and a CPU whose latencies are made up."""
    script_models(monkeypatch, LATENCIES_US)
    monkeypatch.setattr(policy_search, "_COMPARED_S", 2.0)
    latencies_by_stage(monkeypatch)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # do not wait for other studies on this machine
    onnx.save(branches("n"), "m.onnx")
    for seed, name in enumerate("abc"):
        onnx.save(chain(seed), f"{name}.onnx")
    swapped = branches("n")
    swapped.graph.node[3].input[:] = ["b", "c"]
    onnx.save(swapped, "swapped.onnx")
    base = load_model(Path("m.onnx"), batch_size=1)
    made = variant_of(base, [OperatorMutator("op", by_type("Relu"), ["keep", "conv3"])], lambda question: 1).model
    write_model(made.proto, made.weights, Path("variant.onnx"))
    Path("space.py").write_text("from toy_space import SPACE as space\n")


def of_schedules(ask: Callable[..., list[Any]]) -> Printed:
    yield "optimize", *ask("optimize", *TEAMS, *CPU)
    yield "optimize", *ask("optimize", "zoo:squeezenet", *V100, "-o", "squeezenet.onnx")
    for words in ((*V100,), (*V100, "--dry-run"), (*V100, "--batch-sizes", "1,4", "-o", "sizes.onnx"), CPU):
        size = () if "--batch-sizes" in words else ("--batch-size", 1)
        own = ("-o", "cpu.onnx") if words is CPU else ()
        for found in ask("optimize", "m.onnx", *words, *size, *own):
            yield "optimize", found
    for words in (("m.iosched.onnx",), ("sizes.onnx", "--batch-size", 4), ("cpu.onnx",), ("teams.onnx",)):
        yield "show", *ask("show", *words)
        yield "explain", *ask("explain", words[0], "b", *words[1:])
    yield "diff", *ask("diff", "m.iosched.onnx", "cpu.onnx", "--anyway")


def of_runs(ask: Callable[..., list[Any]]) -> Printed:
    yield "run", *ask("run", "m.iosched.onnx", "--check", "--threads", 1)
    yield "run", *ask("run", "m.iosched.onnx", "--against", "swapped.onnx", "--threads", 1)
    yield "export", *ask("export", "cpu.onnx", "-o", "plan", "--threads", 2)
    yield "export", *ask("export", "plan", "--check")
    for name, other, over in (("1", "greedy", ("--baseline", "greedy")), ("2", "onnxruntime", ())):
        found = ask(
            "bench", "m.onnx", "--batch-size", 1, "--with", "sequential", "--with", other, "--rounds", 6, *over, *CPU
        )
        for samples in found[0]["samples_us"].values() if name == "2" else ():
            samples[:] = [10 * each for each in samples]
        Path(f"{name}.json").write_text(json.dumps(found[0]))
        yield "bench", *found
    yield "diff", *ask("diff", "1.json", "2.json", "--max-regression", "3%", "--row", "sequential")


def of_many_models(ask: Callable[..., list[Any]]) -> Printed:
    models = ("a.onnx", "b.onnx", "c.onnx")
    yield "batch", *ask("batch", *models, *V100, "--dry-run")
    yield "batch", *ask("batch", *models, *V100, "-o", "super.onnx")
    yield "batch", *ask("batch", *models, *CPU, "--budget", 0.5, "-o", "measured.onnx")
    yield "batch", *ask("batch", "super.onnx", "--replace", "b=a.onnx", "-o", "newer.onnx")
    served = ("a.onnx", "b.onnx", "--requests", "60/s")
    yield "batch", *ask("batch", *served, "--threads", 1)
    yield "bench", *ask("bench", *served, "--duration", 1, "--with", "onnxruntime", *CPU)
    yield "rank", *ask("rank", "a.onnx", "none.onnx", *V100)
    yield "matrix", *ask("matrix", "m.onnx", "--device", "v100,cpu", "--batch-sizes", "1,4")
    study = ("explore", "a.onnx", "--space", "space.py", "--objective", "latency:v100,flops", "--sampler", "random")
    yield "explore", *ask(*study, "--trials", 6, "--top", 1, "-o", "out", "--storage", "kept.db")
    yield "explore", *ask("explore", "show", "kept.db")
    fails = f"{sys.executable} -c 'raise SystemExit(1)' {{model}}"
    words = ("a.onnx", "--space", "space.py", "--objective", "good", "--score-cmd", fails, "--trials", 1, "-o", "none")
    yield "explore", *ask("explore", *words)


def of_this_machine(ask: Callable[..., list[Any]]) -> Printed:
    for words in (("m.onnx", "--batch-size", 1), ("variant.onnx",), ("m.iosched.onnx",)):
        yield "inspect", *ask("inspect", *words)
    for words in (("devices",), ("zoo", "list"), ("profile", "stats")):
        yield SMALL, *ask(*words)
    Path("iosched.toml").write_text("threads = 1\n")
    yield "doctor", *ask("doctor", "m.onnx", "--batch-size", 1)


def of_a_cluster(ask: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch) -> Printed:
    monkeypatch.setattr(
        pool_cluster,
        "RayTransport",
        lambda text, threads: ThreadTransport(cpu_places(1), lambda device, _, say: Worker(device, 2, say)),
    )
    yield "optimize", *ask("optimize", "m.onnx", "--batch-size", 1, "--cluster", "local:1", "-o", "there.onnx")
    facts = Facts(versions={"iosched": "1"}, device="cpu", name="A CPU", key="k", threads=8)
    found = (survey.Surveyed(Place("box", "10.0.0.1", "cpu", 1, 8), facts),)
    monkeypatch.setattr(ray_transport, "RayTransport", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(survey, "survey", lambda *_: found)
    yield SMALL, *ask("devices", "--cluster", "head:6379")


def of_failures(ask: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch) -> Printed:
    def fails_at_4(model: Any, *rest: Any) -> object:
        if model.batch_size == 4:
            raise DeviceError("the memory is too small")
        return optimize(model, *rest)

    monkeypatch.setattr(optimize_job, "optimize", fails_at_4)
    yield "optimize", *ask("optimize", "m.onnx", *V100, "--batch-sizes", "1,4", "-o", "partly.onnx")
    monkeypatch.setattr(CpuDevice, "checks", lambda self: (SelfCheck("compiler", "all", lambda: "exact"),))
    yield SMALL, *ask("devices", "--selftest", "--device", "cpu")


@dataclass(frozen=True)
class Compared:
    """The page after comparing all outputs with it, the complaints, and the commands that were called."""

    page: Page
    complaints: list[str]
    asked: set[str]


@pytest.fixture
def compared(ask: Callable[..., list[Any]], invoke: Invoke, files: None, monkeypatch: pytest.MonkeyPatch) -> Compared:
    asked, page, complaints = set[str](), read_page(PAGE.read_text(encoding="utf-8")), list[str]()

    def asking(*words: object) -> list[Any]:
        asked.update((str(words[0]), " ".join(map(str, words[:2]))))
        return ask(*words)

    for printed in (of_schedules, of_runs, of_many_models, of_this_machine):
        for section, found in printed(asking):
            complaints += page.complaints(section, found)
    for printed_there in (of_a_cluster, of_failures):
        for section, found in printed_there(asking, monkeypatch):
            complaints += page.complaints(section, found)
    lines = Path("lines.jsonl")
    lines.write_text("\n".join(map(json.dumps, PROFILE_LINES)), encoding="utf-8")
    assert invoke("profile", "import", lines).exit_code == 0
    for line in filter(None, invoke("profile", "export", "-").stdout.split("\n")):
        complaints += page.complaints("profile export", json.loads(line))
    return Compared(page, complaints, asked)


def test_the_page_matches_the_output_of_commands(compared: Compared) -> None:
    assert sorted(set(compared.complaints)) == []
    assert {key for key in compared.page.unseen() if key.rpartition(".")[0] not in NOT_ALWAYS_SEEN} == set()
    with_json = {path for path, command in commands(cli) if any(each.name == "as_json" for each in command.params)}
    assert with_json - compared.asked == set()


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands, by the words that call them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ({"a": 1, "b": None, "c": {"x": "one"}}, []),
        ({"a": 1, "b": "two", "c": {}, "d": True}, []),
        ({"a": 1, "b": None}, ["thing: 'c' is not there"]),
        ({"a": 1, "b": None, "c": {}, "e": 1}, ["thing: 'e' is not on the page"]),
        ({"a": None, "b": None, "c": {}}, ["thing.a: 'None' is not what the page says"]),
        ({"a": 1, "b": "three", "c": {}}, ["thing.b: 'three' is not what the page says"]),
        ({"a": 1, "b": None, "c": {"x": 2}}, ["thing.c.x: '2' is not what the page says"]),
    ],
)
def test_an_output_that_differs_from_the_page_is_reported(output: object, said: list[str]) -> None:
    block = '{"a": int, "b": "one" | "two" | null, "c": NAMES, "d"?}'
    page = read_page(f"## thing\n\n```text\n{block}\n```\n\nNAMES is `{{name: str}}`.\n")
    assert page.complaints("thing", output) == said


def test_a_key_without_a_value_has_that_of_the_shared_keys() -> None:
    page = read_page(
        '## Shared keys\n\n```text\n"a": int, "b": {"c"}\n```\n\n## thing\n\n```text\n{"a", "b": str}\n```\n'
    )
    assert page.complaints("thing", {"a": 1, "b": "two"}) == []
    assert page.complaints("thing", {"a": "one", "b": "two"}) == ["thing.a: 'one' is not what the page says"]
    assert page.unseen() == {"b.c"}


def test_a_key_that_no_output_has_is_reported() -> None:
    block = '{"a": {"b": int} | null, "c": [{"d"}], "e"?: {"f"}}'
    page = read_page(f"## thing\n\n```text\n{block}\n```\n")
    assert page.complaints("thing", {"a": None, "c": []}) == []
    assert page.unseen() == {"thing.a.b", "thing.c[].d"}
    assert page.complaints("thing", {"a": {"b": 1}, "c": [{"d": 1}]}) == []
    assert page.unseen() == set()
