"""Opens the files in which a model keeps its weights: those of its folder, wherever a stranger's model points."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from iosched.models.errors import DeviceError, InvalidModelError

_CAN_OPEN_BELOW = os.open in os.supports_dir_fd  # Windows cannot, and lacks the flags too
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC if _CAN_OPEN_BELOW else 0
# Without O_NONBLOCK, to open a named pipe would wait for somebody to write to it.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC if _CAN_OPEN_BELOW else 0


def open_beside(name: str, location: str, source: Path | None) -> BinaryIO:
    """Opens a file of weights for reading.

    Links are resolved first, and may lead only to where the model itself lies. What is then opened is opened from that
    folder on, part by part and without following links: a link that somebody puts in place meanwhile leads nowhere.

    Args:
        name: of the weights, for messages.
        location: where the model says that they are, relative to its folder.
        source: the model's path; None where it came as bytes.

    Raises:
        InvalidModelError: the file is missing, no regular file, not in the model's folder, or cannot be read.
        DeviceError: this system cannot open files in this way.
    """
    if source is None:
        raise InvalidModelError(
            f"the weights of {name!r} are in another file ({location!r}), and the model came without a folder.\n"
            "Give the model's path instead of its bytes."
        )
    if not _CAN_OPEN_BELOW:
        raise DeviceError(f"the weights of {name!r} are in another file, which is read on Linux and macOS alone")
    path = source.parent / location
    try:
        home, inner = _place(name, location, source)
        return _opened(home, inner)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidModelError(
            f"weights file {path} is missing ({name!r} is in it).\nPut it beside the model."
        ) from error
    except (OSError, ValueError, RuntimeError) as error:  # the last for links in a circle
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidModelError(f"weights file {path} cannot be read: {reason}.") from error


def _place(name: str, location: str, source: Path) -> tuple[Path, Path]:
    """The folder that a file of weights lies in, which is the model's, and its path below; no link is in either."""
    is_inside = location and not Path(location).is_absolute() and ".." not in Path(location).parts
    if is_inside and "\0" not in location:
        resolved = (source.parent / location).resolve()
        for home in (source.parent.resolve(), source.resolve().parent):
            if resolved.is_relative_to(home) and resolved != home:
                return home, resolved.relative_to(home)
    raise InvalidModelError(
        f"the weights of {name!r} point outside the model's folder: {location!r}.\n"
        "Put the weights file beside the model and save the model with a relative location."
    )


def _opened(home: Path, inner: Path) -> BinaryIO:
    folder = os.open(home, _FOLDER)
    try:
        for part in inner.parts[:-1]:
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        file = os.open(inner.name, _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):  # asked before `fdopen`, which leaves a folder open that it refuses
        os.close(file)
        raise FileNotFoundError(inner)
    return os.fdopen(file, "rb")
