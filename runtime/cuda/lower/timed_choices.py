"""Lowerings that are chosen by timing: kernels of separable convolutions, and the layout of feature maps.

One kernel for both convolutions saves a launch and memory traffic, but recomputes the depthwise part for each tile of
output channels, where cuDNN multiplies faster. Without a kernel for the sum before them, windows read all its terms
again. The best layout depends on shapes, precision, GPU and cuDNN. Without a known choice or
permission to time, there are two kernels and the preferred layout.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median

from iosched.runtime.cuda.cudnn.chooser import Choices, CudnnPlanCandidate, candidates_from_text, candidates_to_text
from iosched.runtime.cuda.kernels.separable import Separable
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower.fused import SEPARABLE, TWO_KERNELS, SeparableChoice
from iosched.runtime.cuda.lower.lowered_model import LoweredModel

VARIANTS = 3
GAIN = 0.97
"""A choice that is not the default must be faster by this factor: less may be noise."""

_TWO = "two kernels"
_KERNELS = {_TWO: None, **{f"one kernel, variant {variant}": variant for variant in range(VARIANTS)}}
_CHOICES = {
    kernels + end: SeparableChoice(variant, bool(end))
    for (kernels, variant), end in product(_KERNELS.items(), ("", ", other sum"))
}


OperatorLatency = Callable[[LoweredModel, str], float]
"""Microseconds of an operator alone in a network; infinite if it fails."""


def fusion_key(network: LoweredModel, name: str) -> str:
    """Key of an operator's choice: a hash of its default kernels and the layout of their tensors."""
    return "fused " + hashlib.sha256(repr(network.layout_of(name)).encode()).hexdigest()[:24]


def fused_everywhere(network: LoweredModel) -> LoweredModel:
    """The network with one kernel wherever possible."""
    operators = network.model.graph.operators
    return network.with_fused({each.name: SeparableChoice(0) for each in operators if each.type == SEPARABLE})


def fused_by_choice(
    network: LoweredModel,
    choices: Choices,
    latency_us: OperatorLatency,
    prepare: Callable[[LoweredModel], None] = lambda network: None,
) -> tuple[LoweredModel, Mapping[str, str]]:
    """The network with other kernels where they are faster, and these choices by key. Equal operators are timed once.

    Args:
        network: with the default everywhere.
        prepare: called with each network before its operators are timed.
    """
    keys = fusion_keys(network)
    known = {key: choices.choice(key) for key in keys.values()}
    if choices.times:
        first = {key: name for name, key in reversed(keys.items()) if known[key] is None}
        known |= _timed_fusion(network, first, choices, latency_us, prepare)
    fused = {
        name: choice
        for name, key in keys.items()
        if (choice := _CHOICES.get(known[key] or _TWO, TWO_KERNELS)) != TWO_KERNELS
    }
    found = network.with_fused(fused) if fused else network
    return found, {keys[name]: str(known[keys[name]]) for name in fused}


def _timed_fusion(
    network: LoweredModel,
    names: Mapping[str, str],
    choices: Choices,
    latency_us: OperatorLatency,
    prepare: Callable[[LoweredModel], None],
) -> dict[str, str]:
    prepare(network)

    def tried_us(variants: LoweredModel, key: str, text: str) -> float:
        if text in choices.fatal(key):
            return math.inf
        with choices.trying(key, text):
            return latency_us(variants, names[key])

    best = {key: (_TWO, GAIN * tried_us(network, key, _TWO)) for key in names}
    summed = {key: name for key, name in names.items() if len(network.model.graph.by_name[name].inputs) > 1}
    for text, choice in _CHOICES.items():
        own = summed if choice.other_sum else names
        if text == _TWO or not own:
            continue
        other = network.with_fused(dict.fromkeys(own.values(), choice))
        prepare(other)
        for key, name in own.items():
            applies = choice.variant is None or any(isinstance(call.kernel, Separable) for call in other.calls[name])
            latency = tried_us(other, key, text) if applies else math.inf
            if latency < best[key][1]:
                best[key] = (text, latency)
    return {key: choices.choose(key, text) for key, (text, _) in best.items()}


