"""Whether a depthwise and a pointwise convolution are one kernel or two: found by timing both on the GPU.

One kernel is one launch less and keeps what is between the two off memory; but it computes that again for every tile of
output channels, where cuDNN has the better product. Which is faster depends on the shapes. Where nothing is known and
nothing may be timed, they are two.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

from iosched.runtime.cuda.choices import Choices
from iosched.runtime.cuda.kernels.separable import Separable
from iosched.runtime.cuda.lower import separable
from iosched.runtime.cuda.lower.network import Network

VARIANTS = 3
GAIN = 0.97
"""One kernel has to be faster than two by this factor at least: it is not worth a difference that may be noise."""

_TWO = "two kernels"
_ONE = "one kernel, variant "


Latency = Callable[[Network, str], float]
"""Microseconds of an operator alone, as a network has it; infinite where it fails."""


def fusion_key(network: Network, name: str) -> str:
    """The key of an operator's choice: a hash of its two kernels, and of how their tensors lie."""
    return "fused " + hashlib.sha256(repr(network.layout_of(name)).encode()).hexdigest()[:24]


def fused_everywhere(network: Network) -> Network:
    """The network with one kernel wherever one can do both convolutions, whichever is faster."""
    operators = network.model.graph.operators
    return network.with_fused({each.name: 0 for each in operators if each.type == separable.TYPE})


def fused_by_choice(
    network: Network, choices: Choices, latency_us: Latency, prepare: Callable[[Network], None] = lambda network: None
) -> tuple[Network, Mapping[str, str]]:
    """The network with one kernel where that is faster, and these choices by key.

    Each distinct operator is timed once, in every variant.

    Args:
        network: with two kernels everywhere.
        prepare: called with every network of which operators will be timed.
    """
    operators = (each.name for each in network.model.graph.operators if each.type == separable.TYPE)
    keys = {name: fusion_key(network, name) for name in operators}
    known = {key: choices.choice(key) for key in keys.values()}
    if choices.times:
        first = {key: name for name, key in reversed(keys.items()) if known[key] is None}
        known |= _timed(network, first, choices, latency_us, prepare)
    fused = {name: variant for name, key in keys.items() if (variant := _variant(known[key])) is not None}
    found = network.with_fused(fused) if fused else network
    return found, {keys[name]: str(known[keys[name]]) for name in fused}


def _timed(
    network: Network,
    names: Mapping[str, str],
    choices: Choices,
    latency_us: Latency,
    prepare: Callable[[Network], None],
) -> dict[str, str]:
    """The choice that is kept for each key, found by timing the operator that `names` has for it."""
    prepare(network)
    best = {key: (_TWO, GAIN * latency_us(network, name)) for key, name in names.items()}
    for variant in range(VARIANTS if names else 0):
        other = network.with_fused(dict.fromkeys(names.values(), variant))
        prepare(other)
        for key, name in names.items():
            one = any(isinstance(call.kernel, Separable) for call in other.calls[name])
            latency = latency_us(other, name) if one else math.inf
            if latency < best[key][1]:
                best[key] = (f"{_ONE}{variant}", latency)
    return {key: choices.choose(key, text) for key, (text, _) in best.items()}


def _variant(text: str | None) -> int | None:
    number = (text or "").removeprefix(_ONE)
    return int(number) if number != text and number.isdecimal() else None
