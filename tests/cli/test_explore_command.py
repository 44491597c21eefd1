"""`iosched explore` and `iosched explore show`."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import Result
from small_models import branches

from iosched.jobs.exploring.objectives import SAMPLER_NAMES

Invoke = Callable[..., Result]
Complains = Callable[..., str]

SPACE = "from toy_space import SPACE as space\n"
KEYS = {"trials", "failed", "reused", "storage", "front"}
ENTRY = {"trial", "file", "objectives", "params"}


@pytest.fixture(autouse=True)
def _separate_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents waiting for other studies on this machine."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def explore(invoke: Invoke, workdir: Path) -> Invoke:
    """Calls `iosched explore base.onnx` with a small space, costs for a simulated GPU, and further words."""
    onnx.save(branches(), workdir / "base.onnx")
    (workdir / "space.py").write_text(SPACE)
    words = ("base.onnx", "--space", "space.py", "--objective", "latency:v100,flops", "--sampler", "random")

    def call(*further: object) -> Result:
        return invoke("explore", *words, *further)

    return call


@pytest.fixture
def counted(explore: Invoke, invoke: Invoke) -> Invoke:
    """Calls `iosched explore` in the same way, with an objective that takes no time."""
    del explore
    words = ("base.onnx", "--space", "space.py", "--objective", "flops", "--sampler", "random", "--top", 0)
    return lambda *further: invoke("explore", *words, *further)


def _object(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, (result.stderr, result.exception)
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_the_best_variants_are_written_with_their_schedules(explore: Invoke, workdir: Path) -> None:
    result = explore("--trials", 8, "--top", 2)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("base in behind: min:latency:v100, min:flops")
    assert "iosched run base.explored/trial-" in result.stdout
    written = sorted(path.name for path in (workdir / "base.explored").iterdir())

    assert (
        sum(name.endswith(".onnx") for name in written) == sum(name.endswith(".schedule.json") for name in written) == 2
    )
    assert "study.db" in written
    for path in (workdir / "base.explored").glob("*.onnx"):
        onnx.checker.check_model(str(path), full_check=True)
        keys = {item.key for item in onnx.load(path).metadata_props}
        assert {"io.iosched.schedule", "io.iosched.mutation"} <= keys


@pytest.mark.slow
def test_json_has_keys_that_scripts_rely_on_and_show_agrees(explore: Invoke, invoke: Invoke, workdir: Path) -> None:
    found = _object(explore("--trials", 8, "--top", 1, "--json", "-o", "out", "--storage", "kept.db"))
    assert found.keys() >= KEYS
    assert (found["trials"], found["failed"], found["storage"]) == (8, 0, "kept.db")
    front = found["front"]
    assert isinstance(front, list)
    assert all(each.keys() >= ENTRY for each in front)
    assert front[0]["objectives"].keys() == {"latency:v100", "flops"}
    files = [each["file"] for each in front]
    assert [file is not None for file in files] == [True] + [False] * (len(files) - 1)
    assert (workdir / files[0]).exists()
    shown = _object(invoke("explore", "show", "kept.db", "--json"))
    assert [{**each, "file": None, "schedule": None, "shipped": None} for each in front] == shown["front"]


@pytest.mark.slow
def test_choices_are_shown_in_the_words_of_the_space(counted: Invoke, workdir: Path) -> None:
    result = counted("--trials", 3)
    params = {each["trial"]: each["params"] for each in _object(counted("--trials", 3, "--json"))["front"]}
    shown = result.stdout.partition("\nchoices\n")[2].partition("\ntotal\n")[0].splitlines()
    assert dict(line.split(maxsplit=1) for line in shown) == {
        str(trial): ", ".join(
            f"{name.removeprefix('behind[c]/').partition('{')[0]} {choice}" for name, choice in each.items()
        )
        for trial, each in params.items()
    }
    (workdir / "space.py").write_text(
        "from small_models import branches\nfrom toy_space import Behind, Space\nfirst = Behind('Tanh')\n"
        "second = Behind('Softplus')\nsecond.name = 'after'\nspace = Space('two', (first, second))\n"
    )
    said = counted("--trials", 1, "-o", "two").stdout
    assert re.search(r"behind\[c\]: count \d", said)
    assert re.search(r"; after\[c\]: count \d", said)


def test_trials_that_the_budget_left_no_time_for_are_reported(counted: Invoke) -> None:
    result = counted("--trials", 4, "--budget", 0.001)
    assert result.exit_code == 0
    said = (
        "3 of 4 trials were not made: the trials of the study took {} s of the --budget of 0.001 s. Continue with a "
        "larger --budget."
    )
    assert re.search(said.replace(".", r"\.").format(r"[\d.]+"), result.stderr)
    (nothing, missing) = _object(counted("--trials", 4, "--budget", 0.001, "--json"))["notes"]
    assert nothing.startswith("No trial was added")
    assert missing.startswith("3 of 4 trials were not made")
    assert "not made" not in counted("--trials", 2).stderr


def test_a_grid_that_is_smaller_than_the_number_of_trials_is_reported(counted: Invoke, workdir: Path) -> None:
    (workdir / "space.py").write_text(
        "from toy_space import Behind, Space\nspace = Space('small', (Behind('Tanh'),))\n"
    )
    (note,) = _object(counted("--trials", 4, "--sampler", "grid", "--json"))["notes"]
    assert note == "1 of 4 trials were not made: the sampler 'grid' has no further variants."


@pytest.mark.slow
def test_a_second_call_with_more_trials_continues_the_study(explore: Invoke) -> None:
    assert _object(explore("--trials", 2, "--json"))["trials"] == 2
    assert _object(explore("--trials", 4, "--json"))["trials"] == 4
    assert _object(explore("--trials", 3, "--json"))["trials"] == 4


@pytest.mark.slow
def test_models_of_earlier_calls_stay_and_are_named(explore: Invoke, workdir: Path) -> None:
    best = ("--objective", "max:params", "--top", 1, "-o", "out")
    (workdir / "out").mkdir()
    (workdir / "out" / "mine.onnx").write_bytes(b"no trial")
    (first,) = _files(_object(explore("--trials", 1, *best, "--json")))
    found = _object(explore("--trials", 8, *best, "--json"))
    assert first not in _files(found)
    assert found["left"] == [first]
    assert (workdir / first).exists()
    said = explore("--trials", 8, *best).stdout
    assert f"Written to out by earlier calls, no longer among the best: {Path(first).name}\n" in said


def test_only_some_of_many_models_of_earlier_calls_are_named(explore: Invoke, workdir: Path) -> None:
    (workdir / "out").mkdir()
    for number in range(100, 107):
        (workdir / "out" / f"trial-0{number}.onnx").write_bytes(b"")
    assert "trial-0103.onnx, trial-0104.onnx and 2 more\n" in explore("--trials", 1, "-o", "out").stdout


def _files(found: dict[str, Any]) -> list[str]:
    return [each["file"] for each in (*found["front"], *found["others"]) if each["file"]]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLER_NAMES)
def test_every_sampler_finds_a_front(explore: Invoke, sampler: str) -> None:
    found = _object(explore("--trials", 6, "--top", 0, "--sampler", sampler, "--population", 3, "--json"))
    assert found["trials"] == 6
    assert found["front"]


def test_base_may_be_left_out_where_the_space_has_one(explore: Invoke, invoke: Invoke, workdir: Path) -> None:
    (workdir / "own.py").write_text(
        "from dataclasses import replace\nfrom small_models import branches\nfrom toy_space import SPACE\n"
        "space = replace(SPACE, base=lambda pixels: branches())\n"
    )
    words = ("--objective", "params", "--trials", 2, "--top", 0, "--json")
    assert _object(invoke("explore", "--space", "own.py", *words))["storage"] == "own.explored/study.db"


@pytest.mark.slow
def test_a_picture_of_the_front_is_svg(explore: Invoke, invoke: Invoke) -> None:
    explore("--trials", 6, "--top", 0, "--plot", "front.svg")
    root = ElementTree.fromstring(Path("front.svg").read_text())
    assert len(root.findall("{*}circle")) >= 2
    words = "".join(str(each.text) for each in root.findall("{*}text"))
    assert "latency on v100 in ms (smaller is better)" in words
    shown = invoke("explore", "show", "base.explored/study.db", "--plot", "-")
    assert shown.stdout == Path("front.svg").read_text()


def test_the_command_fails_if_every_trial_fails(explore: Invoke, workdir: Path) -> None:
    (workdir / "space.py").write_text("from toy_space import Behind, Space\nspace = Space('none', (Behind('Conv'),))\n")
    command = f"{sys.executable} -c 'raise SystemExit(\"no data\")' {{model}}"
    result = explore("--trials", 3, "--objective", "good", "--score-cmd", command)
    assert result.exit_code == 1
    assert "all 3 trials failed" in result.stderr
    assert "failed" in result.stdout
    result = explore("--trials", 3, "--objective", "good", "--score-cmd", command, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["failed"] == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--space", "space.py", "--objective", "accuracy"), "--score-cmd"),
        (("--space", "space.py", "--objective", "latency"), "latency:cpu"),
        (("--space", "space.py", "--constraint", "flops<5"), "NAME<=NUMBER"),
        (("--space", "nothing.py"), "nothing.py"),
        (("--space", "space.py", "--score-cmd", "./none {model}", "--objective", "a"), "does not exist"),
        (("--space", "space.py", "--plot", "-", "--json"), "stdout"),
        (("--space", "space.py", "-o", "no/such/folder"), "there is no folder no/such"),
        (("--space", "space.py", "--storage", "space.py"), "is not a study"),
        (("--space", "space.py", "--batch-size", "2"), "--batch-size"),
        (("--space", "space.py", "--sampler", "bayes"), "unknown sampler 'bayes'"),
        (("--space", "space.py", "--sampler", "none.py:Own"), "none.py cannot be read"),
        (("--space", "space.py", "--sampler", "space.py:space"), "'space' is not a subclass"),
        (("--space", "space.py", "--sampler", "optuna.samplers:GridSampler"), "search_space"),
    ],
)
def test_wrong_usage_is_refused(
    invoke: Invoke, workdir: Path, complains: Complains, words: tuple[str, ...], said: str
) -> None:
    (workdir / "space.py").write_text(
        "from dataclasses import replace\nfrom small_models import branches\nfrom toy_space import SPACE\n"
        "space = replace(SPACE, base=lambda pixels: branches())\n"
    )
    complains(invoke("explore", *words), 2, said)
    assert not list(workdir.glob("*.explored/study.db"))


def test_a_sampler_that_fails_ends_the_command_and_the_next_call_continues(
    counted: Invoke, workdir: Path, complains: Complains
) -> None:
    (workdir / "own.py").write_text(
        "from optuna.samplers import *\nclass Own(RandomSampler):\n"
        "    def sample_independent(self, study, trial, *a):\n"
        "        return super().sample_independent(study, trial, *a) if trial.number < 2 else 1 / 0\n"
    )
    said = "--sampler own.py:Own failed: ZeroDivisionError: division by zero"
    complains(counted("--trials", 4, "--sampler", "own.py:Own"), 2, said)
    found = _object(counted("--trials", 4, "--sampler", "random", "--json"))
    assert (found["trials"], found["failed"]) == (4, 0)


def test_show_refuses_files_that_are_not_studies(invoke: Invoke, workdir: Path, complains: Complains) -> None:
    complains(invoke("explore", "show", "study.db"), 2, "no such file")
    (workdir / "study.db").write_bytes(b"\x80\x04cos\nsystem\n")
    complains(invoke("explore", "show", "study.db"), 2, "is not a study")


def test_help_covers_explore_and_show(invoke: Invoke) -> None:
    both = invoke("explore", "--help").stdout
    assert "[OPTIONS] [BASE]" in both
    assert "show  Print the results of a study." in both
    assert "STUDY" in invoke("explore", "show", "--help").stdout
