"""Which operators were proven to run alike without a session, kept in a file for this onnxruntime and processor."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from iosched.runtime.processor import read_processor

_SIGNATURE_NBYTES = 16
_VERDICTS = {"yes": True, "no": False}


def proofs_path(onnxruntime: Path) -> Path | None:
    """The file for an onnxruntime, by its shared library, on this processor; None where no folder is to be had."""
    from platformdirs import user_cache_dir

    try:
        state = onnxruntime.stat()
        folder = Path(user_cache_dir("iosched", appauthor=False)) / "operators"
    except (OSError, RuntimeError):  # as where there is no home
        return None
    processor = read_processor()
    said = (onnxruntime.name, state.st_size, state.st_mtime_ns, processor.name, sorted(processor.design.items()))
    return folder / f"{hashlib.blake2b(repr(said).encode(), digest_size=8).hexdigest()}.txt"


def remembered(path: Path | None) -> dict[bytes, bool]:
    """For signatures whether their operators run without sessions. What cannot be read counts as not there."""
    found: dict[bytes, bool] = {}
    if path is None:
        return found
    with suppress(OSError, UnicodeDecodeError):
        for line in path.read_text("ascii").splitlines():
            signature, _, verdict = line.partition(" ")
            with suppress(ValueError):
                if verdict in _VERDICTS and len(bytes.fromhex(signature)) == _SIGNATURE_NBYTES:
                    found[bytes.fromhex(signature)] = _VERDICTS[verdict]
    return found


def remember(path: Path | None, proofs: Mapping[bytes, bool]) -> None:
    """Adds to the file, in one write, so that processes may do so at once. Where that fails, nothing is kept."""
    if path is None or not proofs:
        return
    lines = "".join(f"{signature.hex()} {'yes' if proof else 'no'}\n" for signature, proof in proofs.items())
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, lines.encode("ascii"))
        finally:
            os.close(file)
