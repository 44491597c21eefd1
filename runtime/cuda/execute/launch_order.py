"""Chooses the order in which a capture launches tasks, among those that lanes and waits allow.

As in Opara (IEEE Transactions on Computers, 2025), compute-bound and memory-bound kernels alternate, small ones first,
so that concurrent kernels compete less. Opara profiles demands; here cuDNN's kernels count as compute-bound, and the
bytes written approximate the number of blocks of a launch.
"""

from __future__ import annotations

from iosched.runtime.cuda.kernel import CudnnKernel
from iosched.runtime.cuda.lower.lowering import Lowering


def order_by_demand(lowering: Lowering) -> list[tuple[int, int]]:
    """Lane and step of all tasks; O(tasks * lanes)."""
    lanes = lowering.plan.lanes
    done, found, last = [0] * len(lanes), list[tuple[int, int]](), False

    def is_cudnn(lane: int) -> bool:
        return isinstance(lowering.kernels[lanes[lane][done[lane]].kernel], CudnnKernel)

    def demand(lane: int) -> tuple[bool, int]:
        return is_cudnn(lane) is last, sum(view.nbytes for view in lanes[lane][done[lane]].writes)

    def is_ready(lane: int) -> bool:
        left = lanes[lane][done[lane] :]
        return bool(left) and all(done[wait.lane] >= wait.steps for wait in left[0].waits)

    while ready := list(filter(is_ready, range(len(lanes)))):
        lane = min(ready, key=demand)
        last = is_cudnn(lane)
        found.append((lane, done[lane]))
        done[lane] += 1
    return found