def crash_notes(choices: Choices, keys: Iterable[str]) -> tuple[str, ...]:
    """A note on the candidates for these keys that are skipped because they crashed."""
    found = [name for key in dict.fromkeys(keys) for name in sorted(choices.fatal(key))]
    if not found:
        return ()
    return (
        f"Kernels and layouts skipped because they crashed the GPU or the process before: {len(found)} (first:"
        f" {found[0]!r}). `iosched profile clear` allows another try.",
    )


def fusion_keys(network: LoweredModel) -> dict[str, str]:
    """The key of each operator with a choice."""
    operators = (each.name for each in network.model.graph.operators if each.type == SEPARABLE)
    return {name: fusion_key(network, name) for name in operators}


InterleavedLatencies = Callable[[Sequence[LoweredModel]], Sequence[Sequence[float]]]
"""Microseconds of each network by round; infinite if one fails."""


@dataclass(frozen=True)
class LayoutChoice:
    """A layout, and the latencies that it was chosen by.

    Attributes:
        latency_us: of the sequential model by layout; empty if not timed.
    """

    layout: Layout
    latency_us: Mapping[Layout, float] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """The gain over the other layout, if it is beyond noise."""
        taken = self.latency_us.get(self.layout, math.nan)
        other = next((each for each in self.latency_us if each is not self.layout), self.layout)
        if not taken < GAIN * self.latency_us.get(other, math.nan) < math.inf:
            return ()
        return (
            f"Images use the {self.layout.name} layout: one operator at a time, the model takes {taken:.0f} µs, and"
            f" {self.latency_us[other]:.0f} µs in {other.name}.",
        )


def layout_by_choice(network: LoweredModel, choices: Choices, latencies_us: InterleavedLatencies) -> LayoutChoice:
    """The layout in which the model is faster.

    Args:
        network: in the preferred layout.
        latencies_us: times the model in both layouts, interleaved.
    """
    if not network.has_images:
        return LayoutChoice(network.layout)
    key = layout_key(network)
    known = _layout_from_text(choices.choice(key) or "")
    fatal = choices.fatal(key)
    if known is None and fatal:
        return LayoutChoice(next((each for each in Layout if each not in fatal), network.layout))
    if known is None and choices.times:
        timed = _timed_layout(network, latencies_us)
        known = None if timed is None else _layout_from_text(choices.choose(key, _layout_to_text(timed)))
    return known or LayoutChoice(network.layout)


def layout_key(network: LoweredModel) -> str:
    """Key of the model's choice: a hash of its kernels and the layout of their tensors."""
    kernels = [network.layout_of(operator.name) for operator in network.model.graph.operators]
    return "layout " + hashlib.sha256(repr(kernels).encode()).hexdigest()[:24]


def _timed_layout(network: LoweredModel, latencies_us: InterleavedLatencies) -> LayoutChoice | None:
    networks = [network, *(network.in_layout(each) for each in Layout if each is not network.layout)]
    rounds = latencies_us(networks)
    latency_us = {each.layout: median(found) for each, found in zip(networks, rounds, strict=True)}
    if math.isinf(min(latency_us.values())):
        return None
    lead_us = median(GAIN * preferred - other for preferred, other in zip(*rounds, strict=True))
    return LayoutChoice(networks[1 if lead_us > 0 else 0].layout, latency_us)


def _layout_to_text(choice: LayoutChoice) -> str:
    ranked = sorted(choice.latency_us, key=lambda layout: layout is not choice.layout)
    return candidates_to_text([CudnnPlanCandidate(layout.value, choice.latency_us[layout]) for layout in ranked])


def _layout_from_text(text: str) -> LayoutChoice | None:
    found = {each.name: each.latency_us for each in candidates_from_text(text)}
    latency_us = {each: latency for each in Layout if (latency := found.get(each.value)) is not None}
    chosen = next((each for each in Layout if each == next(iter(found), None)), None)
    return None if chosen is None else LayoutChoice(chosen, latency_us)
