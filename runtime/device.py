"""Devices that models run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from iosched.models.model import Model
    from iosched.runtime.executor import Executor
    from iosched.runtime.reference import SelfCheck
    from iosched.scheduler.document import ScheduleDocument


CostKind = Literal["measured", "analytic"]


@dataclass(frozen=True)
class DeviceInfo:
    """Facts about a device.

    Attributes:
        key: unique short name: "cpu", "cuda:0", "v100".
        kind: kind of device in schedule files: "cpu" or "cuda".
        name: product name, for example "NVIDIA H100 80GB HBM3".
        cost_kind: "analytic" if the device is simulated.
        design: facts that distinguish devices of the same name.
        memory_nbytes: total memory of the device; None if unknown.
        about: facts about device, driver and libraries for bug reports, by short names.
    """

    key: str
    kind: str
    name: str
    cost_kind: CostKind
    design: Mapping[str, str] = field(default_factory=dict)
    memory_nbytes: int | None = None
    about: Mapping[str, str] = field(default_factory=dict)


class Device(Protocol):
    """A device that models run on."""

    @property
    def info(self) -> DeviceInfo:
        """Facts about the device."""
        ...

    def checks(self) -> Sequence[SelfCheck]:
        """Self-checks of the device, those with the fewest requirements first; raises `DeviceError` if not attached."""
        ...

    def executor(self, model: Model, document: ScheduleDocument | None, threads: int | None = None) -> Executor:
        """Open `model` under a schedule that fits it, or in the device's default way if there is none.

        Raises:
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: the device is not attached, cannot place the model, or a library is missing.
        """
        ...


def compiled_executor() -> str | None:
    """Interface version and file name of the compiled executor; None if it cannot be used."""
    from iosched.runtime.cpu import library

    return library.version()
