"""A study of real variants, costed on a simulated GPU and scored by small programs."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from small_models import branches
from toy_space import BROKEN, EVOLVING, SPACE, Behind

from iosched.jobs.annotate import annotated
from iosched.jobs.explore import ExploreSettings, explore, study_in
from iosched.models.errors import DeviceError, ExecutionError, UsageError
from iosched.models.export import write_model
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.spaces.space import Space

Settings = Callable[..., ExploreSettings]


@pytest.fixture
def base() -> Model:
    return load_model(branches().SerializeToString())


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a study of six trials in a temporary file."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def make(**others: object) -> ExploreSettings:
        plain = ExploreSettings(
            tmp_path / "study.db", sampler="random", trials=6, objectives=("latency:v100", "params"), top=3
        )
        return replace(plain, **others)  # type: ignore[arg-type]

    return make


def _scoring(code: str) -> str:
    return f"{sys.executable} -I -S -c {json.dumps(code)} {{model}} {{params}}"


def test_variants_are_costed_as_they_would_ship_and_the_best_have_schedules(base: Model, settings: Settings) -> None:
    result = explore(base, SPACE, settings())
    found = result.found
    assert [each.state for each in found.individuals] == ["complete"] * 6
    front = [each for rank, each in found.ranked() if rank == 0]
    plain = min(front, key=lambda each: each.feedback.values["latency:v100"])
    assert all(plain.choices[name] == 0 for name in plain.choices if "count" in name)  # adding nothing is the fastest
    first = result.chosen[0]
    assert first.number == front[0].number
    assert first.document.latency_us["predicted"] == pytest.approx(front[0].feedback.values["latency:v100"], abs=1e-4)
    assert first.document.structure == first.model.structure


@pytest.mark.slow
def test_the_chosen_models_are_the_costed_ones_and_run_in_onnxruntime(
    base: Model, settings: Settings, tmp_path: Path
) -> None:
    for chosen in explore(base, SPACE, settings()).chosen:
        path = tmp_path / "chosen.onnx"
        write_model(annotated(chosen.model, chosen.document), chosen.model.weights, path)
        onnx.checker.check_model(str(path), full_check=True)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (output,) = session.run(None, {"x": np.ones((1, 8, 6, 6), np.float32)})
        assert output.shape == (1, 16, 6, 6)
        individual = study_in(settings().storage).individuals[chosen.number]
        assert chosen.model.digest == individual.feedback.key


def test_variants_that_were_seen_before_count_and_are_not_evaluated_again(base: Model, settings: Settings) -> None:
    result = explore(base, SPACE, settings(trials=14))
    keys = [each.feedback.key for each in result.found.individuals]
    assert result.found.reused == len(keys) - len(set(keys)) > 0
    for each in result.found.individuals:
        if each.feedback.reused is not None:
            first = result.found.individuals[each.feedback.reused]
            assert (first.feedback.key, first.feedback.values) == (each.feedback.key, each.feedback.values)
            assert first.feedback.reused is None
    assert len({each.feedback.key for _, each in result.found.ranked()}) == len(result.found.ranked())


def test_a_second_call_resumes_the_study_of_the_same_base_and_space(base: Model, settings: Settings) -> None:
    explore(base, SPACE, settings(trials=3))
    renamed = load_model(branches().SerializeToString(), name="renamed")
    assert len(explore(renamed, SPACE, settings(trials=5)).found.individuals) == 5
    other = load_model(branches(channels=16).SerializeToString())
    with pytest.raises(UsageError, match="with base model"):
        explore(other, SPACE, settings(trials=7))
    with pytest.raises(UsageError, match="with space"):
        explore(base, Space("other", SPACE.mutators), settings(trials=7))


def test_a_study_of_several_base_models_resumes_with_the_same_trials(settings: Settings) -> None:
    whole = explore(None, EVOLVING, settings(trials=10, top=10)).found
    assert {each.choices["space/base{narrow,wide}"] for each in whole.individuals} == {"narrow", "wide"}
    assert whole.card.name == "evolving"
    parts = settings().storage.with_name("parts.db")
    explore(None, EVOLVING, settings(storage=parts, trials=4, top=0))
    result = explore(None, EVOLVING, settings(storage=parts, trials=10, top=10))
    assert [each.choices for each in result.found.individuals] == [each.choices for each in whole.individuals]
    for chosen in result.chosen:
        assert chosen.model.digest == whole.individuals[chosen.number].feedback.key
    with pytest.raises(UsageError, match="with base model"):
        explore(None, replace(EVOLVING, bases=EVOLVING.bases[:1]), settings(storage=parts, trials=12))


def test_a_score_command_is_given_the_model_and_its_choices(base: Model, settings: Settings) -> None:
    code = (
        "import json, os, sys; model = open(sys.argv[1], 'rb').read(); choices = json.loads(sys.argv[2]);"
        "print(json.dumps({'kinds': sum(each in ('Tanh', 'Sigmoid', 'Softplus') for each in choices.values()),"
        "'found': sum(model.count(each.encode()) > 0 for each in ('Tanh', 'Sigmoid', 'Softplus'))}))"
    )
    asked = settings(objectives=("min:kinds", "max:found"), score_command=_scoring(code), top=0)
    for each in explore(base, SPACE, asked).found.individuals:
        kinds = [value for value in each.choices.values() if isinstance(value, str)]
        assert each.feedback.values["kinds"] == len(kinds)
        assert each.feedback.values["found"] >= len(set(kinds))


def test_a_failed_trial_is_marked_and_the_study_continues(base: Model, settings: Settings) -> None:
    code = "import json, sys; sys.exit('no GPU' if 'Tanh' in json.loads(sys.argv[2]).values() else print(1))"
    found = explore(base, SPACE, settings(objectives=("good",), score_command=_scoring(code), trials=10, top=0)).found
    for each in found.individuals:
        if "Tanh" in each.choices.values():
            assert each.state == "failed"
            assert "no GPU" in str(each.feedback.reason)
            assert each.feedback.record is not None
        else:
            assert each.state == "complete"
    assert found.count("failed") > 0
    assert found.count("complete") > 0


def test_a_mutation_that_does_not_fit_is_a_failed_trial(base: Model, settings: Settings) -> None:
    found = explore(base, BROKEN, settings(trials=8)).found
    for each in found.individuals:
        assert each.state == ("complete" if set(each.choices.values()) == {0} else "failed")
    assert any("behind" in str(each.feedback.reason) for each in found.individuals if each.state == "failed")


class _Raises(Behind):
    """A mutator with a mistake in it."""

    def match(self, graph: object) -> list[tuple[()]]:
        raise KeyError("stage9")


def test_a_mistake_in_a_mutator_is_a_failed_trial(base: Model, settings: Settings) -> None:
    result = explore(base, Space("wrong", (_Raises("Tanh"),)), settings(trials=2))
    assert all("KeyError: 'stage9'" in str(each.feedback.reason) for each in result.found.individuals)
    assert result.found.count("failed") == 2
    assert result.chosen == ()


@pytest.mark.slow
def test_variants_that_violate_a_constraint_are_neither_scored_nor_ranked(base: Model, settings: Settings) -> None:
    free = explore(base, SPACE, settings()).found
    latencies = [each.feedback.values["latency:v100"] for each in free.individuals]
    bound = f"latency:v100<={sorted(latencies)[len(latencies) // 2]!r}"
    storage = settings().storage.with_name("bound.db")
    asked = settings(
        storage=storage, constraints=(bound,), objectives=("good",), top=0, score_command=_scoring("print(1)")
    )
    found = explore(base, SPACE, asked).found
    for each, latency_us in zip(found.individuals, latencies, strict=True):
        is_met = latency_us <= float(bound.rpartition("=")[2])
        assert each.state == ("complete" if is_met else "stopped")
        assert ("good" in each.feedback.values) is is_met
    assert {each.number for _, each in found.ranked()} <= {
        each.number for each in found.individuals if each.state == "complete"
    }


@pytest.mark.slow
def test_a_score_command_that_is_worse_than_others_is_pruned(base: Model, settings: Settings) -> None:
    """Those with a Tanh are bad from the first step on; from the ninth trial on they take minutes."""
    code = (
        "import json, sys, time; bad = 'Tanh' in json.loads(sys.argv[2]).values();"
        "print(json.dumps({{'step': 1, 'good': 0.1 if bad else 0.9}}), flush=True);"
        "time.sleep({} if bad else 0); print(0.1 if bad else 0.9)"
    )
    asked = settings(objectives=("good",), prunes=True, seed=4, top=0, trials=8, score_timeout_s=60)
    explore(base, SPACE, replace(asked, score_command=_scoring(code.format(0))))
    found = explore(base, SPACE, replace(asked, trials=12, score_command=_scoring(code.format(300)))).found
    late = [each for each in found.individuals[8:] if each.feedback.reused is None]
    assert any(each.state == "stopped" for each in late)
    for each in late:
        is_bad = "Tanh" in each.choices.values()
        assert each.state == ("stopped" if is_bad else "complete")
        assert not is_bad or "pruned after step 1" in str(each.feedback.reason)


TOGETHER = """
import json, sys
import onnxruntime, numpy
choices = json.loads(sys.argv[2])
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
outputs = [output.name for output in session.get_outputs()]
assert [each.name for each in session.get_inputs()] == ["x"]
found = dict(zip(outputs, session.run(None, {"x": numpy.ones((1, 8, 6, 6), numpy.float32)})))
members = {name: found[f"{name}/y"] for name in choices if f"{name}/y" in found} or {"": found["y"]}
said = {name: {"mean": float(abs(value).mean()), "members": len(members)} for name, value in members.items()}
print(json.dumps(said if "" not in said else said[""]))
"""


@pytest.mark.slow
def test_several_variants_are_scored_as_one_model_that_computes_the_same(
    base: Model, settings: Settings, tmp_path: Path
) -> None:
    program = tmp_path / "score.py"
    program.write_text(TOGETHER)
    asked = settings(
        objectives=("mean", "min:members"), top=0, score_command=f"{sys.executable} {program} {{model}} {{params}}"
    )
    alone = explore(base, SPACE, asked).found
    together = explore(base, SPACE, replace(asked, storage=tmp_path / "batch.db", score_batch=3)).found
    assert [each.choices for each in together.individuals] == [each.choices for each in alone.individuals]
    for one, other in zip(alone.individuals, together.individuals, strict=True):
        assert one.feedback.values["mean"] == pytest.approx(other.feedback.values["mean"], rel=1e-5)
    assert {each.feedback.values["members"] for each in alone.individuals} == {1.0}
    assert max(each.feedback.values["members"] for each in together.individuals) > 1
    assert together.reused == alone.reused


@pytest.mark.slow
def test_variants_that_cannot_be_scored_together_are_scored_one_by_one(base: Model, settings: Settings) -> None:
    """The command fails with several models, or prints no score for one of them."""
    code = (
        "import json, sys; choices = json.loads(sys.argv[2]); several = [each for each in choices if 'trial' in each];"
        "sys.exit('one at a time') if several else print(len(choices))"
    )
    asked = settings(objectives=("questions",), top=0, score_command=_scoring(code), score_batch=4)
    result = explore(base, SPACE, asked)
    for each in result.found.individuals:
        assert each.feedback.values["questions"] == len(each.choices)
    (note,) = result.notes
    assert "one by one" in note
    assert "one at a time" in note
    code = (
        "import json, sys; choices = json.loads(sys.argv[2]); several = [each for each in choices if 'trial' in each];"
        "print(json.dumps({each: 1 for each in several[1:]} if several else 1))"
    )
    storage = asked.storage.with_name("some.db")
    found = explore(base, SPACE, replace(asked, storage=storage, score_command=_scoring(code))).found
    assert found.count("failed") > 0
    failed = [each for each in found.individuals if each.state == "failed"]
    assert all("printed no score for this model" in str(each.feedback.reason) for each in failed)


COUNTED = """
import json, sys
choices = json.loads(sys.argv[2])
several = [each for each in choices if "trial" in each]
with open({calls!r}, "a") as calls:
    calls.write(f"{{bool(several):d}}")
