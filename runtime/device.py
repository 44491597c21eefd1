"""A device that models run on."""

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
        key: a short name that no other device has: "cpu", "cuda:0", "v100".
        kind: the kind of device as schedule files name it: "cpu" or "cuda".
        name: the product's name, for example "NVIDIA H100 80GB HBM3".
        cost_kind: whether latencies are measured, or computed because the device is not attached.
        design: what tells devices of one name apart; nothing where the name says it all.
        memory_nbytes: the device's memory, whoever uses it; None where that is not known.
        about: facts about the device, its driver and its libraries that a report of a failure needs, by short names.
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
        """Checks of whether the device works, those first that need least to work; needs nothing but the device.

        Raises:
            DeviceError: the device is not attached.
        """
        ...

    def executor(self, model: Model, document: ScheduleDocument | None, threads: int | None = None) -> Executor:
        """Makes `model` ready to run by a schedule that fits it, or in the device's usual way if there is none.

        Raises:
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: the device is not attached, cannot place the model, or a library is missing.
        """
        ...


def compiled_executor() -> str | None:
    """Interface version and file name of the compiled executor; None if it cannot be used."""
    from iosched.runtime.cpu import library

    return library.version()
