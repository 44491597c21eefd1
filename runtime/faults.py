"""Contains bugs of our own plans: errors that neither the user, the model nor the machine causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from iosched.models.errors import (
    DeviceError,
    DeviceLostError,
    InvalidScheduleError,
    IoschedError,
    MismatchError,
    PlanError,
    ResourceError,
    UsageError,
)
from iosched.models.graph import Operator
from iosched.models.log import logger

_log = logger(__name__)

_NO_FAULTS = (
    *(UsageError, InvalidScheduleError, MismatchError),
    *(DeviceError, DeviceLostError, ResourceError, OSError, MemoryError),
)
"""Errors that are raised on purpose. `InvalidModelError` is not included: it may concern a graph derived from the
model.
"""

REPORT = "Please report it with the output of 'iosched doctor' and, if you can, the model."
NOT_THE_MODEL = f"This is a bug in iosched, not in the model. {REPORT}"

_MOST_CHARACTERS, _MOST_NAMES = 300, 4


@dataclass(frozen=True, eq=False)
class Faults:
    """Faults of plans that were contained so far, by label; if `strict`, faults are raised instead."""

    strict: bool = False
    found: dict[str, Exception] = field(default_factory=dict)

    @contextmanager
    def contained(self, label: str) -> Iterator[None]:
        """A context that suppresses a fault and stores it in `found` under `label`.

        Raises:
            Exception: any error that is no fault of a plan, and every error if `strict`.
        """
        try:
            yield
        except _NO_FAULTS:
            raise
        except Exception as error:
            if self.strict:
                raise
            _log.warning("%s fails", label, exc_info=error)
            self.found[label] = error

    @property
    def first(self) -> Exception:
        """The first contained error."""
        return next(iter(self.found.values()))

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for the user about skipped parts; empty without faults."""
        if not self.found:
            return ()
        label, error = next(iter(self.found.items()))
        more = f", and {len(self.found) - 1} more" if len(self.found) > 1 else ""
        return (f"Skipped because it fails: {label} ({summary(error)}){more}. {NOT_THE_MODEL}",)


def named(operators: Sequence[Operator]) -> str:
    """Types and names of operators for the user; only the first ones of many."""
    shown = ", ".join(f"{operator.type} {operator.name!r}" for operator in operators[:_MOST_NAMES])
    return shown if len(operators) <= _MOST_NAMES else f"{shown} and {len(operators) - _MOST_NAMES} more"


def summary(error: BaseException) -> str:
    """One line on an error, with its class unless it was raised on purpose."""
    text = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    if len(text) > _MOST_CHARACTERS:
        text = text[: _MOST_CHARACTERS - 3] + "..."
    return text or type(error).__name__ if isinstance(error, IoschedError) else f"{type(error).__name__}: {text}"


def plan_error(place: str, error: BaseException) -> PlanError:
    """The error of a plan that fails at `place`, such as an operator; empty if unknown."""
    found = PlanError(f"iosched's plan fails{f' at {place}' if place else ''}: {summary(error)}.\n{NOT_THE_MODEL}")
    found.place = place
    return found