if {fails}:
    sys.exit("no")
print(json.dumps({{each: 1 for each in several}} if several else 1))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("fails", "is_given_several_again"), [("several", False), ("'Tanh' in sys.argv[2]", True)])
def test_a_command_that_cannot_score_several_models_gets_one_at_a_time(
    fails: str, is_given_several_again: bool, base: Model, settings: Settings, tmp_path: Path
) -> None:
    """It is given several again if it failed because of one of the models."""
    calls, program = tmp_path / "calls", tmp_path / "score.py"
    program.write_text(COUNTED.format(calls=str(calls), fails=fails))
    command = f"{sys.executable} -I -S {program} {{model}} {{params}}"
    result = explore(
        base, SPACE, settings(objectives=("good",), top=0, trials=12, score_batch=3, score_command=command)
    )
    assert calls.read_text().startswith("10")
    assert (calls.read_text().count("1") > 1) is is_given_several_again
    assert len(result.notes) == (0 if is_given_several_again else 1)
    assert (result.found.count("failed") > 0) is is_given_several_again


@pytest.mark.slow
def test_a_call_that_adds_no_trial_has_a_note(base: Model, settings: Settings) -> None:
    assert explore(base, SPACE, settings(trials=2, top=0)).notes == ()
    (note,) = explore(base, SPACE, settings(trials=2, top=0)).notes
    assert note.startswith("No trial was added")
    assert "2 trials" in note
    assert explore(base, SPACE, settings(trials=3, top=0)).notes == ()


