"""Cores that several models share, independent of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from iosched.runtime.executor import Executor

if TYPE_CHECKING:
    from iosched.models.model import Model
    from iosched.scheduler.document import ScheduleDocument

Block = tuple[int, ...]
"""Numbers of cores, from 0. A number past the last core means any core, even one that is in use."""


class SharedCores(Protocol):
    """Cores of this process on which several models run at the same time, each on a block of them."""

    @property
    def count(self) -> int:
        """Number of cores."""
        ...

    @property
    def overlaps(self) -> bool:
        """Whether blocks may use any core, so that one thread more than there are cores runs for a short time."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user about the cores."""
        ...

    def executors(
        self, model: Model, document: ScheduleDocument | None, blocks: Sequence[Block]
    ) -> Mapping[Block, Executor]:
        """Open `model` on each of the blocks as its document specifies.

        Executors of blocks with the same core may not run at the same time. They share weights and kernels.

        Raises:
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: onnxruntime is not installed, or there is too little memory.
        """
        ...

    def close(self) -> None:
        """Free threads and cores. May be called again."""
        ...


@runtime_checkable
class SharesCores(Protocol):
    """Optional interface of a device on whose cores several models may run at the same time."""

    def shared_cores(self, count: int | None = None) -> SharedCores:
        """Take cores; default: all that affinity and quota allow."""
        ...
