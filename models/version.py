"""The version of the installed iosched: files and profile databases say which one wrote them."""

from __future__ import annotations

from importlib.metadata import version


def iosched_version() -> str:
    """As pip gives it ("0.1.0")."""
    return version("iosched")