class _Pressed:
    """Presses Ctrl-C once, as soon as `when` holds: before a trial or while a score command runs."""

    can_come, accepted = True, False

    def __init__(self, when: Callable[[], bool], answer: bool) -> None:
        self._when = when
        self._answer = answer
        self.asked = 0

    @property
    def came(self) -> bool:
        return not self.asked and self._when()

    def holding(self) -> AbstractContextManager[None]:
        return nullcontext()

    def ask(self) -> None:
        self.asked += 1
        if not self._answer:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_ctrl_c_between_trials_asks_whether_to_write_the_best_so_far(base: Model, settings: Settings) -> None:
    path = settings().storage
    pressed = _Pressed(lambda: path.exists() and len(study_in(path).finished) == 2, answer=True)
    result = explore(base, SPACE, settings(), interrupt=pressed)
    assert (result.was_interrupted, len(result.found.finished), pressed.asked) == (True, 2, 1)
    assert result.chosen
    assert not explore(base, SPACE, settings()).was_interrupted


@pytest.mark.slow
def test_ctrl_c_ends_a_score_command_and_its_trial_is_evaluated_again(
    base: Model, settings: Settings, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    code = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(600)"
    asked = settings(objectives=("good",), top=0, score_command=_scoring(code))
    with pytest.raises(KeyboardInterrupt):
        explore(base, SPACE, asked, interrupt=_Pressed(begun.exists, answer=False))
    (left,) = study_in(asked.storage).individuals
    assert left.state == "running"
    again = explore(base, SPACE, replace(asked, score_command=_scoring("print(1)"))).found
    assert [each.state for each in again.individuals] == ["complete"] * 6
    assert again.individuals[0].choices == left.choices


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"objectives": ("accuracy",)}, "add a score command"),
        ({"score_command": "echo {model}"}, "no objective or constraint uses"),
        ({"objectives": ()}, "no objective"),
        ({"objectives": ("latency:v9999",)}, "v9999"),
        ({"prunes": True}, "pruning needs exactly one objective"),
        ({"score_batch": 0}, "must be at least 1"),
        ({"score_batch": 2}, "--score-batch needs --score-cmd"),
        ({"prunes": True, "objectives": ("good", "params"), "score_command": "echo {model}"}, "one objective"),
        ({"trials": 0}, "at least 1 trial"),
        ({"sampler": "bayes"}, "unknown sampler"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    base: Model, settings: Settings, others: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        explore(base, SPACE, settings(**others))
    assert not settings().storage.exists()


def test_a_study_that_can_no_longer_be_written_is_an_execution_error(
    base: Model, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    explore(base, SPACE, settings(trials=1))
    monkeypatch.setattr("iosched.jobs.exploring.study.StudyStrategy.receive_feedback", full)
    with pytest.raises(ExecutionError, match=r"study\.db: the study cannot be .* disk is full"):
        explore(base, SPACE, settings(trials=2))


def test_without_optuna_the_error_names_the_package_to_install(
    base: Model, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iosched.jobs.explore.find_spec", lambda name: None)
    for call in (lambda: explore(base, SPACE, settings()), lambda: study_in(settings().storage)):
        with pytest.raises(DeviceError, match=r"pip install '.\[explore\]'"):
            call()
