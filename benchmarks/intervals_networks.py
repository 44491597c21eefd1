"""Errors of the analytic model on stages, and the share of published latencies of networks within its intervals.

Each of the four networks of the published V100 table is predicted with stage constants fitted to the other three, by
schedules searched under these constants. The error of sequential execution is attributed to short kernels alone, and
the error of speedups over it to stages of several groups alone: each is an upper limit. All other published latencies
were never fitted to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log, sqrt
from statistics import fmean
from typing import Any

import numpy as np
from analytic import cost_of, graph_of, schedules
from launches import PUBLISHED, Published
from published import (
    BATCH_CROSS_MS,
    BATCH_MS,
    DEVICE_CROSS_MS,
    DOS_TABLE_1_MS,
    FIGURE_4_5_MOST,
    FIGURE_4_6_MS,
    LIMITS,
    STRATEGIES,
    V100_MS,
)
from testbed import gpu_spec

from iosched import Schedule, Stage, search
from iosched.models.zoo import names
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.constants import STREAM_LAUNCHES, LaunchConstants
from iosched.profiler.devices.analytic.uncertainty import NORMAL, AnalyticUncertainty, Spread, Spreads
from iosched.profiler.measuring.statistics import Interval
from iosched.scheduler.baselines import sequential
from iosched.scheduler.pruning import DEFAULT_PRUNING, Pruning
from iosched.scheduler.strategies import SearchStrategy, pruning_of

STUDENT = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943, 7: 1.895}  # two-sided 90 %
LAUNCHES = ("kernel_us", "issue_us", "fork_us")
EXACT = {"convolution": Spread(0.0, 0.0)}
NOTHING = Spreads(
    short=EXACT, short_by_networks=0.0, seen=EXACT, specified=EXACT, tensor_cores=1.0,
    launches={"streams": 0.0, "graph": 0.0}, side_by_side=0.0, gains=0.0,
)  # fmt: skip
"""Spreads of a model without any error."""

Record = dict[str, object]
Cells = Mapping[str, tuple[float, Interval]]
"""Published and computed values by name: microseconds, or ratios."""


@dataclass(frozen=True)
class LeftOut:
    """A network under constants fitted to the others, with the resulting schedules."""

    name: str
    constants: LaunchConstants
    schedules: Mapping[str, Schedule]

    def published_us(self, schedule: str) -> float:
        """The published latency."""
        return 1000 * V100_MS[self.name][STRATEGIES.index(schedule)]

    def latency_us(self, schedule: str, spreads: Spreads) -> Interval:
        """The latency."""
        return self._known(spreads).latency_us(tuple(self.schedules[schedule].stages))

    def speedup(self, schedule: str, spreads: Spreads) -> Interval:
        """Its speedup over sequential execution."""
        plain, other = (tuple(self.schedules[name].stages) for name in ("sequential", schedule))
        return self._known(spreads).ratio(plain, other)

    def _known(self, spreads: Spreads) -> AnalyticUncertainty:
        return AnalyticUncertainty(cost_of(self.name, self.constants), "streams", spreads)


def widened(value: float, n: int) -> float:
    """A standard deviation around zero that is known from `n` values, for a normal interval that allows for that."""
    return value * STUDENT[n] / NORMAL


def left_out(record: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[LeftOut]:
    """Every network, by the constants that `analytic.py` wrote."""
    constants = {name: LaunchConstants(**found) for name, found in record["constants"].items()}
    return [LeftOut(name, found, schedules(name, found)) for name, found in constants.items()]


def network_spreads(known: Spreads, networks: Sequence[LeftOut]) -> Spreads:
    """`known`, with spreads from networks: of short kernels on their GPU, of single launches, and of stages."""
    one, two = replace(NOTHING, short_by_networks=1.0), replace(NOTHING, side_by_side=1.0)
    latencies = [(each.published_us("sequential"), each.latency_us("sequential", one)) for each in networks]
    speedups = [
        (each.published_us("sequential") / each.published_us(name), each.speedup(name, two))
        for each in networks
        for name in STRATEGIES[1:]
    ]
    pairs = [(each.constants, name) for each in networks for name in LAUNCHES]
    launches = [log(getattr(found, name) / getattr(STREAM_LAUNCHES, name)) for found, name in pairs]
    return replace(
        known,
        short_by_networks=widened(_deviation(latencies), len(networks)),
        side_by_side=_deviation(speedups),
        gains=_gains(),
        launches={**known.launches, "streams": float(np.sqrt(np.mean(np.square(launches))))},
    )


def _deviation(found: Sequence[tuple[float, Interval]]) -> float:
    """The standard deviation of an error, from its effect and that of an error of standard deviation 1."""
    off = sum(log(published / known.value) ** 2 for published, known in found)
    unit = sum((log(known.high / known.value) / NORMAL) ** 2 for _, known in found)
    return sqrt(off / unit)


@cache
def _gains() -> float:
    """The error that the logarithms of all gains share, by speed-ups on GPUs of no fit.

    A series is the measurements of one source. If it does not name its GPU, the mean over the possible ones
    counts. It is not widened for as few series as there are: this would allow for losses instead of gains.
    """
    unit = replace(NOTHING, gains=1.0)
    series: dict[str, list[float]] = {"IOS": [_off_by(FIGURE_4_5_MOST, _most_on_turing(unit))]}
    for each, published, known in _graph_speedups(unit, PUBLISHED):
        if known.high > known.low:
            series.setdefault(each.source, []).append(_off_by(published, known))
    means = [fmean(found) for found in series.values()]
    return sqrt(fmean(mean**2 for mean in means))


def _off_by(published: float, known: Interval) -> float:
    """The standard deviation of an error, from the effect of an error of standard deviation 1."""
    return NORMAL * log(published / known.value) / log(known.high / known.value)


def _most_on_turing(spreads: Spreads) -> Interval:
    """The largest speed-up of the four networks on an RTX 2080 Ti."""
    found = []
    for network in V100_MS:
        known = _known(spreads, network, "rtx2080ti")
        found.append(known.ratio(_plain(network), _searched(network, "rtx2080ti")))
    return max(found, key=lambda ratio: ratio.value)


def networks_covered(known: Spreads, networks: Sequence[LeftOut]) -> dict[str, Record]:
    """The V100 table, each network in intervals by spreads that come from the others."""
    latencies, speedups = {}, {}
    for each in networks:
        others = network_spreads(known, [other for other in networks if other is not each])
        for name in STRATEGIES:
            latencies[f"{each.name}, {name}"] = each.published_us(name), each.latency_us(name, others)
        for name in STRATEGIES[1:]:
            published = each.published_us("sequential") / each.published_us(name)
            speedups[f"{each.name}, {name}"] = published, each.speedup(name, others)
    return {"latencies": counted(latencies), "speed-ups": counted(speedups)}


def elsewhere_covered(known: Spreads) -> dict[str, Record]:
    """Published latencies and ratios that no constant was fitted to."""
    found = {
        "batch sizes, latencies": _batch_latencies(known),
        "batch sizes, speed-ups": _batch_speedups(known),
        "batch sizes, schedules for others over its own": _crosses(known, BATCH_CROSS_MS, "batch", "run at"),
        "devices, latencies": _device_latencies(known),
        "devices, schedules for others over its own": _crosses(known, DEVICE_CROSS_MS, "device", "run on"),
        "pruned searches over the widest": _pruned(known),
        "DOS, latencies": _dos(known),
        "DOS, schedules for others over its own": _dos_crosses(known),
        "CUDA graphs, latencies": _graph_latencies(known),
        "CUDA graphs, speed-ups by several streams, of which gains are": _named_speedups(known),
    }
    return {name: counted(dict(cells)) for name, cells in found.items()}


def counted(cells: Cells) -> Record:
    """Numbers of published values, within their intervals and in total."""
    return {
        "values": len(cells),
        "inside": sum(value in known for value, known in cells.values()),
        "published, computed, low, high": {
            name: [float(f"{value:.4g}") for value in (published, known.value, known.low, known.high)]
            for name, (published, known) in cells.items()
        },
    }


Found = Iterator[tuple[str, tuple[float, Interval]]]
Stages = tuple[Stage, ...]
INCEPTION = "inception_v3"


@cache
def _searched(
    network: str,
    device: str = "v100",
    batch: int = 1,
    strategy: SearchStrategy = "both",
    pruning: Pruning = DEFAULT_PRUNING,
) -> Stages:
    cost = cost_of(network, STREAM_LAUNCHES, device, batch)
    found = search(cost.graph, cost, strategy=strategy, pruning=pruning_of(strategy, pruning))
    return tuple(found.schedule.stages)


def _plain(network: str, batch: int = 1) -> Stages:
    return tuple(sequential(graph_of(network, batch)).stages)


def _known(spreads: Spreads, network: str, device: str = "v100", batch: int = 1) -> AnalyticUncertainty:
    return AnalyticUncertainty(cost_of(network, STREAM_LAUNCHES, device, batch), "streams", spreads)


def _batch_latencies(spreads: Spreads) -> Found:
    for batch, published in BATCH_MS.items():
        known, both = (
            _known(spreads, INCEPTION, batch=batch),
            (_plain(INCEPTION, batch), _searched(INCEPTION, batch=batch)),
        )
        for name, stages, ms in zip(("sequential", "both"), both, published, strict=True):
            yield f"{name}, batch {batch}", (1000 * ms, known.latency_us(stages))


def _batch_speedups(spreads: Spreads) -> Found:
    for batch, (plain_ms, found_ms) in BATCH_MS.items():
        plain, found = _plain(INCEPTION, batch), _searched(INCEPTION, batch=batch)
        ratio = _known(spreads, INCEPTION, batch=batch).ratio(plain, found)
        yield f"batch {batch}", (plain_ms / found_ms, ratio)


def _crosses(spreads: Spreads, table: Mapping[tuple[Any, Any], float], key: str, words: str) -> Found:
    """Schedules made for another batch size or device, over the one made for it."""
    for (run, made), ms in table.items():
        if run != made:
            others, own = (_searched(INCEPTION, **{key: each}) for each in (made, run))
            ratio = _known(spreads, INCEPTION, **{key: run}).ratio(others, own)
            yield f"{words} {run}, made for {made}", (ms / table[run, run], ratio)


def _device_latencies(spreads: Spreads) -> Found:
    for (run, made), ms in DEVICE_CROSS_MS.items():
        latency_us = _known(spreads, INCEPTION, run).latency_us(_searched(INCEPTION, made))
        yield f"run on {run}, made for {made}", (1000 * ms, latency_us)


def _pruned(spreads: Spreads) -> Found:
    for network, published in FIGURE_4_6_MS.items():
        known, widest = _known(spreads, network), _searched(network)
        for limits, ms in list(zip(LIMITS, published, strict=True))[1:]:
            found = known.ratio(_searched(network, pruning=Pruning(*limits)), widest)
            yield f"{network}, r {limits[0]}, s {limits[1]}", (ms / published[0], found)


def _dos(spreads: Spreads) -> Found:
    for own, (device, published) in enumerate(DOS_TABLE_1_MS):
        stages = _searched(INCEPTION, device, strategy="dos")
        latency_us = _known(spreads, INCEPTION, device).latency_us(stages)
        yield f"Inception V3 on {device}", (1000 * published[own], latency_us)


def _dos_crosses(spreads: Spreads) -> Found:
    for own, (device, published) in enumerate(DOS_TABLE_1_MS):
        known, best = _known(spreads, INCEPTION, device), _searched(INCEPTION, device, strategy="dos")
        for ms, (other, _) in zip(published, DOS_TABLE_1_MS, strict=True):
            if other != device:
                found = known.ratio(_searched(INCEPTION, other, strategy="dos"), best)
                yield f"run on {device}, made for {other}", (ms / published[own], found)


def _graph_latencies(spreads: Spreads) -> Found:
    for each, cost in _in_graphs(tuple(each for each in PUBLISHED if _is_named(each) and each.pairs_ms)):
        known = AnalyticUncertainty(cost, "graph", spreads)
        plain, found = _plain_and_best(cost)
        one_ms, several_ms = min(each.pairs_ms, key=lambda pair: pair[1])
        if one_ms is not None:
            yield f"{_name(each, cost)}, one stream", (1000 * one_ms, known.latency_us(plain))
        yield f"{_name(each, cost)}, several", (1000 * several_ms, known.latency_us(found))


def _named_speedups(spreads: Spreads) -> Found:
    for each, published, known in _graph_speedups(spreads, PUBLISHED):
        if _is_named(each):
            gpu, source = each.targets[0][0], each.source.partition(":")[0]
            yield f"{each.network}, batch {each.batch}, {gpu}, {published:.2f} by {source}", (published, known)


def _graph_speedups(spreads: Spreads, of: Sequence[Published]) -> Iterator[tuple[Published, float, Interval]]:
    """The speed-up by several streams, published and computed, on each GPU that it may be from."""
    for each, cost in _in_graphs(tuple(of)):
        for published in (*(one / several for one, several in each.pairs_ms if one is not None), *each.ratios):
            yield each, published, AnalyticUncertainty(cost, "graph", spreads).ratio(*_plain_and_best(cost))


@cache
def _in_graphs(of: tuple[Published, ...]) -> list[tuple[Published, AnalyticCost]]:
    """Measurements of networks of the zoo, with the model of each GPU that they may be of."""
    return [
        (each, AnalyticCost(graph_of(each.network, each.batch), gpu_spec(device), precision))
        for each in of
        if each.network in names()
        for device, precision in each.targets
    ]


def _is_named(published: Published) -> bool:
    return len({device for device, _ in published.targets}) == 1


def _name(published: Published, cost: AnalyticCost) -> str:
    return f"{published.network}, batch {published.batch}, {cost.gpu.key} {cost.precision}"


@cache
def _plain_and_best(cost: AnalyticCost) -> tuple[Stages, Stages]:
    return tuple(sequential(cost.graph).stages), tuple(search(cost.graph, cost).schedule.stages)
