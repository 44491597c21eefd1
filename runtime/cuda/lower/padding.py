"""Pads channels with zeros to the multiple that cuDNN's kernels for tensor cores need.

For other channels, cuDNN converts image, filter and result with further kernels in every run. Filters are padded, and
results of products whose readers keep the zeros up to the next product: only the order of summation changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from iosched.runtime.cuda.builder import Builder, Cut, Join, KernelCall, Reshape
from iosched.runtime.cuda.kernel import Kernel
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.batch_norm import ScaleShift
from iosched.runtime.cuda.kernels.conv import Conv
from iosched.runtime.cuda.kernels.depthwise import Depthwise
from iosched.runtime.cuda.kernels.elementwise import Unary
from iosched.runtime.cuda.kernels.pool import Pool
from iosched.runtime.cuda.kernels.product import Dense
from iosched.runtime.cuda.kernels.reduce import Reduce
from iosched.runtime.cuda.kernels.resize import Resize
from iosched.runtime.cuda.kernels.separable import Separable, in_whole_tiles
from iosched.runtime.cuda.source.activation import IDENTITY

Zeros = tuple[tuple[int, int], ...]
"""Zeros among the channels of a tensor: the real channel that they precede, and their number."""

Gaps = Mapping[str, Zeros]

_VOLTA = 70
_RANKS = (2, 4)  # in others, channels are not on axis one or not dense


class Padding:
    """Pads the channels of a model's calls.

    Attributes:
        builder: tensors and constants of the padded calls.
    """

    def __init__(self, plain: Builder, calls: Sequence[KernelCall]) -> None:
        """Finds the tensors to pad; `plain` has the tensors and constants of `calls`, the whole model's calls."""
        self._plain, self._multiple = plain, _multiple(plain)
        self._gaps: Gaps = {}
        self._gaps = self._found(calls, plain.model.graph.outputs)
        self.builder = plain.copy() if self._gaps else plain

    def padded(self, calls: Iterable[KernelCall]) -> list[KernelCall]:
        """These calls of the model with padded channels."""
        return [self._call(call, self._gaps) for call in calls]

    def merged(self, calls: Sequence[KernelCall]) -> list[KernelCall] | None:
        """Padded calls that replace others; None if they cannot pad the model's tensors in the same way."""
        public = self._plain.model.graph.tensor.keys()
        gaps = self._found(calls, public - self._gaps.keys())
        is_same = all(gaps.get(name) == self._gaps.get(name) for name in public)
        return [self._call(call, gaps) for call in calls] if is_same else None

    def _found(self, calls: Sequence[KernelCall], unpadded: Iterable[str]) -> Gaps:
        """The padding that all readers keep; rounds of O(calls), each of which finds tensors not to pad."""
        refused, parts = set(unpadded), _parts(calls)
        while self._multiple > 1:
            gaps, lost = dict(self._gaps), set[str]()
            for call in calls:
                names = parts.get(call.writes[0], call.writes[:1])
                wanted = {name: self._gaps.get(name, self._missing(name)) for name in names if name not in refused}
                kept = self._kept(call, gaps, self._joined(names, wanted))
                gaps |= zip(call.writes, kept or [()] * len(call.writes), strict=True)
                spoilt = [name for name in call.writes if name in refused and gaps.pop(name)]
                if kept is None or spoilt:
                    lost.update(name for name in call.reads if gaps.get(name))
            if not lost:
                return {name: zeros for name, zeros in gaps.items() if zeros}
            refused |= lost
        return {}

    def _kept(self, call: KernelCall, gaps: Gaps, wanted: Zeros) -> list[Zeros] | None:
        """The zeros of the results, `wanted` if they can be any; None if the operands must not be padded."""
        kernel, own = call.kernel, [gaps.get(name, ()) for name in call.reads]
        activation = getattr(kernel, "activation", getattr(kernel, "function", IDENTITY))
        if len(self._plain.shape(call.writes[0])) not in _RANKS or np.any(activation(np.zeros(1, np.float32))):
            return None
        if kernel == Cut(1):
            ends = pairwise(accumulate(map(self._channels, call.writes), initial=0))
            return [tuple((at - start, count) for at, count in own[0] if start < at <= end) for start, end in ends]
        if kernel == Join(1):
            joined = self._joined(call.reads, gaps)
            return None if (self._channels(call.writes[0]) + _total(joined)) % self._multiple else [joined]
        if len({gaps.get(name, ()) for name in self._summed(call)}) > 1:
            return None
        if isinstance(kernel, Dense | Separable) or (isinstance(kernel, Conv) and kernel.groups == 1):
            added = _added(kernel, own)
            return None if len(set(added)) > 1 else [*added, wanted][:1]
        keeps = isinstance(kernel, AddN | ScaleShift | Depthwise | Unary | Pool | Resize | Reshape)
        keeps = keeps or (isinstance(kernel, Reduce) and min(kernel.axes) > 1)
        x, y = (self._plain.shape(name)[:2] for name in (call.reads[0], call.writes[0]))
        return own[:1] if keeps and x == y else None

    def _summed(self, call: KernelCall) -> Sequence[str]:
        """The operands that need equal zeros, since `call` computes a function of their sum."""
        if isinstance(call.kernel, Pool):
            return [name for name in call.reads if name not in self._plain.weights]
        return call.reads if isinstance(call.kernel, AddN) else call.reads[: getattr(call.kernel, "terms", 1)]

    def _channels(self, name: str) -> int:
        return (*self._plain.shape(name), 1, 1)[1]

    def _missing(self, name: str) -> Zeros:
        channels = self._channels(name)
        return ((channels, -channels % self._multiple),) if channels % self._multiple else ()

    def _joined(self, names: Sequence[str], gaps: Gaps) -> Zeros:
        starts = accumulate(map(self._channels, names), initial=0)
        pairs = zip(names, starts, strict=False)
        return tuple((start + at, count) for name, start in pairs for at, count in gaps.get(name, ()))

    def _call(self, call: KernelCall, gaps: Gaps) -> KernelCall:
        if not self._gaps:
            return call
        for name in (*call.reads, *call.writes):
            spec = self._plain.tensors[name]
            if name in gaps:
                batch, channels, *rest = self._plain.shape(name)
                spec = replace(spec, shape=(batch, channels + _total(gaps[name]), *rest))
            self.builder.tensors[name] = spec
            if name in self._plain.weights:
                self.builder.weights[name] = self._plain.weights[name]
        if gaps.keys().isdisjoint((*call.reads, *call.writes)):
            return call
        reads = list(call.reads)
        for index, axes in zip(range(getattr(call.kernel, "terms", 1), len(reads)), _constant_axes(call), strict=False):
            if reads[index] in self._plain.weights:
                reads[index] = self._constant(call, reads[index], axes, gaps)
        return replace(call, reads=tuple(reads))

    def _constant(self, call: KernelCall, name: str, axes: Sequence[str], gaps: Gaps) -> str:
        array = self._plain.weights[name]
        for axis, tensor in enumerate(axes):
            if tensor in gaps:
                real = array.take(range(self._channels(tensor)), axis)
                array = np.insert(real, [at for at, count in gaps[tensor] for _ in range(count)], 0, axis)
        is_tiled = isinstance(call.kernel, Separable) and len(axes) == 2
        return self.builder.add_constant(f"{name}/padded", in_whole_tiles(array) if is_tiled else array)


