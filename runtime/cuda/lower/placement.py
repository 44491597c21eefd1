"""Which tensors on the device live in columns of another tensor's buffer.

Operands of a Concat are written straight into its buffer, the outputs of a Split and of a merged convolution are read
straight from theirs, and a reshape of row-major elements is another view: these calls need no kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from iosched.models.graph import TensorSpec
from iosched.runtime.cuda.builder import KernelCall
from iosched.runtime.cuda.cudnn.graph import ALIGNMENT_NBYTES
from iosched.runtime.cuda.kernel import CudnnKernel
from iosched.runtime.cuda.kernels.conv import Conv
from iosched.runtime.cuda.layout import Layout, is_row_major
from iosched.runtime.cuda.lower.moves import Cut, Join, Reshape
from iosched.runtime.placement import Placement, StorageMap
from iosched.runtime.plan import View


@dataclass(eq=False)
class _Draft:
    """A placement that is being decided.

    Attributes:
        tensors: every tensor by name.
        layout: how feature maps lie.
        fixed: tensors that must have a buffer of their own.
        constants: weights, which lie row-major whatever their rank.
        aligned: tensors that must begin at multiples of `ALIGNMENT_NBYTES`.
        gapless: tensors that cannot be some columns of several rows.
        homes: where the tensors live so far.
        rows: of the buffers that are tables, how many; it says nothing of what was moved into another buffer.
    """

    tensors: Mapping[str, TensorSpec]
    layout: Layout
    fixed: frozenset[str]
    constants: frozenset[str]
    aligned: frozenset[str]
    gapless: frozenset[str]
    homes: StorageMap
    rows: dict[str, int] = field(default_factory=dict)

    def rows_of(self, name: str, axis: int) -> int:
        """Rows of the table in which slices of `name` along `axis` are columns.

        Of channels, that is pixels in NHWC, and images in NCHW: there the slices of one image are contiguous.
        """
        shape = self.tensors[name].shape or ()
        order = self.layout.memory_order(len(shape))
        return prod(shape[before] for before in order[: order.index(axis)])

    def become_table(self, name: str, rows: int) -> bool:
        """Makes the buffer of `name` a table of that many rows; False where it is a table of another number already."""
        root, _ = self.homes.resolve(name)
        return self.rows.setdefault(root, rows) == rows

    def stays_aligned(self, name: str, host: str, column: int) -> bool:
        """Whether what must be aligned in the buffer `name` still would be at `column` of `host`."""
        _, base = self.homes.resolve(host)
        shift = base + column
        if shift % ALIGNMENT_NBYTES == 0:
            return True
        inside = (self.homes.resolve(tensor) for tensor in self.aligned)
        return all((offset + shift) % ALIGNMENT_NBYTES == 0 for root, offset in inside if root == name)


def place_calls(
    calls: Sequence[KernelCall],
    tensors: Mapping[str, TensorSpec],
    layout: Layout,
    fixed: Iterable[str] = (),
    constants: Iterable[str] = (),
) -> Placement:
    """Decides the storage of every tensor that `calls` name; O(calls * operands).

    Args:
        layout: how feature maps lie.
        fixed: tensors that cannot live in another's buffer: what the caller sees.
        constants: weights, which cannot either, and lie row-major whatever their rank.

    Raises:
        ValueError: a Join writes nothing, or what it writes was written before.
    """
    sizes = {name: spec.nbytes for name, spec in tensors.items()}
    owners, weights = frozenset((*fixed, *constants)), frozenset(constants)
    draft = _Draft(tensors, layout, owners, weights, _aligned(calls), _gapless(calls), StorageMap(sizes))
    left: dict[int, list[tuple[str, int]]] = {}
    elided = set()
    for index, call in enumerate(calls):
        if isinstance(call.kernel, Join):
            left[index] = _place_operands(draft, call, call.kernel.axis)
            elided.add(index)
        if isinstance(call.kernel, Cut) and _place_cut(draft, call, call.kernel.axis):
            elided.add(index)
    for index, call in enumerate(calls):
        if isinstance(call.kernel, Reshape) and _place_reshaped(draft, call):
            elided.add(index)
    views = {name: _view(draft, name, *draft.homes.resolve(name)) for name, spec in tensors.items() if spec.is_static}
    tables = {name: rows for name, rows in draft.rows.items() if rows > 1 and name not in draft.homes.host}
    copies = {
        index: tuple((name, _view(draft, name, root, base + column)) for name, column in own)
        for index, own in left.items()
        for root, base in (draft.homes.resolve(calls[index].writes[0]),)
    }
    return Placement(views, frozenset(elided), copies, {name: sizes[name] // rows for name, rows in tables.items()})


def _aligned(calls: Sequence[KernelCall]) -> frozenset[str]:
    """Tensors whose address cuDNN is given."""
    cudnn = {kernel for kernel in {call.kernel for call in calls} if isinstance(kernel, CudnnKernel)}
    return frozenset(name for call in calls if call.kernel in cudnn for name in (*call.reads, *call.writes))


def _gapless(calls: Sequence[KernelCall]) -> frozenset[str]:
    """Residuals, and what they are added to, of convolutions.

    Where one of them lies in a wider tensor, cuDNN has no engine for older GPUs (a V100, say) nor for lines and solids,
    and elsewhere none but those that it compiles at run time.
    """
    found = (
        (call.reads[-1], call.writes[0]) for call in calls if isinstance(call.kernel, Conv) and call.kernel.residual
    )
    return frozenset(name for pair in found for name in pair)


def _place_cut(draft: _Draft, call: KernelCall, axis: int) -> bool:
    """Makes the writes of a Cut columns of what it reads."""
    source, homes = call.reads[0], draft.homes
    if any(name in draft.fixed or name in homes.host for name in call.writes):
        return False
    rows = draft.rows_of(source, axis)
    if rows > 1 and not draft.gapless.isdisjoint(call.writes):
        return False
    if not rows or source in draft.fixed or not draft.become_table(source, rows):
        return False
    columns = list(zip(call.writes, homes.columns(call.writes, rows), strict=True))
    if not all(draft.stays_aligned(name, source, column) for name, column in columns):
        return False
    for name, column in columns:
        homes.move(name, source, column)
    return True


def _place_operands(draft: _Draft, call: KernelCall, axis: int) -> list[tuple[str, int]]:
    """Makes the operands of a Join columns of its result; returns those that must be copied, with their columns."""
    target = call.writes[0]
    rows = draft.rows_of(target, axis)
    if not draft.tensors[target].nbytes or not draft.become_table(target, rows):
        raise ValueError(f"{target!r} is empty, or was placed before it was computed")

    def may_move(name: str, column: int) -> bool:
        if name in draft.fixed or draft.rows.get(name, rows) != rows or (rows > 1 and name in draft.gapless):
            return False
        return draft.stays_aligned(name, target, column)

    left = draft.homes.join(call.reads, target, may_move, rows)
    return [(name, column) for name, column in left if draft.tensors[name].nbytes]


def _place_reshaped(draft: _Draft, call: KernelCall) -> bool:
    """Makes what a Reshape writes another view of what it reads, where both are row-major and whole."""
    source, target, homes = call.reads[0], call.writes[0], draft.homes
    if target in draft.fixed or source in draft.fixed or target in homes.host or target in draft.rows:
        return False
    root, _ = homes.resolve(source)
    if root in draft.rows or root in draft.fixed or not all(_is_row_major(draft, name) for name in (source, target)):
        return False
    homes.move(target, source, 0)
    return True


def _is_row_major(draft: _Draft, name: str) -> bool:
    spec = draft.tensors[name]
    shape = spec.shape or ()
    item = spec.nbytes // prod(shape) if prod(shape) else 1
    return is_row_major(shape, draft.layout.strides_of(shape, item), item)


def _view(draft: _Draft, name: str, root: str, column: int) -> View:
    spec = draft.tensors[name]
    shape = spec.shape or ()
    item = spec.nbytes // prod(shape) if prod(shape) else 1
    rows = draft.rows.get(root, 1)
    pitch = draft.tensors[root].nbytes // rows if rows > 1 else None
    strides = draft.layout.strides_of(shape, item, rows, pitch)
    plain = name in draft.constants or (rows == 1 and draft.layout.is_row_major(len(shape)))
    return View(root, spec.dtype, shape, column, spec.nbytes, None if plain else strides)
