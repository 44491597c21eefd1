"""Where each tensor lives on the device: in a buffer of its own, or in columns of another tensor's buffer.

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
from iosched.runtime.cuda.layout import is_channels_last, is_row_major, memory_order, strides_of
from iosched.runtime.cuda.lower.moves import Join, Part, Reshape
from iosched.runtime.plan import View


@dataclass(frozen=True, eq=False)
class Placement:
    """Storage of every tensor.

    Attributes:
        views: for each tensor, where its elements are.
        rows: for each buffer that is a table of more than one row, how many.
        pitches: for each such buffer, the bytes of a row.
        elided: positions of calls that need no kernel.
        copies: for each Join of which some operands could not be placed: (operand, where it goes).
    """

    views: Mapping[str, View]
    rows: Mapping[str, int]
    pitches: Mapping[str, int]
    elided: frozenset[int]
    copies: Mapping[int, tuple[tuple[str, View], ...]]


@dataclass
class _Draft:
    """Homes while they are still being joined: each tensor's host, and its column there in bytes."""

    tensors: Mapping[str, TensorSpec]
    fixed: frozenset[str]  # tensors that must have a buffer of their own
    constants: frozenset[str]
    aligned: frozenset[str]  # tensors that must begin at multiples of `ALIGNMENT_NBYTES`
    gapless: frozenset[str]  # tensors that cannot be some columns of several rows
    host: dict[str, str] = field(default_factory=dict)
    column: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)  # of the buffers that are tables

    def resolve(self, name: str) -> tuple[str, int]:
        column = 0
        while name in self.host:
            column += self.column[name]
            name = self.host[name]
        return name, column

    def become_table(self, name: str, rows: int) -> bool:
        """Makes the buffer that `name` is all of a table of so many rows; False where it is another one already."""
        root, _ = self.resolve(name)
        return self.rows.setdefault(root, rows) == rows

    def may_move(self, name: str, host: str, column: int) -> bool:
        """Whether what must be aligned in the buffer `name` still would be at `column` of `host`."""
        _, base = self.resolve(host)
        shift = base + column
        if shift % ALIGNMENT_NBYTES == 0:
            return True
        inside = (self.resolve(tensor) for tensor in self.aligned)
        return all((offset + shift) % ALIGNMENT_NBYTES == 0 for root, offset in inside if root == name)

    def move(self, name: str, host: str, column: int) -> None:
        self.host[name], self.column[name] = host, column


