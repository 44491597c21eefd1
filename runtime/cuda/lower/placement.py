"""Places tensors in columns of other tensors' buffers.

Operands of a Concat are written into its buffer, outputs of a Split or a merged convolution are read from theirs, and a
reshape of row-major elements is another view: none of these calls needs a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from iosched.models.graph import TensorSpec
from iosched.runtime.cuda.builder import Cut, Join, KernelCall, Reshape
from iosched.runtime.cuda.cudnn.cudnn_graph import ALIGNMENT_NBYTES
from iosched.runtime.cuda.kernel import CudnnKernel
from iosched.runtime.cuda.kernels.conv import Conv
from iosched.runtime.cuda.layout import Layout, is_row_major
from iosched.runtime.placement import Placement, StorageMap
from iosched.runtime.plan import View


@dataclass(eq=False)
class _PlacementBuilder:
    """A placement in progress.

    Attributes:
        fixed: tensors with separate buffers.
        constants: weights, always row-major.
        aligned: tensors that need `ALIGNMENT_NBYTES`.
        gapless: tensors that must not be columns of several rows.
        copied: results of Concats that aligned tensors must not be columns of.
        rows: number of rows of buffers that are tables.
    """

    tensors: Mapping[str, TensorSpec]
    layout: Layout
    fixed: frozenset[str]
    constants: frozenset[str]
    aligned: frozenset[str]
    gapless: frozenset[str]
    copied: frozenset[str]
    homes: StorageMap
    rows: dict[str, int] = field(default_factory=dict)

    def rows_of(self, name: str, axis: int) -> int:
        """Rows of the table whose columns are slices of `name` along `axis`.

        For channels these are pixels in NHWC and images in NCHW, where slices of one image are contiguous.
        """
        shape = self.tensors[name].shape or ()
        order = self.layout.memory_order(len(shape))
        return prod(shape[before] for before in order[: order.index(axis)])

    def become_table(self, name: str, rows: int) -> bool:
        root, _ = self.homes.resolve(name)
        return self.rows.setdefault(root, rows) == rows

    def stays_aligned(self, name: str, host: str, column: int) -> bool:
        """Whether aligned tensors in buffer `name` stay aligned at `column` of `host`."""
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
    copied: Iterable[str] = (),
) -> Placement:
    """Places every tensor of `calls`; O(calls * operands).

    Args:
        layout: of feature maps.
        fixed: tensors that need separate buffers.
        constants: weights, which need them too, and are row-major.
        copied: results of Concats whose operands stay in separate buffers if cuDNN accesses them.

    Raises:
        ValueError: the output of a Join is empty or already placed.
    """
    sizes = {name: spec.nbytes for name, spec in tensors.items()}
    owners, weights = frozenset((*fixed, *constants)), frozenset(constants)
    builder = _PlacementBuilder(
        tensors, layout, owners, weights, _aligned(calls), _gapless(calls), frozenset(copied), StorageMap(sizes)
    )
    left: dict[int, list[tuple[str, int]]] = {}
    elided = set()
    for index, call in enumerate(calls):
        if isinstance(call.kernel, Join):
            left[index] = _place_operands(builder, call, call.kernel.axis)
            elided.add(index)
        if isinstance(call.kernel, Cut) and _place_cut(builder, call, call.kernel.axis):
            elided.add(index)
    for index, call in enumerate(calls):
        if isinstance(call.kernel, Reshape) and _place_reshaped(builder, call):
            elided.add(index)
    views = {
        name: _view(builder, name, *builder.homes.resolve(name)) for name, spec in tensors.items() if spec.is_static
    }
    tables = {name: rows for name, rows in builder.rows.items() if rows > 1 and name not in builder.homes.host}
    copies = {
        index: tuple((name, _view(builder, name, root, base + column)) for name, column in own)
        for index, own in left.items()
        for root, base in (builder.homes.resolve(calls[index].writes[0]),)
    }
    return Placement(views, frozenset(elided), copies, {name: sizes[name] // rows for name, rows in tables.items()})


def _aligned(calls: Sequence[KernelCall]) -> frozenset[str]:
    cudnn = {kernel for kernel in {call.kernel for call in calls} if isinstance(kernel, CudnnKernel)}
    return frozenset(name for call in calls if call.kernel in cudnn for name in (*call.reads, *call.writes))


def _gapless(calls: Sequence[KernelCall]) -> frozenset[str]:
    """Residuals and the outputs that they are added to.

    If one is a slice of a wider tensor, cuDNN has only engines that it compiles at run time, and none for older GPUs
    (V100) or for one and three dimensions.
    """
    found = (
        (call.reads[-1], call.writes[0]) for call in calls if isinstance(call.kernel, Conv) and call.kernel.residual
    )
    return frozenset(name for pair in found for name in pair)


def _place_cut(builder: _PlacementBuilder, call: KernelCall, axis: int) -> bool:
    source, homes = call.reads[0], builder.homes
    if any(name in builder.fixed or name in homes.host for name in call.writes):
        return False
    rows = builder.rows_of(source, axis)
    if rows > 1 and not builder.gapless.isdisjoint(call.writes):
        return False
    if not rows or source in builder.fixed or not builder.become_table(source, rows):
        return False
    columns = list(zip(call.writes, homes.columns(call.writes, rows), strict=True))
    if not all(builder.stays_aligned(name, source, column) for name, column in columns):
        return False
    for name, column in columns:
        homes.move(name, source, column)
    return True


def _place_operands(builder: _PlacementBuilder, call: KernelCall, axis: int) -> list[tuple[str, int]]:
    target = call.writes[0]
    rows = builder.rows_of(target, axis)
    if not builder.tensors[target].nbytes or not builder.become_table(target, rows):
        raise ValueError(f"{target!r} is empty, or is placed before it is computed")

    def may_move(name: str, column: int) -> bool:
        if name in builder.fixed or builder.rows.get(name, rows) != rows or (rows > 1 and name in builder.gapless):
            return False
        if target in builder.copied and any(builder.homes.resolve(tensor)[0] == name for tensor in builder.aligned):
            return False
        return builder.stays_aligned(name, target, column)

    left = builder.homes.join(call.reads, target, may_move, rows)
    return [(name, column) for name, column in left if builder.tensors[name].nbytes]


def _place_reshaped(builder: _PlacementBuilder, call: KernelCall) -> bool:
    source, target, homes = call.reads[0], call.writes[0], builder.homes
    if target in builder.fixed or source in builder.fixed or target in homes.host or target in builder.rows:
        return False
    root, _ = homes.resolve(source)
    if (
        root in builder.rows
        or root in builder.fixed
        or not all(_is_row_major(builder, name) for name in (source, target))
    ):
        return False
    homes.move(target, source, 0)
    return True


def _is_row_major(builder: _PlacementBuilder, name: str) -> bool:
    spec = builder.tensors[name]
    shape = spec.shape or ()
    item = spec.nbytes // prod(shape) if prod(shape) else 1
    return is_row_major(shape, builder.layout.strides_of(shape, item), item)


def _view(builder: _PlacementBuilder, name: str, root: str, column: int) -> View:
    spec = builder.tensors[name]
    shape = spec.shape or ()
    item = spec.nbytes // prod(shape) if prod(shape) else 1
    rows = builder.rows.get(root, 1)
    pitch = builder.tensors[root].nbytes // rows if rows > 1 else None
    strides = builder.layout.strides_of(shape, item, rows, pitch)
    plain = name in builder.constants or (rows == 1 and builder.layout.is_row_major(len(shape)))
    return View(root, spec.dtype, shape, column, spec.nbytes, None if plain else strides)
