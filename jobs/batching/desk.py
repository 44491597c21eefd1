"""Opens models one after another on one device, with one profile database."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from iosched.jobs.schedules import Deadline, schedule_by
from iosched.models.errors import IoschedError
from iosched.models.model import Model
from iosched.profiler.devices.device import Device, OpenModel
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.store.database import ProfileDatabase


@dataclass(frozen=True, eq=False)
class Desk:
    """A device on which models are opened with the same settings.

    Attributes:
        device: the device.
        settings: how models are opened.
        database: the profile database; None if latencies are computed, and nothing is known of them.
    """

    device: Device
    settings: OpenSettings
    database: ProfileDatabase | None

    def open(self, model: Model, beside: OpenModel | None = None) -> OpenModel:
        """Opens `model`; see `Device.open`."""
        return self.device.open(model, self.settings, self.database, beside=beside)

    def best_us(self, beside: OpenModel, is_over: Deadline) -> Callable[[Model], float]:
        """A function from models to the latency of the best schedule that a search finds, in microseconds.

        It is infinite where the device cannot run the model by a schedule, and once it `is_over`.
        """

        def best_us(model: Model) -> float:
            if is_over():
                return math.inf
            try:
                with closing(self.open(model, beside)) as opened:
                    if opened.here is not None and not opened.here.is_schedulable:
                        return math.inf
                    found = schedule_by(opened, "both", deadline=is_over).schedule.predicted_us
            except IoschedError:
                return math.inf
            return math.inf if found is None else found

        return best_us
