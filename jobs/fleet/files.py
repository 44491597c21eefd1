"""The ONNX files that a transport was given: written where they are bytes, and dropped when nobody needs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from iosched.jobs.fleet.errand import Errand
from iosched.jobs.fleet.transport import Command, DropModel, PutModel


class Files:
    """Files by their digests."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="iosched-fleet-")
        self._put: dict[str, Path | None] = {}

    def put(self, errand: Errand) -> Iterator[Command]:
        """What the transport has to be told before a call names the file of an errand."""
        digest = errand.model.file
        if digest not in self._put:
            path, written = errand.file, None
            if isinstance(path, bytes):
                written = Path(self._folder.name) / f"{digest}.onnx"
                written.write_bytes(path)
                path = written
            self._put[digest] = written
            yield PutModel(digest, path)

    def drop(self, digest: str) -> Iterator[Command]:
        """What the transport is told when no errand needs a file any more."""
        if digest in self._put:
            if (written := self._put.pop(digest)) is not None:
                written.unlink(missing_ok=True)
            yield DropModel(digest)

    def forget(self) -> None:
        """Another transport has none of them."""
        self._put.clear()

    def close(self) -> None:
        """Removes what was written."""
        self._folder.cleanup()
