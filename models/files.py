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
    """A file beside `destination` that is given its name at the end, and deleted after any failure, Ctrl-C included.

    Each writer has a file of its own, so of several the last one wins as a whole. What is no regular file, such as
    /dev/null or a named pipe, stays what it is: it is written to.

    Raises:
        OSError: with the path of `destination`, where it cannot be written.
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
