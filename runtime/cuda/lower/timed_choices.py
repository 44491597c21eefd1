"""Lowerings that are chosen by timing: of separable convolutions, of Concats, and the layout of feature maps.

One kernel for a separable convolution saves a launch and memory traffic, but recomputes the depthwise part for each
tile of output channels, where cuDNN multiplies faster. Without a kernel for the sum before it, windows read all its
terms again. One kernel that copies a Concat's operands takes a launch, but cuDNN copies each slice that it writes where
its engine cannot. The best layout depends on shapes, precision, GPU and cuDNN. Without a known choice or permission to
time, there are two kernels, slices and the preferred layout.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from iosched.runtime.cuda.builder import Join
from iosched.runtime.cuda.cudnn.chooser import Choices, CudnnPlanCandidate, candidates_from_text, candidates_to_text
from iosched.runtime.cuda.kernel import CudnnKernel
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower.fused import DEFAULT_CHOICE, SEPARABLE, KernelChoice
from iosched.runtime.cuda.lower.lowered_model import LoweredModel

VARIANTS = 3
GAIN = 0.97
"""A choice other than the default must be faster by this factor: less may be noise."""

_CONCAT = "Concat"
_ONE = {f"one kernel, variant {variant}": KernelChoice(variant) for variant in range(VARIANTS)}
_SUM_INSIDE_OR_NOT = {
    f"{text}, other sum": KernelChoice(choice.variant, other_sum=True)
    for text, choice in {"two kernels": DEFAULT_CHOICE, **_ONE}.items()
}
CHOICES: Mapping[str, Mapping[str, KernelChoice]] = {
    SEPARABLE: {"two kernels": DEFAULT_CHOICE, **_ONE, **_SUM_INSIDE_OR_NOT},
    _CONCAT: {"slices": DEFAULT_CHOICE, "one kernel, variant 0": KernelChoice(0)},
}
"""Choices by their stored texts, the default first; by type of operator in the order in which they are made."""


OperatorLatency = Callable[[LoweredModel, Sequence[str]], float]
"""Microseconds of operators alone in a lowered model, one after another; infinite if one fails."""


def fusion_key(lowered: LoweredModel, name: str) -> str:
    """Key of an operator's choice: a hash of the kernels that are timed and the layout of their tensors."""
    return "fused " + hashlib.sha256(_kernels(lowered, _timed_with(lowered, name)).encode()).hexdigest()[:24]


def _kernels(lowered: LoweredModel, names: Iterable[str]) -> str:
    return repr([lowered.layout_of(name) for name in names])


def _timed_with(lowered: LoweredModel, name: str) -> list[str]:
    """The operators whose kernels the choice for `name` changes.

    For a Concat, these include the operators that write its operands by cuDNN, unless another Concat reads them too.
    """
    calls = [(owner, call) for owner, own in lowered.calls.items() for call in own]
    joins = [(owner, read) for owner, call in calls if isinstance(call.kernel, Join) for read in call.reads]
    alone = {read for owner, read in joins if owner == name} - {read for owner, read in joins if owner != name}
    by_cudnn = (owner for owner, call in calls if alone & {*call.writes} and isinstance(call.kernel, CudnnKernel))
    return list(dict.fromkeys([*by_cudnn, name]))


def fused_everywhere(lowered: LoweredModel) -> LoweredModel:
    """The model with one kernel wherever possible."""
    operators = lowered.model.graph.operators
    return lowered.with_fused({each.name: KernelChoice(0) for each in operators if each.type in CHOICES})


Fusion = tuple[LoweredModel, Mapping[str, str], Sequence[str]]
"""A lowered model, its choices other than the default by key, and the keys of all its choices."""


def fused_by_choice(
    lowered: LoweredModel,
    choices: Choices,
    latency_us: OperatorLatency,
    prepare: Callable[[LoweredModel], None] = lambda lowered: None,
) -> Fusion:
    """The model with other kernels where they are faster. Equal operators are timed once.

    Args:
        lowered: with the default everywhere.
        prepare: called with each lowered model before its operators are timed.
    """
    chosen, asked = dict[str, str](), list[str]()
    for kind, texts in CHOICES.items():
        keys = fusion_keys(lowered, kind)
        known = {key: choices.choice(key) for key in keys.values()}
        if choices.times:
            first = {key: name for name, key in reversed(keys.items()) if known[key] is None}
            known |= _timed_fusion(lowered, kind, first, choices, latency_us, prepare)
        found = {name: texts.get(known[key] or "", DEFAULT_CHOICE) for name, key in keys.items()}
        fused = {name: choice for name, choice in found.items() if choice != DEFAULT_CHOICE}
        lowered = lowered.with_fused({**lowered.fused, **fused}) if fused else lowered
        chosen |= {keys[name]: str(known[keys[name]]) for name in fused}
        asked += keys.values()
    return lowered, chosen, asked


