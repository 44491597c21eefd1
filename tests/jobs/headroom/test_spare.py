"""What stages leave idle, by latencies that are made up and by the analytic model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from scripted import fire

from iosched.jobs.headroom.idle import spare_of
from iosched.jobs.headroom.trying import Allowance
from iosched.profiler.devices.analytic.device import PaperGpu
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.scheduler.baselines import greedy
from iosched.scheduler.schedule import Stage, Strategy


class Lanes:
    """Two lanes; units take what their names say of one, and stages what the longest of their groups takes."""

    lanes = 2

    def __init__(self, known: bool) -> None:
        self.is_known = known
        self.asked: list[str] = []

    def known(self, stage: Stage) -> SimpleNamespace | None:
        return SimpleNamespace(median_us=self._us(stage)) if self.is_known else None

    def stage_latency_us(self, stage: Stage) -> float:
        self.asked.append("+".join(stage.operators))
        return self._us(stage)

    def known_work_us(self, name: str) -> float | None:
        return float(name) if self.is_known else None

    def operator_work_us(self, name: str) -> float:
        self.asked.append(name)
        return float(name)

    def _us(self, stage: Stage) -> float:
        return max(sum(map(float, group)) for group in stage.groups)


def stage(*groups: tuple[str, ...], predicted_us: float | None = None) -> Stage:
    return Stage(Strategy.CONCURRENT, groups, predicted_us=predicted_us)


STAGES = [stage(("30",), ("10",)), stage(("20",), ("5", "15"), predicted_us=2.0), stage(("8",), predicted_us=1.0)]


def opened(cost: Lanes) -> SimpleNamespace:
    return SimpleNamespace(here=SimpleNamespace(cost=cost))


def test_lanes_that_wait_for_the_longest_group_are_idle() -> None:
    cost = Lanes(known=True)
    assert spare_of(opened(cost), STAGES, Allowance(0)) == [  # type: ignore[arg-type]
        (30.0, pytest.approx(1 / 3)),
        (20.0, 0.0),
        (8.0, 0.5),
    ]
    assert not cost.asked


def test_what_is_not_known_is_measured_as_far_as_it_may_the_longest_stages_first() -> None:
    cost, allowance = Lanes(known=False), Allowance(9)
    found = spare_of(opened(cost), STAGES, allowance)  # type: ignore[arg-type]
    assert cost.asked == ["20+5+15", "20", "5", "15", "8", "30+10"]
    assert found == [(30.0, None), (20.0, 0.0), (8.0, None)]
    assert (allowance.spent, allowance.left) == (9, 0)


def test_stages_of_which_more_is_asked_are_measured_before_longer_ones() -> None:
    cost = Lanes(known=False)
    found = spare_of(opened(cost), STAGES, Allowance(6), first={0})  # type: ignore[arg-type]
    assert cost.asked == ["30+10", "30", "10", "20+5+15"]
    assert found == [(30.0, pytest.approx(1 / 3)), (20.0, None), (None, None)]


def test_of_a_gpu_that_is_not_here_the_model_says_how_much_of_the_sms_is_idle() -> None:
    gpu = gpu_named("v100")
    assert gpu is not None
    on_paper = PaperGpu(gpu).open(fire(), OpenSettings())
    stages = list(greedy(fire().graph).stages)
    for each, (latency_us, idle) in zip(stages, spare_of(on_paper, stages, Allowance(0)), strict=True):
        assert latency_us == on_paper.cost.stage_latency_us(each)
        assert idle == pytest.approx(1 - on_paper.cost.busy_us(each) / latency_us)  # type: ignore[union-attr, operator]
        assert 0 < idle < 1
