"""Whether models can be run and measured on this operating system."""

from __future__ import annotations

import platform

from iosched.models.errors import DeviceError

_NAMES = {"Darwin": "macOS"}


def not_linux() -> str | None:
    """What this operating system is called; None where it is Linux."""
    system = platform.system()
    return None if system == "Linux" else _NAMES.get(system, system or "an unknown system")


def check_system() -> None:
    """Accepts Linux alone: threads are pinned, processes watched and processors read by its means.

    Raises:
        DeviceError: this is another system; the text says what can be done there.
    """
    if (system := not_linux()) is not None:
        raise DeviceError(
            f"models run and are measured on Linux, and this is {system}: plan for a GPU instead (--device v100), or"
            " use a container, a virtual machine or WSL with Linux"
        )