def _timed_fusion(
    lowered: LoweredModel,
    kind: str,
    names: Mapping[str, str],
    choices: Choices,
    latency_us: OperatorLatency,
    prepare: Callable[[LoweredModel], None],
) -> dict[str, str]:
    if not names:
        return {}
    timed = {key: _timed_with(lowered, name) for key, name in names.items()}
    default, *others = CHOICES[kind]
    prepare(lowered)

    def tried_us(variants: LoweredModel, key: str, text: str) -> float:
        if text in choices.fatal(key):
            return math.inf
        with choices.trying(key, text):
            return latency_us(variants, timed[key])

    best = {key: (default, GAIN * tried_us(lowered, key, default)) for key in names}
    tried = {key: {_kernels(lowered, own)} for key, own in timed.items()}
    for text in others:
        other = lowered.with_fused({**lowered.fused, **dict.fromkeys(names.values(), CHOICES[kind][text])})
        new = [key for key, own in timed.items() if _kernels(other, own) not in tried[key]]
        if not new:
            continue
        prepare(other)
        for key in new:
            tried[key].add(_kernels(other, timed[key]))
            latency = tried_us(other, key, text)
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


def fusion_keys(lowered: LoweredModel, kind: str) -> dict[str, str]:
    """The key of each operator of type `kind` with a choice."""
    operators = [each.name for each in lowered.model.graph.operators if each.type == kind]
    return {name: fusion_key(lowered, name) for name in operators if kind != _CONCAT or _timed_with(lowered, name)[1:]}


InterleavedLatencies = Callable[[Sequence[LoweredModel]], Sequence[Sequence[float]]]
"""Microseconds of each lowered model by round; infinite if one fails."""


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


def layout_by_choice(lowered: LoweredModel, choices: Choices, latencies_us: InterleavedLatencies) -> LayoutChoice:
    """The layout in which the model is faster.

    Args:
        lowered: in the preferred layout.
        latencies_us: times the model in both layouts, interleaved.
    """
    if not lowered.has_images:
        return LayoutChoice(lowered.layout)
    key = layout_key(lowered)
    known = _layout_from_text(choices.choice(key) or "")
    fatal = choices.fatal(key)
    if known is None and fatal:
        return LayoutChoice(next((each for each in Layout if each not in fatal), lowered.layout))
    if known is None and choices.times:
        timed = _timed_layout(lowered, latencies_us)
        known = None if timed is None else _layout_from_text(choices.choose(key, _layout_to_text(timed)))
    return known or LayoutChoice(lowered.layout)


def layout_key(lowered: LoweredModel) -> str:
    """Key of the model's choice: a hash of its kernels and the layout of their tensors."""
    kernels = [lowered.layout_of(operator.name) for operator in lowered.model.graph.operators]
    return "layout " + hashlib.sha256(repr(kernels).encode()).hexdigest()[:24]


def _timed_layout(lowered: LoweredModel, latencies_us: InterleavedLatencies) -> LayoutChoice | None:
    models = [lowered, *(lowered.in_layout(each) for each in Layout if each is not lowered.layout)]
    rounds = latencies_us(models)
    latency_us = {each.layout: median(found) for each, found in zip(models, rounds, strict=True)}
    if math.isinf(min(latency_us.values())):
        return None
    lead_us = median(GAIN * preferred - other for preferred, other in zip(*rounds, strict=True))
    return LayoutChoice(models[1 if lead_us > 0 else 0].layout, latency_us)


def _layout_to_text(choice: LayoutChoice) -> str:
    ranked = sorted(choice.latency_us, key=lambda layout: layout is not choice.layout)
    return candidates_to_text([CudnnPlanCandidate(layout.value, choice.latency_us[layout]) for layout in ranked])


def _layout_from_text(text: str) -> LayoutChoice | None:
    found = {each.name: each.latency_us for each in candidates_from_text(text)}
    latency_us = {each: latency for each in Layout if (latency := found.get(each.value)) is not None}
    chosen = next((each for each in Layout if each == next(iter(found), None)), None)
    return None if chosen is None else LayoutChoice(chosen, latency_us)
