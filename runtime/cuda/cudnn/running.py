"""cuDNN plans on the streams of an attached GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from iosched.models.errors import DeviceError
from iosched.runtime.cuda.cudnn.chooser import Candidate
from iosched.runtime.cuda.cudnn.plans import BuiltCudnnPlan, failures
from iosched.runtime.cuda.cudnn.target import load_cudnn
from iosched.runtime.cuda.gpu.failures import keep_if_lost, meaning


class Handles:
    """One cuDNN handle for each stream; a handle holds memory of the GPU, so streams should be few."""

    def __init__(self) -> None:
        """Opens no handle yet.

        Raises:
            DeviceError: cuDNN is not installed.
        """
        self._cudnn = load_cudnn()
        self._of: dict[int, tuple[Any, Any]] = {}

    def of(self, stream: Any) -> Any:
        """The handle whose work goes to `stream`.

        Raises:
            DeviceError: cuDNN has none, for want of memory perhaps.
        """
        known = self._of.get(id(stream))
        if known is None:
            try:
                handle = self._cudnn.create_handle()
                self._cudnn.set_stream(handle=handle, stream=stream.ptr)
            except RuntimeError as error:
                raise DeviceError(f"cuDNN cannot be opened on this GPU ({error})") from error
            known = self._of[id(stream)] = (handle, stream)  # the stream is kept, so that its id is not used again
        return known[0]


@dataclass(frozen=True, eq=False)
class RunningCudnnPlan:
    """A plan with the handles of the streams that may run it. See `CudnnPlan`."""

    key: str
    plan: BuiltCudnnPlan
    candidates: tuple[Candidate, ...]
    handles: Handles

    @property
    def name(self) -> str:
        """cuDNN's name of the plan."""
        return self.plan.name

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of memory that the plan needs beside its tensors while it runs."""
        return self.plan.workspace_nbytes

    def execute(self, addresses: Sequence[int], workspace: int, stream: Any) -> None:
        """Enqueues the kernel on the stream. See `CudnnPlan`.

        Raises:
            ExecutionError: cuDNN refuses.
        """
        try:
            self.plan.execute(addresses, workspace, self.handles.of(stream))
        except failures() as error:
            raise keep_if_lost(meaning(error)) from error
