"""Says that a schedule runs on another device than it was made for."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping

from iosched.models.errors import OtherDeviceWarning
from iosched.profiler.devices.resolve import runner_design, runner_name
from iosched.scheduler.document import ScheduleDocument

CONSEQUENCE = "it runs, but another schedule may be faster on this device"


def other_device(document: ScheduleDocument, device: str) -> str | None:
    """A clause that names the other device; None if the schedule was measured on such a device as `--device` names.

    Raises:
        UsageError: there is no such device.
    """
    made_for, here = document.device.get("name"), runner_name(device, document)
    if document.cost == "analytic":
        return f"This schedule was made for {made_for} by the analytic model"
    if here and made_for != here:
        return f"This schedule was made for {made_for}, not for {here}"
    if here and (others := _differences(document.device, runner_design(device, document))):
        return f"This schedule was made for another {here} ({others})"
    return None


def warn_of_other_device(document: ScheduleDocument, device: str) -> None:
    """Warns where the schedule ships and was made for another device; the warning names the line of the user's code."""
    if document.is_shipped and (text := other_device(document, device)) is not None:
        warnings.warn(f"{text}: {CONSEQUENCE}.", OtherDeviceWarning, stacklevel=_users_level())


def _users_level() -> int:
    """How many frames above the caller the first one of the user's code is, as `stacklevel` counts them."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("iosched.", "contextlib")):
        frame, level = frame.f_back, level + 1
    return level


def _differences(made_for: Mapping[str, str], here: Mapping[str, str]) -> str:
    """How the design of a device differs from that of the one here of its name; "" if it does not, or is not known."""
    keys = [key for key in here if made_for.get(key, here[key]) != here[key]]
    texts = [
        "different instructions" if key == "instructions" else f"{key} {made_for[key]}, not {here[key]}" for key in keys
    ]
    return "; ".join(texts)
