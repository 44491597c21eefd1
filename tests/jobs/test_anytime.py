"""A search can be stopped, killed, resumed and repeated."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from scripted import LATENCIES_US, Asked, fire, script_models, script_stages, scripted_round

from iosched.jobs.annotate import annotated
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.profiler.devices.cpu import measured_cost as cpu_cost
from iosched.profiler.devices.cpu import open as cpu_open
from iosched.profiler.measuring.interleaved_models import Round, TakeRound
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import StageRow

SUPPORT = Path(__file__).parent.parent / "support"


@pytest.fixture
def settings(tmp_path: Path) -> OptimizeSettings:
    return OptimizeSettings(threads=2, profile_db=tmp_path / "p.db")


def stages(path: Path | None) -> dict[tuple[str, str], tuple[float, ...] | None]:
    """The samples of all stages in the database, by signature and turn."""
    with ProfileDatabase(path) as database:
        return {(row.signature, row.turn): row.samples_us for row in database.rows() if isinstance(row, StageRow)}


@pytest.mark.parametrize("budget_s", [None, 600.0])
@pytest.mark.parametrize("after", [1, 4, 9])
def test_an_interrupted_search_ends_after_the_stage_being_measured(
    after: int, budget_s: float | None, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt = Asked(answer=True)

    def come(count: int) -> None:
        interrupt.came = interrupt.came or count + 1 == after
        before.append(len(compared))

    before: list[int] = []
    compared = script_models(monkeypatch, LATENCIES_US)
    measured = script_stages(monkeypatch, come)
    result = optimize(fire(), replace(settings, budget_s=budget_s), interrupt=interrupt)
    assert len(measured) == after
    assert interrupt.times_asked == 1
    is_known = result.measured_us == result.sequential_us
    assert len(compared) == before[-1] + (not is_known)  # a new schedule is compared
    assert result.shipped == "iosched" or is_known
    result.document.validate_for(fire().graph, fire().digest, fire().bindings)


def test_answering_no_stops_and_keeps_measurements(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt = Asked(answer=False)

    def come(count: int) -> None:
        interrupt.came = count == 3

    script_stages(monkeypatch, come)
    with pytest.raises(KeyboardInterrupt):
        optimize(fire(), settings, interrupt=interrupt)
    assert len(stages(settings.profile_db)) == 4


@pytest.mark.parametrize("answer", [True, False])
def test_interrupting_the_comparison_of_models_ships_a_schedule_or_raises(
    answer: bool, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt = Asked(answer)
    rounds: list[int] = []

    def slow(*_: object) -> TakeRound:
        def take(names: Sequence[str]) -> Round:
            rounds.append(1)
            interrupt.came = interrupt.came or len(rounds) == 2
            return scripted_round({name: LATENCIES_US.get(name, 1000.0) for name in names})

        return take

    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    monkeypatch.setattr(cpu_open, "rounds_of", slow)
    if not answer:
        with pytest.raises(KeyboardInterrupt):
            optimize(fire(), settings, interrupt=interrupt)
        return
    result = optimize(fire(), settings, interrupt=interrupt)
    assert (result.shipped, interrupt.times_asked) == ("iosched", 1)


def test_a_search_resumes_with_the_known_stages(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search after an interrupted one measures no more stages than a search from scratch."""
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    interrupt = Asked(answer=True)
    first = script_stages(monkeypatch, lambda count: setattr(interrupt, "came", count == 5))
    optimize(fire(), settings, interrupt=interrupt)
    second = script_stages(monkeypatch)
    resumed = optimize(fire(), settings)
    whole = script_stages(monkeypatch)
    optimize(fire(), replace(settings, profile_db=None if settings.profile_db is None else Path(":memory:")))
    assert len(first) == 6
    assert resumed.cache_hits >= 6
    assert len(second) <= len(whole)


def test_measuring_again_replaces_known_latencies(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    def set_latency(level_us: float) -> None:
        def made_up(run_batch: object, given: object, **_: object) -> Measurement:
            return summarize([level_us] * 7)

        monkeypatch.setattr(cpu_cost, "measure", made_up)

    script_models(monkeypatch, LATENCIES_US)
    set_latency(50.0)
    optimize(fire(), settings)
    before = stages(settings.profile_db)
    set_latency(70.0)
    kept = optimize(fire(), settings)
    assert kept.measurements == 0
    assert stages(settings.profile_db) == before
    again = optimize(fire(), replace(settings, resume=False))
    assert again.measurements > 0
    assert again.cache_hits == 0
    after = stages(settings.profile_db)
    assert set(after.values()) == {(70.0,) * 7}
    assert set(after) == set(before)


def test_a_replay_gives_the_same_bytes(
    settings: OptimizeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    first = optimize(fire(), settings)
    assert first.measurements > 0
    assert settings.profile_db is not None
    written = [_bytes(first.document.to_json(), annotated(fire(), first.document).SerializeToString())]
    for name in ("a.db", "b.db"):
        shutil.copy(settings.profile_db, tmp_path / name)
        again = optimize(fire(), replace(settings, profile_db=tmp_path / name))
        assert again.measurements == 0
        written.append(_bytes(again.document.to_json(), annotated(fire(), again.document).SerializeToString()))
    assert written[0] == written[1] == written[2]


def _bytes(schedule: str, model: bytes) -> tuple[bytes, bytes]:
    return schedule.encode(), model


_SEARCH = """
import sys, time
from pathlib import Path
from scripted import LATENCIES_US, Asked, fire
from iosched.profiler.devices.cpu import measured_cost as cpu_cost
from iosched.profiler.devices.cpu import open as cpu_open
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.profiler.measuring import disturbance
from iosched.profiler.measuring.statistics import summarize
done = 0
def made_up(run_batch, settings, **_):
    global done
    print(done, flush=True)  # the number measured before this one
    done += 1
    time.sleep(0.02)
    return summarize([50.0 + done] * 7)
cpu_cost.measure = made_up
disturbance.disturbances = lambda *_: ()  # other tests run alongside this one
optimize(fire(), OptimizeSettings(threads=2, profile_db=Path(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [5])
def test_a_killed_search_loses_at_most_the_stage_being_measured(
    number: int, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]  # the child runs the same package
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, "-c", _SEARCH, str(settings.profile_db)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        before = next(int(line) for line in child.stdout if int(line) >= number)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    known = stages(settings.profile_db)
    assert len(known) in (before, before + 1)
    measured = script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    resumed = optimize(fire(), settings)
    assert resumed.cache_hits >= len(known)
    assert resumed.measurements == len(measured)
    again = stages(settings.profile_db)
    assert all(again[key] == value for key, value in known.items())
