"""Description of a kind of device for `resolve.py`: the constant `KIND` in the `device.py` of each folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iosched.models.model import Model
    from iosched.profiler.devices.facts import DeviceFacts
    from iosched.profiler.devices.open_settings import OpenSettings
    from iosched.profiler.devices.profiled_device import ProfiledDevice
    from iosched.scheduler.document import ScheduleDocument


@dataclass(frozen=True)
class DeviceKind:
    """One kind of device.

    Attributes:
        key: in schedule files: "cpu" or "cuda".
        knows: whether a text of `--device` can mean a device of this kind, on any machine.
        claims: whether it means one on this machine, for the given model; the first kind in `resolve.py` wins.
        device: opens the device of a claimed text; raises `DeviceError` if it cannot be used.
        name: its name, without opening it; "" if it cannot be used.
        made: the device and settings that a schedule was made with; None for another kind. Raises `DeviceError` if the
            device is not attached.
        unscheduled: how such a device runs a model without a schedule.
        facts: about the devices of this kind on this machine; None for simulated ones.
        remarks: why a text of `--device` does not mean an attached device of that name.
        design: distinguishes devices of one name, see `DeviceInfo.design`.
        speed: the speed that sums of stages refer to, in words; "" for the present one.
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
