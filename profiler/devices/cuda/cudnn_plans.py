"""Known cuDNN plans: those in a schedule, and those in the profile database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import ClassVar

from iosched.models.errors import DeviceLostError
from iosched.profiler.store.database import ProfileDatabase


@dataclass(frozen=True)
class KnownCudnnPlans:
    """The cuDNN plans in a schedule. Nothing is timed: other kernels use the best guess."""

    plans: Mapping[str, str]
    times: ClassVar[bool] = False

    def choice(self, key: str) -> str | None:
        """See `CudnnPlanStore`."""
        return self.plans.get(key)

    def choose(self, key: str, value: str) -> str:
        """See `CudnnPlanStore`."""
        del key
        return value

    def plan(self, key: str, name: str) -> bytes | None:
        """None: a schedule has only names of plans."""
        del key, name
        return None

    def keep_plan(self, key: str, name: str, content: bytes) -> None:
        """Does nothing."""

    def fatal(self, key: str) -> frozenset[str]:
        """None: nothing is tried."""
        del key
        return frozenset()

    def trying(self, key: str, name: str) -> AbstractContextManager[None]:
        """Does nothing."""
        del key, name
        return nullcontext()


@dataclass(frozen=True, eq=False)
class StoredCudnnPlans:
    """The cuDNN plans in the profile database; `times` allows choosing missing ones by timing."""

    database: ProfileDatabase
    device: str
    times: bool = True
    _trials: list[tuple[str, str]] = field(default_factory=list)

    def choice(self, key: str) -> str | None:
        """See `CudnnPlanStore`."""
        return self.database.choice(key, self.device)

    def choose(self, key: str, value: str) -> str:
        """See `CudnnPlanStore`."""
        return self.database.choose(key, self.device, value)

    def plan(self, key: str, name: str) -> bytes | None:
        """See `CudnnPlanStore`."""
        return self.database.cudnn_plan(key, name, self.device)

    def keep_plan(self, key: str, name: str, content: bytes) -> None:
        """See `CudnnPlanStore`."""
        self.database.keep_cudnn_plan(key, name, self.device, content)

    def fatal(self, key: str) -> frozenset[str]:
        """See `CudnnPlanStore`."""
        return self.database.fatal_cudnn_plans(key, self.device)

    @contextmanager
    def trying(self, key: str, name: str) -> Iterator[None]:
        """See `CudnnPlanStore`."""
        for outer in self._trials[-1:]:
            self.database.end_cudnn_trial(*outer, self.device, fatal=False)
        self._trials.append((key, name))
        self.database.begin_cudnn_trial(key, name, self.device)
        fatal = False
        try:
            yield
        except DeviceLostError:
            fatal = True
            raise
        finally:
            self.database.end_cudnn_trial(key, name, self.device, fatal=fatal)
            self._trials.pop()
            for outer in self._trials[-1:] if not fatal else ():
                self.database.begin_cudnn_trial(*outer, self.device)
