"""Guesses the best cuDNN plan without timing, from engines and workspace sizes.

Some engines support only one layout, no strided slices, or channels in multiples of four or eight. cuDNN offers them
for other tensors too and copies whole tensors before and after each run; the size of the workspace reveals that. Found
by building plans for simulated GPUs: benchmarks/reports/cudnn-coverage.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import chain, combinations
from math import prod

import numpy as np

from iosched.runtime.cuda.cudnn.cudnn_graph import CudnnTarget
from iosched.runtime.cuda.cudnn.plans import TENSOR_CORES, TRANSFORMS, BuiltCudnnPlan, noted_cudnn_plans
from iosched.runtime.cuda.kernel import CudnnKernel
from iosched.runtime.cuda.source.loops import element_strides, shape_of
from iosched.runtime.plan import View

_GENERIC = frozenset({"eng0", "eng11"})


class Copied(IntEnum):
    """The kind of data that a plan copies to its workspace in every run."""

    NOTHING = 0
    SLICES = 1  # strided parts of wider tensors, as a Concat or Split would copy
    TENSORS = 2  # whole tensors, for another layout or padded channels, or partial sums of that size


def copied_in(workspace_nbytes: int, images: Sequence[View], transforms: bool = False) -> Copied:
    """The kind of data that a plan with a workspace of that size copies; O(2^images).

    A copy is as large as its source; a workspace smaller than the smallest image holds tables.

    Args:
        images: reads and writes without weights.
        transforms: whether the workspace is for transformed images (Winograd, FFT).
    """
    least = min(map(_nbytes, images))
    if transforms or workspace_nbytes < least:
        return Copied.NOTHING
    slices = [_nbytes(view) for view in images if _has_gaps(view)]
    some = chain.from_iterable(combinations(slices, count) for count in range(1, len(slices) + 1))
    is_slices = any(0 <= workspace_nbytes - sum(nbytes) < least for nbytes in some)
    return Copied.SLICES if is_slices else Copied.TENSORS


def is_generic(name: str) -> bool:
    """Whether the plan uses an engine for nearly any graph, without tensor cores."""
    return name.split("_")[0] in _GENERIC


@dataclass(frozen=True, eq=False)
class CudnnPlanGuess:
    """Ranks plans of one kernel that have not been run.

    Attributes:
        images: reads and writes without weights.
        transforms: whether a plan transforms images (Winograd, FFT).
        uses_tensor_cores: whether a plan does; None where the precision forbids them.
    """

    images: tuple[View, ...]
    transforms: Callable[[BuiltCudnnPlan], bool]
    uses_tensor_cores: Callable[[BuiltCudnnPlan], bool] | None = None

    @classmethod
    def of(
        cls, kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], target: CudnnTarget
    ) -> CudnnPlanGuess:
        """Ranks plans of this kernel; queries cuDNN for their notes when needed."""
        noted = partial(noted_cudnn_plans, kernel, reads, writes, target)
        tensor_cores = None if kernel.precision.name == "fp32" else noted(TENSOR_CORES)
        return cls((reads[0], *writes), noted(TRANSFORMS), tensor_cores)

    def copied(self, plan: BuiltCudnnPlan) -> Copied:
        """The kind of data that the plan copies in every run."""
        found = copied_in(plan.workspace_nbytes, self.images)
        return Copied.NOTHING if found and self.transforms(plan) else found

    def is_settled(self, plans: Sequence[BuiltCudnnPlan]) -> bool:
        """Whether no later plan in cuDNN's order can beat these first ones."""
        return self._is_direct(plans[0]) or (self._is_direct(plans[-1]) and self._may_use_tensor_cores(plans[-1]))

    def has_choice(self, plans: Sequence[BuiltCudnnPlan]) -> bool:
        """Whether timing can help: one plan is not generic and copies at most slices."""
        return any(not is_generic(plan.name) and self.copied(plan) < Copied.TENSORS for plan in plans)

    def best(self, plans: Sequence[BuiltCudnnPlan]) -> BuiltCudnnPlan:
        """The plan that is probably the fastest; O(plans).

        cuDNN's first plan if it is not generic and copies nothing; else the first plan that copies nothing, or only
        slices, among those with tensor cores, or without them among those that are not generic. If all of these copy
        tensors, cuDNN's first plan: whether a generic one is faster depends on the tensors.

        Args:
            plans: at least one, in cuDNN's order.
        """
        if self._is_direct(plans[0]):
            return plans[0]
        tuned = [plan for plan in plans if not is_generic(plan.name)]
        fast = [plan for plan in tuned if self._may_use_tensor_cores(plan)] or tuned
        found = [plan for copied in (Copied.NOTHING, Copied.SLICES) for plan in fast if self.copied(plan) is copied]
        return found[0] if found else plans[0]

    def _is_direct(self, plan: BuiltCudnnPlan) -> bool:
        return not is_generic(plan.name) and self.copied(plan) is Copied.NOTHING

    def _may_use_tensor_cores(self, plan: BuiltCudnnPlan) -> bool:
        return self.uses_tensor_cores is None or self.uses_tensor_cores(plan)


def _nbytes(view: View) -> int:
    return prod(shape_of(view)) * np.dtype(view.dtype).itemsize


def _has_gaps(view: View) -> bool:
    pairs = zip(shape_of(view), element_strides(view), strict=True)
    return 1 + sum((extent - 1) * stride for extent, stride in pairs) > prod(shape_of(view))
