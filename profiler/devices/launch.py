"""How kernels are launched in the analytic model, by name."""

from __future__ import annotations

from typing import Literal, get_args

from iosched.models.errors import UsageError

LaunchName = Literal["graph", "streams"]
"""All kernels of a network by one CUDA graph, as our runtime does; one by one into streams, as IOS's runtime did."""

LAUNCHES: tuple[LaunchName, ...] = get_args(LaunchName)
DEFAULT_LAUNCH: LaunchName = "graph"


def launch_named(text: str) -> LaunchName:
    """The launch of that name.

    Raises:
        UsageError: there is none.
    """
    for known in LAUNCHES:
        if known == text:
            return known
    raise UsageError(f"unknown launch {text!r}: give {' or '.join(LAUNCHES)}")
