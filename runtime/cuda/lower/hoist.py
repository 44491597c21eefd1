"""Moves a ReLU at the start of all readers of a tensor into the kernel that writes the tensor.

Exact, since every reader computed max(x, 0). Graph outputs and tensors with other readers stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from iosched.models.graph import ComputationGraph
from iosched.runtime.cuda.builder import Builder, Join, KernelCall
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.batch_norm import ScaleShift
from iosched.runtime.cuda.kernels.conv import Conv
from iosched.runtime.cuda.kernels.depthwise import Depthwise
from iosched.runtime.cuda.kernels.elementwise import Unary
from iosched.runtime.cuda.kernels.separable import Separable
from iosched.runtime.cuda.source.activation import IDENTITY, RELU

Calls = Mapping[str, Sequence[KernelCall]]
Ending = AddN | ScaleShift | Conv | Depthwise | Separable
"""Kernels that can end in a ReLU."""


def rectifiable(graph: ComputationGraph, calls: Calls) -> frozenset[str]:
    """The tensors whose ReLU moves to their writer; O(calls * longest chain of Concats).

    Their writer can end in a ReLU, all readers begin with one, and a kernel is saved. A Concat counts as both if its
    operands and its result are such tensors.

    Args:
        calls: by operator.
    """
    return _Uses(graph, tuple(call for own in calls.values() for call in own)).wanted()


def hoisted(builder: Builder, calls: Calls, rectified: Collection[str]) -> dict[str, list[KernelCall]]:
    """`calls` with the ReLU of `rectified` tensors in the kernels that write them; may add constants to `builder`."""
    found, public = {}, builder.model.graph.producer
    for operator, own in calls.items():
        lone = (call for call in own if is_relu(call) and call.writes[0] not in public)
        gone = {call.writes[0]: call.reads[0] for call in lone if call.reads[0] in rectified}
        left = [call for call in own if call.writes[0] not in gone]
        found[operator] = [_rewritten(builder, call, gone, rectified) for call in left]
    return found


def is_relu(call: KernelCall) -> bool:
    """Whether the call is only a ReLU."""
    return call.kernel == AddN(RELU) and len(call.reads) == 1


@dataclass(frozen=True, eq=False)
class _Uses:
    graph: ComputationGraph
    calls: tuple[KernelCall, ...]

    @cached_property
    def made(self) -> dict[str, KernelCall]:
        return {write: call for call in self.calls for write in call.writes}

    @cached_property
    def readers(self) -> dict[str, list[KernelCall]]:
        found: dict[str, list[KernelCall]] = {}
        for call in self.calls:
            for name in call.reads:
                found.setdefault(name, []).append(call)
        return found

    @cached_property
    def joins(self) -> list[KernelCall]:
        return [call for call in self.calls if isinstance(call.kernel, Join)]

    def possible(self) -> set[str]:
        outputs = set(self.graph.outputs)
        found = {name for name in self.made if name in self.readers and name not in outputs}
        while True:
            left = {name for name in found if self._can_end(name, found) and self._all_begin(name, found)}
            if left == found:
                return found
            found = left

    def wanted(self) -> frozenset[str]:
        possible = self.possible()
        found = {name for name in possible if any(map(is_relu, self.readers[name]))}
        while True:
            more = set(found)
            for join in self.joins:
                together = {*join.reads, *join.writes}
                if join.writes[0] in possible and together & found:
                    more |= together
            if more == found:
                return frozenset(found)
            found = more

    def _can_end(self, name: str, found: Collection[str]) -> bool:
        call = self.made[name]
        kernel = call.kernel
        if isinstance(kernel, Join):
            return all(read in found for read in call.reads)
        return isinstance(kernel, Ending) and kernel.activation in (IDENTITY, RELU)

    def _all_begin(self, name: str, found: Collection[str]) -> bool:
        return all(self._begins(reader, found) for reader in self.readers[name])

    def _begins(self, call: KernelCall, found: Collection[str]) -> bool:
        if isinstance(call.kernel, Join):
            return call.writes[0] in found
        if isinstance(call.kernel, Depthwise | Separable):
            return call.kernel.relu and call.kernel.terms == 1
        return is_relu(call) or call.kernel == Unary(RELU)


def _rewritten(builder: Builder, call: KernelCall, gone: Mapping[str, str], rectified: Collection[str]) -> KernelCall:
    """Depthwise kernels keep their leading ReLU, which is free."""
    call = replace(call, reads=tuple(gone.get(name, name) for name in call.reads))
    kernel = call.kernel
    if call.writes[0] not in rectified or isinstance(kernel, Join):
        return call
    if isinstance(kernel, Conv) and not kernel.bias:  # cuDNN has tuned engines for a ReLU only after a bias
        bias = builder.weight(f"{call.writes[0]}/bias", np.zeros(builder.shape(call.writes[0])[1]))
        kernel, call = replace(kernel, bias=True), replace(call, reads=(*call.reads[:2], bias, *call.reads[2:]))
    if isinstance(kernel, Ending):
        kernel = replace(kernel, activation=RELU)
    return replace(call, kernel=kernel)
