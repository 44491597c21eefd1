"""The job `selftest`: runs the checks of a device and reports which of them pass."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from iosched.models.errors import DeviceLostError, ExecutionError, IoschedError, MismatchError
from iosched.models.version import iosched_version
from iosched.profiler.devices.facts import installed
from iosched.profiler.devices.resolve import resolve

if TYPE_CHECKING:
    from iosched.runtime.reference import SelfCheck

Outcome = Literal["passed", "failed", "not tried"]

_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnx", "numpy")
_MOST_NAMED = 4
_MOST_COLUMNS = 300


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        part: the part of the runtime that the check belongs to.
        name: names the check within its part.
        outcome: the outcome; "not tried" once the device is lost.
        detail: the result or error in one line.
    """

    part: str
    name: str
    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0
    error: Exception | None = None

    @property
    def title(self) -> str:
        """The part and the name."""
        return f"{self.part}: {self.name}"


class Watcher(Protocol):
    """Observes checks."""

    def began(self, check: SelfCheck) -> None:
        """The check begins, and may crash the process."""
        ...

    def ended(self, result: CheckResult) -> None:
        """The check has ended or is not tried."""
        ...


@dataclass(frozen=True)
class SelfTest:
    """The results of all checks of a device.

    Attributes:
        device: the key of the device.
        about: versions by short names.
        results: one for each check, in the order in which they were tried.
    """

    device: str
    name: str
    about: Mapping[str, str]
    results: Sequence[CheckResult]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        return all(each.outcome == "passed" for each in self.results)

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(each for each in self.results if each.outcome == "failed")

    @property
    def summary(self) -> str:
        """One line for a report: the device, which parts work, the first failure, and all versions."""
        parts = ", ".join(self._part(part) for part in dict.fromkeys(each.part for each in self.results))
        versions = ", ".join(f"{name} {value}" for name, value in self.about.items())
        verdict = "works" if self.passed else "FAILED"
        return f"{self.name} {verdict} in {self.seconds:.0f} s: {parts}{self._failures()}; {versions}"

    @property
    def failure(self) -> IoschedError | None:
        """The error to end with; None if all checks passed."""
        if self.passed:
            return None
        kind = MismatchError if all(isinstance(each.error, MismatchError) for each in self.failed) else ExecutionError
        return kind(f"{len(self.failed)} of {len(self.results)} checks failed; see docs/cuda.md for what to send")

    def _part(self, part: str) -> str:
        outcomes = [each.outcome for each in self.results if each.part == part]
        return f"{part} {outcomes.count('passed')}/{len(outcomes)}"

    def _failures(self) -> str:
        if not self.failed:
            return ""
        named = [f"{each.title} ({each.detail})" for each in self.failed[:1]]
        named += [each.title for each in self.failed[1:_MOST_NAMED]]
        more = f" and {len(self.failed) - _MOST_NAMED} more" if len(self.failed) > _MOST_NAMED else ""
        untried = sum(each.outcome == "not tried" for each in self.results)
        lost = f"; not tried because the device was lost: {untried}" if untried else ""
        return f"; failed: {', '.join(named)}{more}{lost}"


class _SilentWatcher:
    def began(self, check: SelfCheck) -> None:
        """Says nothing."""

    def ended(self, result: CheckResult) -> None:
        """Says nothing."""


def selftest(device: str, watcher: Watcher | None = None) -> SelfTest:
    """Runs all checks of a device; a check that fails does not prevent the others.

    Args:
        watcher: observes checks.

    Raises:
        UsageError: there is no such device.
        DeviceError: it is not attached, or a library that it needs is not installed.
    """
    started = time.perf_counter()
    opened = resolve(device)
    info = opened.info
    about = {"iosched": iosched_version(), **info.about, **installed(_PACKAGES), "python": platform.python_version()}
    results = tuple(_results(opened.checks(), watcher or _SilentWatcher()))
    return SelfTest(info.key, info.name, about, results, time.perf_counter() - started)


def _results(checks: Sequence[SelfCheck], watcher: Watcher) -> Iterator[CheckResult]:
    is_lost = False
    for check in checks:
        if is_lost:
            result = CheckResult(check.part, check.name, "not tried")
        else:
            watcher.began(check)
            result = _tried(check)
            is_lost = isinstance(result.error, DeviceLostError)
        watcher.ended(result)
        yield result


def _tried(check: SelfCheck) -> CheckResult:
    started = time.perf_counter()

    def ended(outcome: Outcome, detail: str, error: Exception | None = None) -> CheckResult:
        return CheckResult(check.part, check.name, outcome, detail, time.perf_counter() - started, error)

    try:
        return ended("passed", check.run())
    except Exception as error:  # noqa: BLE001 - an unexpected error must not hide the checks after it
        return ended("failed", _one_line(error), error)


def _one_line(error: Exception) -> str:
    text = next(iter(str(error).splitlines()), "")
    if not isinstance(error, IoschedError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _MOST_COLUMNS else f"{text[: _MOST_COLUMNS - 3]}..."
