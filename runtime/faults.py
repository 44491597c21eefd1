"""Contains faults of our own plans: errors for which neither the user, the model nor the machine is to blame."""

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
"""Errors that are raised on purpose and are no fault of a plan. An `InvalidModelError` is one: it may be about a graph
that was derived from the model."""

REPORT = "Please report it with the output of 'iosched doctor' and, if you can, the model."
NOT_THE_MODEL = f"This is a bug in iosched, not in the model. {REPORT}"

_MOST_CHARACTERS, _MOST_NAMES = 300, 4


@dataclass(frozen=True, eq=False)
class Faults:
    """The faults of plans that were contained so far.

    Attributes:
        strict: whether faults are raised as they come, instead of being contained.
        found: the errors, by what failed.
    """

    strict: bool = False
    found: dict[str, Exception] = field(default_factory=dict)

    @contextmanager
    def contained(self, what: str) -> Iterator[None]:
        """A context that a fault ends early; `found` then has the error under the name `what`.

        Raises:
            What is raised inside, if it is no fault of a plan, or `strict` is set.
        """
        try:
            yield
        except _NO_FAULTS:
            raise
        except Exception as error:
            if self.strict:
                raise
            _log.warning("%s fails", what, exc_info=error)
            self.found[what] = error

    @property
    def first(self) -> Exception:
        """The first error that was contained."""
        return next(iter(self.found.values()))

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for people about what was left out because of its faults; empty if nothing was."""
        if not self.found:
            return ()
        what, error = next(iter(self.found.items()))
        more = f", and {len(self.found) - 1} more" if len(self.found) > 1 else ""
        return (f"Skipped because it fails: {what} ({summary(error)}){more}. {NOT_THE_MODEL}",)


def named(operators: Sequence[Operator]) -> str:
    """The types and names of operators, for people; of many, the first ones."""
    shown = ", ".join(f"{operator.type} {operator.name!r}" for operator in operators[:_MOST_NAMES])
    return shown if len(operators) <= _MOST_NAMES else f"{shown} and {len(operators) - _MOST_NAMES} more"


def summary(error: BaseException) -> str:
    """One line that says what an error is, its class first if it was not raised on purpose."""
    text = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    if len(text) > _MOST_CHARACTERS:
        text = text[: _MOST_CHARACTERS - 3] + "..."
    return text or type(error).__name__ if isinstance(error, IoschedError) else f"{type(error).__name__}: {text}"


def plan_error(place: str, error: BaseException) -> PlanError:
    """The error that a plan fails at `place`: an operator, say, or empty if that is not known."""
    found = PlanError(f"iosched's plan fails{f' at {place}' if place else ''}: {summary(error)}.\n{NOT_THE_MODEL}")
    found.place = place
    return found
