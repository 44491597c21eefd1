"""In which layout the images of a model lie: found by running all of it in both on the GPU.

For which layout cuDNN has the better plans depends on the shapes, the precision, the GPU and cuDNN's version. Where
nothing is known and nothing may be timed, it is the preferred one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from iosched.runtime.cuda.choices import Choices
from iosched.runtime.cuda.cudnn.chooser import Candidate, candidates_from_text, candidates_to_text
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower.network import Network

GAIN = 0.97
"""The layout that is not preferred has to be faster by this factor at least: less may be noise."""

LatenciesInTurn = Callable[[Sequence[Network]], Sequence[Sequence[float]]]
"""Microseconds of each network as a whole, round by round; infinite where one fails."""


@dataclass(frozen=True)
class LayoutChoice:
    """A layout, and what the model took in it and in the other.

    Attributes:
        latency_us: microseconds of the model by layout, one operator after another; nothing where it was not timed.
    """

    layout: Layout
    latency_us: Mapping[Layout, float] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """Says how much faster the model is in this layout than in the other, unless that may be noise."""
        taken = self.latency_us.get(self.layout, math.nan)
        other = next((each for each in self.latency_us if each is not self.layout), self.layout)
        if not taken < GAIN * self.latency_us.get(other, math.nan) < math.inf:
            return ()
        return (
            f"Images lie in {self.layout.name}, in which the model takes {taken:.0f} us, one operator after another;"
            f" in {other.name} it takes {self.latency_us[other]:.0f} us.",
        )


def layout_by_choice(network: Network, choices: Choices, latencies_us: LatenciesInTurn) -> LayoutChoice:
    """The layout in which the model is faster, as it was found before or is found now.

    Args:
        network: in the preferred layout.
        latencies_us: runs the model in both layouts in turn.
    """
    if not network.has_images:
        return LayoutChoice(network.layout)
    key = layout_key(network)
    known = _from_text(choices.choice(key) or "")
    if known is None and choices.times:
        timed = _timed(network, latencies_us)
        known = None if timed is None else _from_text(choices.choose(key, _to_text(timed)))
    return known or LayoutChoice(network.layout)


def layout_key(network: Network) -> str:
    """The key of the model's choice: a hash of all of its kernels, and of how their tensors lie."""
    kernels = [network.layout_of(operator.name) for operator in network.model.graph.operators]
    return "layout " + hashlib.sha256(repr(kernels).encode()).hexdigest()[:24]


def _timed(network: Network, latencies_us: LatenciesInTurn) -> LayoutChoice | None:
    """The layout that is found by timing both; None where the model runs in neither."""
    networks = [network, *(network.in_layout(each) for each in Layout if each is not network.layout)]
    rounds = latencies_us(networks)
    latency_us = {each.layout: median(found) for each, found in zip(networks, rounds, strict=True)}
    if math.isinf(min(latency_us.values())):
        return None
    lead_us = median(GAIN * preferred - other for preferred, other in zip(*rounds, strict=True))
    return LayoutChoice(networks[1 if lead_us > 0 else 0].layout, latency_us)


def _to_text(choice: LayoutChoice) -> str:
    """Both layouts with their latencies, the chosen one first."""
    ranked = sorted(choice.latency_us, key=lambda layout: layout is not choice.layout)
    return candidates_to_text([Candidate(layout.value, choice.latency_us[layout]) for layout in ranked])


def _from_text(text: str) -> LayoutChoice | None:
    """Reads `_to_text`; None where it is of another form."""
    found = {each.name: each.latency_us for each in candidates_from_text(text)}
    latency_us = {each: latency for each in Layout if (latency := found.get(each.value)) is not None}
    chosen = next((each for each in Layout if each == next(iter(found), None)), None)
    return None if chosen is None else LayoutChoice(chosen, latency_us)
