"""A kind of device, as `resolve.py` asks for it: the `device.py` of each folder has one, called `KIND`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iosched.models.model import Model
from iosched.profiler.devices.device import Device, OpenSettings
from iosched.profiler.devices.facts import DeviceFacts
from iosched.scheduler.document import ScheduleDocument


@dataclass(frozen=True)
class Kind:
    """One kind of device.

    Attributes:
        key: what schedule files call it: "cpu" or "cuda".
        knows: whether the text of `--device` can mean a device of this kind; no look at the machine.
        claims: whether it means one on this machine, for this model if that is known: of several kinds that claim a
            text, as `auto`, the first in `resolve.KINDS` has it.
        device: the device that a text means which is claimed; raises `DeviceError` where it cannot be used.
        name: its name, without opening it; "" where it cannot be used.
        made: the device that a schedule was made for, and how a model is opened there as it was then; None where it was
            made for a device of another kind. Raises `DeviceError` where the device is not here.
        unscheduled: how a model runs there that has no schedule, in words.
        facts: what this machine has to say of the kind; None of what is not here.
    """

    key: str
    knows: Callable[[str], bool]
    claims: Callable[[str, Model | None], bool]
    device: Callable[[str], Device]
    name: Callable[[str], str]
    made: Callable[[ScheduleDocument], tuple[Device, OpenSettings] | None]
    unscheduled: str
    facts: Callable[[], DeviceFacts] | None = None
