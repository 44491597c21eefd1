"""Measuring anew what the profile database already knows."""

from __future__ import annotations

from iosched.profiler.database import ProfileDatabase
from iosched.profiler.statistics import Measurement


class RefreshedDatabase(ProfileDatabase):
    """A profile database that answers only with what was put through this object, and so has the rest replaced.

    What is no measurement of a stage or a model (the yardstick, to which every stored latency is relative) is kept:
    the keys of stages and models hold a colon.
    """

    def get(self, signature: str, device: str) -> Measurement | None:
        """As in a database that knew no stage and no model when it was opened."""
        if ":" in signature and (signature, device) not in self._fresh:
            return None
        return super().get(signature, device)

    def put(self, signature: str, device: str, measurement: Measurement) -> None:
        """Keeps `measurement` in place of an earlier one."""
        super().put(signature, device, measurement)
        self._fresh.add((signature, device))

    @property
    def _fresh(self) -> set[tuple[str, str]]:
        found: set[tuple[str, str]] = self.__dict__.setdefault("_put_here", set())
        return found