def place_calls(
    calls: Sequence[KernelCall],
    tensors: Mapping[str, TensorSpec],
    fixed: Iterable[str] = (),
    constants: Iterable[str] = (),
) -> Placement:
    """Decides the storage of every tensor that `calls` name; O(calls * operands).

    Args:
        fixed: tensors that cannot live in another's buffer: what the caller sees.
        constants: weights, which cannot either, and lie row-major whatever their rank.

    Raises:
        ValueError: a Join writes nothing, or what it writes was written before.
    """
    owners = frozenset((*fixed, *constants))
    draft = _Draft(tensors, owners, frozenset(constants), _aligned(calls), _gapless(calls, tensors))
    unplaced: dict[int, list[tuple[str, int]]] = {}
    elided = set()
    for index, call in enumerate(calls):
        if isinstance(call.kernel, Join):
            unplaced[index] = _place_operands(draft, call, call.kernel.axis)
            elided.add(index)
        if isinstance(call.kernel, Part) and _place_parts(draft, call, call.kernel.axis):
            elided.add(index)
    for index, call in enumerate(calls):
        if isinstance(call.kernel, Reshape) and _place_reshaped(draft, call):
            elided.add(index)
    views = {name: _view(draft, name) for name, spec in tensors.items() if spec.is_static}
    tables = {name: rows for name, rows in draft.rows.items() if rows > 1}
    pitches = {name: tensors[name].nbytes // rows for name, rows in tables.items()}
    copies = {
        index: tuple((name, _column_view(draft, calls[index].writes[0], name, column)) for name, column in left)
        for index, left in unplaced.items()
    }
    return Placement(views, tables, pitches, frozenset(elided), copies)


def _aligned(calls: Sequence[KernelCall]) -> frozenset[str]:
    """What cuDNN is given the address of."""
    cudnn = {kernel for kernel in {call.kernel for call in calls} if isinstance(kernel, CudnnKernel)}
    return frozenset(name for call in calls if call.kernel in cudnn for name in (*call.reads, *call.writes))


def _gapless(calls: Sequence[KernelCall], tensors: Mapping[str, TensorSpec]) -> frozenset[str]:
    """Residuals, and what they are added to, of convolutions that do not lie channels-last.

    For these cuDNN has no engine at all unless both lie in memory alike.
    """
    found = (
        (call.reads[-1], call.writes[0]) for call in calls if isinstance(call.kernel, Conv) and call.kernel.residual
    )
    return frozenset(name for pair in found for name in pair if not is_channels_last(tensors[name].shape or ()))


def _rows(shape: Sequence[int], axis: int) -> int:
    """Rows of the table in which slices along `axis` are columns."""
    order = memory_order(len(shape))
    return prod(shape[before] for before in order[: order.index(axis)])


def _place_parts(draft: _Draft, call: KernelCall, axis: int) -> bool:
    """Makes the writes of a Part columns of what it reads."""
    source = call.reads[0]
    if any(name in draft.fixed or name in draft.host for name in call.writes):
        return False
    rows = _rows(draft.tensors[source].shape or (), axis)
    if rows > 1 and not draft.gapless.isdisjoint(call.writes):
        return False
    if not rows or source in draft.fixed or not draft.become_table(source, rows):
        return False
    columns, column = [], 0
    for name in call.writes:
        columns.append(column)
        column += draft.tensors[name].nbytes // rows
    if not all(draft.may_move(name, source, at) for name, at in zip(call.writes, columns, strict=True)):
        return False
    for name, at in zip(call.writes, columns, strict=True):
        draft.move(name, source, at)
    return True


def _place_operands(draft: _Draft, call: KernelCall, axis: int) -> list[tuple[str, int]]:
    """Makes the operands of a Join columns of its result; returns those that must be copied, with their columns."""
    target = call.writes[0]
    rows = _rows(draft.tensors[target].shape or (), axis)
    if not draft.tensors[target].nbytes or not draft.become_table(target, rows):
        raise ValueError(f"{target!r} is empty, or was placed before it was computed")
    columns, column = [], 0
    for name in call.reads:
        columns.append(column)
        column += draft.tensors[name].nbytes // rows
    left = []
    for index, (name, column) in enumerate(zip(call.reads, columns, strict=True)):
        if draft.resolve(name) == (target, column):  # moved with the one before it
            continue
        if draft.tensors[name].nbytes and not _move_whole(draft, call.reads[index:], target, column, rows):
            left.append((name, column))
    return left


def _move_whole(draft: _Draft, operands: Sequence[str], target: str, column: int, rows: int) -> bool:
    """Moves the buffer that the first operands fill, mostly one tensor, to `column` of `target`."""
    root, offset = draft.resolve(operands[0])
    if offset or root in draft.fixed or root == draft.resolve(target)[0] or draft.rows.get(root, rows) != rows:
        return False
    if root != operands[0] and not _fills(draft, operands, root, rows):
        return False
    if not draft.may_move(root, target, column) or (rows > 1 and root in draft.gapless):
        return False
    draft.move(root, target, column)
    draft.rows.pop(root, None)
    return True


def _fills(draft: _Draft, operands: Sequence[str], root: str, rows: int) -> bool:
    """Whether `operands` begin with all columns of `root`, in order and nothing else."""
    column = 0
    for name in operands:
        if draft.resolve(name) != (root, column):
            return False
        column += draft.tensors[name].nbytes // rows
        if column * rows == draft.tensors[root].nbytes:
            return True
    return False


def _place_reshaped(draft: _Draft, call: KernelCall) -> bool:
    """Makes what a Reshape writes another view of what it reads, where both are row-major and whole."""
    source, target = call.reads[0], call.writes[0]
    if target in draft.fixed or source in draft.fixed or target in draft.host or target in draft.rows:
        return False
    root, _ = draft.resolve(source)
    if root in draft.rows or root in draft.fixed or not all(_is_row_major(draft.tensors[n]) for n in (source, target)):
        return False
    draft.move(target, source, 0)
    return True


def _is_row_major(spec: TensorSpec) -> bool:
    shape = spec.shape or ()
    item = spec.nbytes // prod(shape) if prod(shape) else 1
    return is_row_major(shape, strides_of(shape, item), item)


def _view(draft: _Draft, name: str) -> View:
    root, column = draft.resolve(name)
    return _seen(draft, name, root, column)


def _column_view(draft: _Draft, target: str, name: str, column: int) -> View:
    root, base = draft.resolve(target)
    return _seen(draft, name, root, base + column)


def _seen(draft: _Draft, name: str, root: str, column: int) -> View:
    spec = draft.tensors[name]
    shape = spec.shape or ()
    item = spec.nbytes // prod(shape) if prod(shape) else 1
    rows = draft.rows.get(root, 1)
    pitch = draft.tensors[root].nbytes // rows if rows > 1 else None
    strides = strides_of(shape, item, rows, pitch)
    plain = name in draft.constants or (rows == 1 and not is_channels_last(shape))
    return View(root, spec.dtype, shape, column, spec.nbytes, None if plain else strides)
