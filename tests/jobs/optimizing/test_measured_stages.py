"""The best schedule of measured stages only, reported alongside one that is partly computed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from scripted import fire

from iosched.jobs.optimizing.measured_stages import best_measured_us, measured_stages_notes
from iosched.jobs.settings import OptimizeSettings
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.devices.imported_stages import ImportedProfile, ImportedStages
from iosched.profiler.devices.profiled_device import CostDetails
from iosched.profiler.devices.throughput import Throughputs
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.signature import stage_signature

GRAPH = fire().graph
SETTINGS = OptimizeSettings(device="v100")


@dataclass(frozen=True)
class Opened:
    """`fire` on a V100, where each stage of the given schedules was measured at the given microseconds."""

    details: CostDetails
    graph = GRAPH
    cost = AnalyticCost(GRAPH, gpu_named("v100"))


def _opened(found: ImportedProfile) -> Opened:
    return Opened(CostDetails(Throughputs(GRAPH), lambda _: None, found))


def opened(*measured: tuple[Schedule, float]) -> Opened:
    latency_us = {stage_signature(GRAPH, stage): us for schedule, us in measured for stage in schedule.stages}
    found = ImportedStages("a V100", latency_us, lambda stage: stage_signature(GRAPH, stage), lambda name: name)
    return _opened(ImportedProfile(found))


def test_it_is_the_best_schedule_of_the_stages_that_were_measured() -> None:
    n_sequential = len(tuple(sequential(GRAPH).stages))
    assert best_measured_us(opened((sequential(GRAPH), 10.0)), SETTINGS) == 10 * n_sequential
    n_greedy = len(tuple(greedy(GRAPH).stages))
    assert n_greedy < n_sequential
    assert best_measured_us(opened((sequential(GRAPH), 10.0), (greedy(GRAPH), 10.0)), SETTINGS) == 10 * n_greedy


def test_there_is_none_if_a_block_was_not_measured() -> None:
    some = opened((sequential(GRAPH), 10.0))
    assert some.details.imported.measured is not None
    known = dict(list(some.details.imported.measured.latency_us.items())[1:])
    fewer = _opened(ImportedProfile(replace(some.details.imported.measured, latency_us=known)))
    assert best_measured_us(fewer, SETTINGS) is None
    assert measured_stages_notes(fewer, SETTINGS, 0.5) == ()
    assert best_measured_us(_opened(ImportedProfile()), SETTINGS) is None


def test_it_is_reported_if_the_schedule_found_is_partly_computed() -> None:
    some = opened((sequential(GRAPH), 1000.0))
    (note,) = measured_stages_notes(some, SETTINGS, 0.4)
    assert note == "The best schedule that uses only measured stages takes 8,000.0 us."


@pytest.mark.parametrize("share", [None, 1.0])
def test_it_is_not_reported_if_all_or_none_of_it_was_measured(share: float | None) -> None:
    assert measured_stages_notes(opened((sequential(GRAPH), 10.0)), SETTINGS, share) == ()


@pytest.mark.parametrize("other", [replace(SETTINGS, strategy="greedy"), replace(SETTINGS, budget_s=1.0)])
def test_it_is_not_searched_for_without_a_search_or_time(other: OptimizeSettings) -> None:
    assert best_measured_us(opened((sequential(GRAPH), 10.0)), other) is None
