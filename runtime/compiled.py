"""What of iosched is compiled on this machine."""

from __future__ import annotations

from iosched.runtime.cpu import library


def compiled_executor() -> str | None:
    """Which interface the compiled executor has, and the name of its file; None where there is none to be used."""
    return library.version()
