"""What `--device` means on this machine."""

from __future__ import annotations

from iosched.models.errors import DeviceError, UsageError


def require_cpu(device: str) -> None:
    """Accepts the devices that this version can measure and run on: `auto` and `cpu`.

    Raises:
        DeviceError: the device is a GPU, which this version has no runtime for.
        UsageError: the name is empty.
    """
    name = device.strip().lower()
    if not name:
        raise UsageError("--device is empty: give auto or cpu")
    if name not in ("auto", "cpu"):
        raise DeviceError(f"this version of iosched has no runtime for device {device!r}: use --device cpu")
