"""Which of cuDNN's plans to take where none may be timed: by their engines, and by what their workspaces are for.

An engine may know one layout of images only, or no tensors with gaps, or only channels in multiples of four or eight.
cuDNN offers it for all else too, with kernels before and behind it that copy whole tensors in every run. How large its
workspace is tells that. All of this was found by building plans for described GPUs:
benchmarks/reports/cudnn-coverage.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import chain, combinations
from math import prod

import numpy as np

from iosched.runtime.cuda.cudnn.plans import TENSOR_CORES, TRANSFORMS, BuiltCudnnPlan, noted_cudnn_plans
from iosched.runtime.cuda.cudnn.target import CudnnTarget
from iosched.runtime.cuda.kernel import CudnnKernel
from iosched.runtime.cuda.source.loops import element_strides, shape_of
from iosched.runtime.plan import View

_GENERIC = frozenset({"eng0", "eng11"})


class Copied(IntEnum):
    """What a plan copies in its workspace in every run."""

    NOTHING = 0
    SLICES = 1  # parts of wider tensors, for the sake of their gaps: no more than a Concat or Split would copy
    TENSORS = 2  # whole tensors, for another layout or more channels; partial sums are as large, and taken for it


def copied_in(workspace_nbytes: int, images: Sequence[View], transforms: bool = False) -> Copied:
    """What a plan with a workspace of that size copies; O(2^images).

    A copy is as large as what is copied. Less than the smallest image is a table of offsets or the like.

    Args:
        images: what the plan reads and writes, but for weights.
        transforms: whether it computes on transformed images (Winograd, FFT), which its workspace is for.
    """
    least = min(map(_nbytes, images))
    if transforms or workspace_nbytes < least:
        return Copied.NOTHING
    slices = [_nbytes(view) for view in images if _has_gaps(view)]
    some = chain.from_iterable(combinations(slices, count) for count in range(1, len(slices) + 1))
    is_slices = any(0 <= workspace_nbytes - sum(nbytes) < least for nbytes in some)
    return Copied.SLICES if is_slices else Copied.TENSORS


def is_generic(name: str) -> bool:
    """Whether the plan of that name is of an engine that takes nearly any graph as it is, without tensor cores."""
    return name.split("_")[0] in _GENERIC


@dataclass(frozen=True, eq=False)
class CudnnPlanGuess:
    """Judges plans for one kernel that were built and never ran.

    Attributes:
        images: what the kernel reads and writes, but for weights.
        transforms: whether a plan computes on transformed images.
        uses_tensor_cores: whether a plan does; None where none may.
    """

    images: tuple[View, ...]
    transforms: Callable[[BuiltCudnnPlan], bool]
    uses_tensor_cores: Callable[[BuiltCudnnPlan], bool] | None = None

    @classmethod
    def of(
        cls, kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], target: CudnnTarget
    ) -> CudnnPlanGuess:
        """For plans of this kernel; cuDNN is asked for their notes when they matter."""
        noted = partial(noted_cudnn_plans, kernel, reads, writes, target)
        tensor_cores = None if kernel.precision.name == "fp32" else noted(TENSOR_CORES)
        return cls((reads[0], *writes), noted(TRANSFORMS), tensor_cores)

    def copied(self, plan: BuiltCudnnPlan) -> Copied:
        """What the plan copies in every run."""
        found = copied_in(plan.workspace_nbytes, self.images)
        return Copied.NOTHING if found and self.transforms(plan) else found

    def is_settled(self, plans: Sequence[BuiltCudnnPlan]) -> bool:
        """Whether the best is known from these first ones of cuDNN's order: none behind them would be taken."""
        return self._is_direct(plans[0]) or (self._is_direct(plans[-1]) and self._may_use_tensor_cores(plans[-1]))

    def has_choice(self, plans: Sequence[BuiltCudnnPlan]) -> bool:
        """Whether one of them is not generic and copies no more than slices, so that timing can tell what is best."""
        return any(not is_generic(plan.name) and self.copied(plan) < Copied.TENSORS for plan in plans)

    def best(self, plans: Sequence[BuiltCudnnPlan]) -> BuiltCudnnPlan:
        """The one of them that is probably the fastest; O(plans).

        That is cuDNN's first choice where it is not generic and copies nothing. Else it is the first that copies
        nothing, or next slices alone, of those that use tensor cores; where none does, of those that are not generic.
        If all of these copy tensors, cuDNN's first choice stays: how they compare with a generic one depends on the
        tensors.

        Args:
            plans: in cuDNN's order, one at least.
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