def _multiple(builder: Builder) -> int:
    """Channels that tensor cores multiply at once; 1 without tensor cores."""
    if builder.precision.name == "fp16":
        return 8 if builder.gpu.capability >= _VOLTA else 1
    return 4 if builder.precision.name == "tf32" and builder.gpu.has_tf32 else 1


def _parts(calls: Sequence[KernelCall]) -> dict[str, tuple[str, ...]]:
    """The tensors that others are split into, perhaps after a sum or an activation."""
    found = dict[str, tuple[str, ...]]()
    for call in reversed(calls):
        if call.kernel == Cut(1):
            found[call.reads[0]] = call.writes
        elif isinstance(call.kernel, AddN) and call.writes[0] in found:
            found |= dict.fromkeys(call.reads, found[call.writes[0]])
    return found


def _total(zeros: Zeros) -> int:
    return sum(count for _, count in zeros)


def _constant_axes(call: KernelCall) -> tuple[tuple[str, ...], ...]:
    """For each constant after the first operands, the tensors whose channels its axes are, or ""."""
    kernel, x, y = call.kernel, call.reads[0], call.writes[0]
    if isinstance(kernel, Conv):
        axes = (y, x, *("",) * len(kernel.strides))
        weight = tuple(axes[axis] for axis in kernel.filters.memory_order(len(axes)))
        return (weight, (y,)) if kernel.bias else (weight,)
    if isinstance(kernel, Dense):
        return (y, x), (y,)
    if isinstance(kernel, Depthwise):
        return (*("",) * len(kernel.window.kernel), x), (x,)
    if isinstance(kernel, Separable):
        return ("", "", x), (x, y) if kernel.by_fma else (y, x), (y,)
    if isinstance(kernel, Pool):
        return (("", x),) * (len(call.reads) - 1)
    return ((x,), (x,)) if isinstance(kernel, ScaleShift) else ()


def _added(kernel: Kernel, own: Sequence[Zeros]) -> Sequence[Zeros]:
    """The zeros of images that are added to a product."""
    if isinstance(kernel, Separable):
        return own[kernel.terms + 3 :]
    return own[-1:] if isinstance(kernel, Conv) and kernel.residual else ()
