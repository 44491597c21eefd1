"""Where variants are evaluated: on this machine, one after another, or side by side elsewhere."""

from __future__ import annotations

from typing import Protocol

from iosched.jobs.exploring.evaluation import Evaluator
from iosched.jobs.exploring.strategy import Strategy
from iosched.jobs.interrupt import Interrupt
from iosched.jobs.settings import OptimizeSettings
from iosched.models.model import Model
from iosched.scheduler.document import ScheduleDocument


class Workplace(Protocol):
    """Evaluates the variants of a study."""

    def tried(self, strategy: Strategy, evaluator: Evaluator, interrupt: Interrupt) -> bool:
        """Tries variants until there is nothing more to be tried; returns whether the user has ended it before.

        Raises:
            DeviceError: no variant can be costed.
            KeyboardInterrupt: the user interrupts, and does not want the best variants known.
        """

    def document(self, model: Model, settings: OptimizeSettings) -> ScheduleDocument:
        """The schedule that `optimize` finds for a variant."""
