"""Reductions: a group of threads for each row of reduced elements, several rows for each block.

Neighbouring threads read neighbours in memory: of one row where reduced elements are contiguous, else of neighbouring
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from iosched.runtime.cuda.kernel import Argument, CudaCall
from iosched.runtime.cuda.source.elements import C_TYPES, loaded, preamble
from iosched.runtime.cuda.source.loops import Loop, Operand, collapse

_BLOCK = 256
_NEIGHBOURS = 32


@dataclass(frozen=True)
class Rows:
    """The division of a reduction among threads; axes are collapsed.

    Attributes:
        kept: loop over rows, with the tensors' starts.
        reduced: loop within a row, with starts 0.
        lanes: threads for each row, a power of two.
        rows: rows of a block of `lanes * rows` threads.
        across: whether neighbouring threads take neighbouring rows.
    """

    kept: Loop
    reduced: Loop
    lanes: int
    rows: int
    across: bool

    @classmethod
    def of(cls, extents: Sequence[int], operands: Sequence[Operand], axes: Sequence[int]) -> Rows:
        """Reduction over `axes`; the first operand decides the order."""
        inner = [axis for axis in range(len(extents)) if axis in axes]
        outer = [axis for axis in range(len(extents)) if axis not in axes]
        kept, reduced = (_part(extents, operands, chosen) for chosen in (outer, inner))
        reduced = Loop(reduced.extents, tuple(replace(each, start=0) for each in reduced.operands))
        across = kept.count > 1 and abs(kept.operands[0].strides[-1]) < abs(reduced.operands[0].strides[-1])
        most = _BLOCK // _NEIGHBOURS if across else _BLOCK
        lanes = 1
        while lanes < most and lanes < reduced.count:
            lanes *= 2
        return cls(kept, reduced, lanes, max(_BLOCK // lanes, 1), across)

    @property
    def arguments(self) -> list[Argument]:
        """Number of rows, elements of a row, then for both loops extents except the outermost, and strides."""
        found: list[Argument] = [np.int32(self.kept.count), np.int32(self.reduced.count)]
        for loop in (self.kept, self.reduced):
            found.extend(np.int32(extent) for extent in loop.extents[1:])
            for each in loop.operands:
                found.extend(np.int64(stride) for stride in each.strides)
        return found

    @property
    def parameters(self) -> str:
        """C parameters for `arguments`."""
        names = ["int n_rows", "int n_reduced"]
        for prefix, loop in (("k", self.kept), ("r", self.reduced)):
            rank = range(len(loop.extents))
            names += [f"int {prefix}e{axis}" for axis in rank[1:]]
            names += [f"long long {prefix}s{which}_{axis}" for which in range(len(loop.operands)) for axis in rank]
        return ", ".join(names)

    @property
    def constants(self) -> str:
        """LANES, ROWS, and steps in shared memory that keep neighbouring threads adjacent."""
        slot, lane = (1, self.rows) if self.across else (self.lanes, 1)
        sizes = {"LANES": self.lanes, "ROWS": self.rows, "SLOT_STEP": slot, "LANE_STEP": lane}
        return "constexpr int " + ", ".join(f"{name} = {value}" for name, value in sizes.items()) + ";\n"

    @property
    def place(self) -> str:
        """C++ that defines `lane`, `slot` (row in the block) and `row`."""
        lane, slot = ("threadIdx.y", "threadIdx.x") if self.across else ("threadIdx.x", "threadIdx.y")
        return f"const int lane = {lane}, slot = {slot};\n  const int row = blockIdx.x * ROWS + slot;"

    def offsets(self, prefix: str, index: str) -> str:
        """C++ that defines `{prefix}at0`, ...: offsets of element `index` of a loop (k or r) in each operand."""
        loop = self.kept if prefix == "k" else self.reduced
        rank, count = len(loop.extents), len(loop.operands)
        lines = [f"unsigned int {prefix}rest = {index};"]
        lines += [f"long long {prefix}at{which} = 0;" for which in range(count)]
        for axis in reversed(range(rank)):
            at = f"{prefix}rest" if axis == 0 else f"({prefix}rest % (unsigned int){prefix}e{axis})"
            lines += [f"{prefix}at{which} += (long long){at} * {prefix}s{which}_{axis};" for which in range(count)]
            lines += [] if axis == 0 else [f"{prefix}rest /= (unsigned int){prefix}e{axis};"]
        return " ".join(lines)

    def combined(self, value: str, combination: str) -> str:
        """C++ that reduces `value` over all lanes by an expression of `a` and `b`; all threads take part."""
        return _COMBINED.format(value=value, combination=combination)

    def source(self, template: str, x: Operand, y: Operand, **others: str) -> str:
        """A kernel that reads `x` (operand 0, at p0) row by row and writes `y`.

        Args:
            template: a format with the fields below (`value` is the element of x) and `others`.
        """
        return template.format(
            preamble=preamble([x.dtype, y.dtype]),
            constants=self.constants,
            x_type=C_TYPES[x.dtype],
            y_type=C_TYPES[y.dtype],
            parameters=self.parameters,
            place=self.place,
            row_offsets=self.offsets("k", "row < n_rows ? row : 0"),
            offsets=self.offsets("r", "index"),
            value=loaded(x.dtype, "p0[kat0 + rat0]"),
            **others,
        )

    def call(self, source: str, entry: str, pointers: Sequence[Argument]) -> CudaCall:
        """The launch of a source whose parameters are the pointers and `parameters`."""
        block = (self.rows, self.lanes, 1) if self.across else (self.lanes, self.rows, 1)
        return CudaCall(source, entry, (-(-self.kept.count // self.rows), 1, 1), block, (*pointers, *self.arguments))


def _part(extents: Sequence[int], operands: Sequence[Operand], axes: Sequence[int]) -> Loop:
    chosen = [replace(each, strides=tuple(each.strides[axis] for axis in axes)) for each in operands]
    loop = collapse([extents[axis] for axis in axes], chosen[::-1])
    return Loop(loop.extents, loop.operands[::-1])


_COMBINED = """  {{
    const int first = slot * SLOT_STEP, at = first + lane * LANE_STEP;
    shared[at] = {value};
    for (int half = LANES / 2; half > 0; half /= 2) {{
      __syncthreads();
      if (lane < half) {{
        const float a = shared[at], b = shared[at + half * LANE_STEP];
        shared[at] = {combination};
      }}
    }}
    __syncthreads();
    {value} = shared[first];
    __syncthreads();
  }}"""
