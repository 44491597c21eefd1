"""Atomic writing of files, and the size limit of protobuf files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

MAX_PROTO_NBYTES = 2**31 - 1
"""Bytes of one protobuf message."""

_MAX_NCHARS = 100  # of the destination in the temporary file's name, which may have 255 bytes


@contextmanager
def atomic_write(destination: Path) -> Iterator[BinaryIO]:
    """A temporary file that is renamed to `destination` at the end, and deleted on any failure.

    Concurrent writers use different temporary files. Special files (/dev/null, a named pipe) are written directly.

    Raises:
        OSError: with the path of `destination`.
    """
    try:
        if destination.exists() and not destination.is_file():
            with destination.open("wb") as file:
                yield file
            return
        temporary = destination.with_name(f".{destination.name[:_MAX_NCHARS]}.{os.urandom(6).hex()}.tmp")
        with temporary.open("xb") as file:
            try:
                yield file
                file.close()
                temporary.replace(destination)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(destination)) from error
