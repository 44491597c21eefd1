"""What `resolve.py` has to know of a kind of device: the `device.py` of each folder says it in a constant `KIND`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iosched.models.model import Model
    from iosched.profiler.devices.device import ProfiledDevice
    from iosched.profiler.devices.facts import DeviceFacts
    from iosched.profiler.devices.open_settings import OpenSettings
    from iosched.scheduler.document import ScheduleDocument


@dataclass(frozen=True)
class DeviceKind:
    """One kind of device.

    Attributes:
        key: the name of the kind in schedule files: "cpu" or "cuda".
        knows: whether the text of `--device` can mean a device of this kind; does not look at the machine.
        claims: whether the text of `--device` means a device of this kind on this machine, for the given model if there
            is one. If several kinds claim a text, such as `auto`, the first of them in `resolve.py` gets it.
        device: opens the device that a claimed text means; raises `DeviceError` if the device cannot be used.
        name: the name of that device, which is not opened for it; "" if the device cannot be used.
        made: the device that a schedule was made for, and the settings with which the model was opened there; None if
            the schedule was made for a device of another kind. Raises `DeviceError` if the device is not attached.
        unscheduled: says how such a device runs a model that has no schedule.
        facts: facts about the devices of this kind on this machine; None for a kind that is on no machine.
        remarks: says why the text of `--device` does not mean a device of this kind that is attached under that name.
        design: what tells the devices of this kind apart that have one name, see `DeviceInfo.design`.
        speed: of which speed of the machine sums of measured stages are, for people; "" where of the present one.
    """

    key: str
    knows: Callable[[str], bool]
    claims: Callable[[str, Model | None], bool]
    device: Callable[[str], ProfiledDevice]
    name: Callable[[str], str]
    made: Callable[[ScheduleDocument], tuple[ProfiledDevice, OpenSettings] | None]
    unscheduled: str
    facts: Callable[[], DeviceFacts] | None = None
    remarks: Callable[[str], Sequence[str]] = lambda text: ()
    design: Callable[[], Mapping[str, str]] = dict
    speed: str = ""
