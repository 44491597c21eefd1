"""Samplers: reproducible by their seeds, custom, and the errors of custom ones."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import optuna
import pytest
from example_scripts import EXAMPLES
from toy_study import asked, card, choices, evaluated, go_on, strategy_of

from iosched.jobs.exploring.samplers import kind_of
from iosched.jobs.exploring.study import begun_study, opened_study
from iosched.models.errors import UsageError
from iosched.models.mutation.edit import AnswerError

OWN = """
import optuna

class Own(optuna.samplers.RandomSampler):
    built = 0

    def __init__(self{seed}):
        super().__init__({value})
        Own.built += 1

    def sample_independent(self, study, trial, name, distribution):
        {body}
        return super().sample_independent(study, trial, name, distribution)
"""


def own(tmp_path: Path, body: str = "pass", seed: str = ", seed", value: str = "seed", name: str = "own.py") -> str:
    path = tmp_path / name
    path.write_text(OWN.format(body=body, seed=seed, value=value))
    return f"{path}:Own"


def test_a_sampler_from_a_file_makes_the_same_study_after_interruptions(tmp_path: Path) -> None:
    sampler = own(tmp_path)
    whole = choices(go_on(tmp_path / "whole.db", sampler, 6))
    for trials in (2, 3, 6):
        parts = go_on(tmp_path / "parts.db", sampler, trials)
    assert choices(parts) == whole
    assert len(set(whole)) > 2


@pytest.mark.parametrize(
    "name",
    ["RandomSampler", *(pytest.param(f"{name}Sampler", marks=pytest.mark.slow) for name in ("QMC", "NSGAIII", "TPE"))],
)
def test_optuna_samplers_are_found_by_module(tmp_path: Path, name: str) -> None:
    opened = go_on(tmp_path / "study.db", f"optuna.samplers:{name}", 5)
    assert len(set(choices(opened))) > 1


def test_a_sampler_without_a_seed_is_built_once_per_process(tmp_path: Path) -> None:
    sampler = own(tmp_path, "assert Own.built == 1", seed="", value="", name="seedless.py")
    assert len(go_on(tmp_path / "study.db", sampler, 3).history()) == 3


def test_a_sampler_may_end_the_study(tmp_path: Path) -> None:
    sampler = own(tmp_path, "study.stop() if trial.number == 2 else None")
    assert len(go_on(tmp_path / "study.db", sampler, 10).history()) == 3


@pytest.mark.parametrize(
    "body",
    [
        "trial.number > 1 and 1 / 0",
        "if trial.number > 1: return 'no candidate'",
        pytest.param("if trial.number > 1: raise optuna.TrialPruned", marks=pytest.mark.slow),
        pytest.param("if trial.number > 1: raise SystemExit(3)", marks=pytest.mark.slow),
    ],
)
def test_a_study_continues_after_its_sampler_fails(tmp_path: Path, body: str) -> None:
    path = tmp_path / "study.db"
    with pytest.raises(AnswerError, match=r"own\.py:Own failed: (ZeroDivisionError|ValueError|TrialPruned|SystemExit)"):
        go_on(path, own(tmp_path, body), 4)
    assert [each.state for each in opened_study(path).history()] == ["complete", "complete", "running"]
    assert [each.state for each in go_on(path, own(tmp_path), 4).history()] == ["complete"] * 4


def test_the_result_of_a_trial_is_kept_if_the_sampler_fails_after_it(tmp_path: Path) -> None:
    sampler = own(tmp_path)
    with Path(sampler.removesuffix(":Own")).open("a") as file:
        file.write("\n    def after_trial(self, *_):\n        raise KeyError('population')\n")
    with pytest.raises(AnswerError, match="KeyError: 'population'"):
        go_on(tmp_path / "study.db", sampler, 4)
    (kept,) = opened_study(tmp_path / "study.db").history()
    assert kept.state == "complete"


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (None, "none.py:Own", r"none\.py cannot be read: No such file"),
        ("x = 1\n1 / 0\n", "own.py:Own", r"own\.py, line 2: ZeroDivisionError"),
        ("", "own.py:Own", "'Own' does not exist"),
        ("class Own:\n    pass\n", "own.py:Own", "is not a subclass of optuna.samplers.BaseSampler"),
        ("Own = 3\n", "own.py:Own", "is not a subclass"),
        ("from optuna.samplers import *\nclass Own(BaseSampler):\n    pass\n", "own.py:Own", "failed: TypeError"),
        (OWN.format(seed=", seed", value="1 / 0", body=""), "own.py:Own", "failed: ZeroDivisionError"),
        ("", "own:Own", "module 'own' cannot be imported: No module named 'own'"),
        (None, ".:Own", "cannot be imported"),
        (None, ":Own", "cannot be imported"),
        (None, "optuna.samplers:", "'' does not exist"),
        (None, "optuna.samplers:GridSampler", "failed: TypeError: .*search_space"),
    ],
)
def test_the_error_of_a_sampler_class_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)  # not on the module search path
    if text is not None:
        Path("own.py").write_text(text)
    with pytest.raises(UsageError, match=said):
        kind_of(name, 4)


@pytest.mark.slow
def test_the_example_of_regularized_evolution_changes_one_choice_of_a_parent(tmp_path: Path) -> None:
    path = tmp_path / "small.py"
    text = (EXAMPLES / "regularized_evolution.py").read_text()
    path.write_text(text.replace("population, sample = 100, 25", "population, sample = 6, 3"))
    trials = choices(go_on(tmp_path / "study.db", f"{path}:RegularizedEvolution", 24, card("max:accuracy")))
    for number, child in enumerate(trials[6:], start=6):
        alive = [dict(parent) for parent in trials[number - 6 : number]]  # type: ignore[call-overload]
        assert 1 in [_changed(parent, dict(child)) for parent in alive]  # type: ignore[call-overload]
    assert choices(go_on(tmp_path / "again.db", f"{path}:RegularizedEvolution", 24, card("max:accuracy"))) == trials


def _changed(parent: dict[str, object], child: dict[str, object]) -> int:
    """The number of choices common to both that differ."""
    return sum(parent[name] != child[name] for name in parent.keys() & child.keys())


def test_steady_evolution_does_not_wait_for_a_generation(tmp_path: Path) -> None:
    strategy = strategy_of(begun_study(tmp_path / "study.db", card()), "steady-evolution", 8, population=4)
    graphs = [strategy.ask_graph() for _ in range(8)]
    assert graphs == list(range(8))


@pytest.mark.slow
def test_steady_evolution_breeds_from_the_best_that_ended_before(tmp_path: Path) -> None:
    """Except for a mutation, each choice is from one of four parents; a trial that ends later changes nothing."""
    opened = go_on(tmp_path / "study.db", "steady-evolution", 16, card("max:accuracy"))
    trials = opened.trials()
    for child in trials[4:]:
        before = {str(each.params): each for each in trials[: child.number]}.values()
        worst = sorted(each.values[0] for each in before)[-4:][0]
        parents = [each for each in before if each.values[0] >= worst]
        known = [name for name in child.params if any(name in parent.params for parent in parents)]
        foreign = [name for name in known if child.params[name] not in {each.params.get(name) for each in parents}]
        assert len(foreign) <= 1
    assert choices(go_on(tmp_path / "again.db", "steady-evolution", 16, card("max:accuracy"))) == choices(opened)
    sampler = kind_of("steady-evolution", 4).sampler(0)
    answers = [_answers(sampler, opened.study, trial) for trial in trials]
    assert answers == [list(trial.params.values()) for trial in trials]
    late = optuna.trial.create_trial(value=9.0, params=trials[0].params, distributions=trials[0].distributions)
    late.datetime_complete = late.datetime_start = trials[-1].datetime_complete + timedelta(1)  # type: ignore[operator]
    opened.study.add_trial(late)
    assert [_answers(sampler, opened.study, trial) for trial in trials] == answers


def _answers(
    sampler: optuna.samplers.BaseSampler, study: optuna.Study, trial: optuna.trial.FrozenTrial
) -> list[object]:
    return [
        sampler.sample_independent(study, trial, name, distribution)
        for name, distribution in trial.distributions.items()
    ]


@pytest.mark.slow
def test_steady_evolution_gets_fitter(tmp_path: Path) -> None:
    opened = begun_study(tmp_path / "study.db", card("min:latency:cpu"))
    strategy = strategy_of(opened, "steady-evolution", 80, population=10)
    while (graph := strategy.ask_graph()) is not None:
        strategy.receive_feedback(graph, evaluated(asked(strategy, graph)))
    latencies = [each.feedback.values["latency:cpu"] for each in opened.history()]
    assert sum(latencies[-20:]) < 0.7 * sum(latencies[:10]) * 2
