"""Stages that were measured on a device of the same name on another machine, and came here with its profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from iosched.models.model import Model
from iosched.profiler.store.database import ProfileDatabase
from iosched.scheduler.precision import PrecisionName
from iosched.scheduler.schedule import Stage
from iosched.scheduler.unit_graph import UnitGraph


@dataclass(frozen=True, eq=False)
class ImportedStages:
    """The measured latencies of stages of one model on one device that is not here.

    Attributes:
        device: what people call that device, with the versions of its libraries and the day of its last measurement.
        latency_us: latencies by signature; infinite where that device cannot run the stage.
        signature: the signature of a stage, as that device's runtime makes it.
        operator_key: a text that is equal for operators that are alike there.
    """

    device: str
    latency_us: Mapping[str, float]
    signature: Callable[[Stage], str]
    operator_key: Callable[[str], str]

    def known_us(self, stage: Stage) -> float | None:
        """The measured latency of a stage in microseconds; None where it was not measured."""
        return self.latency_us.get(self.signature(stage))

    def share(self, stages: Iterable[Stage], latency_us: Callable[[Stage], float]) -> float:
        """The part of the latency of `stages` that was measured, from 0 to 1; 0 where it is not finite or nothing.

        Args:
            latency_us: answers the latency of a stage, measured or not.
        """
        found = [(latency_us(stage), self.known_us(stage) is not None) for stage in stages]
        whole = sum(us for us, _ in found)
        return sum(us for us, is_known in found if is_known) / whole if 0 < whole < math.inf else 0.0


@dataclass(frozen=True, eq=False)
class ImportedProfile:
    """What the profile database has of one model on a device that is not here.

    Attributes:
        measured: its stages; None where there are none that can be taken.
        passed_over: why others that a user may expect were not taken, in whole sentences; empty where some were.
        factor: by what the latencies of operators that were not measured are multiplied, where nothing more is known.
    """

    measured: ImportedStages | None = None
    passed_over: tuple[str, ...] = ()
    factor: float = 1.0

    @property
    def notes(self) -> tuple[str, ...]:
        """Where measured stages come from, or why there are none, in whole sentences."""
        if self.measured is None:
            return self.passed_over
        return (
            f"Stages measured on {self.measured.device} are used; other latencies are computed, and multiplied by"
            f" {self.factor:.2f} where no similar stage was measured.",
        )

    def of_units(self, units: UnitGraph) -> ImportedProfile:
        """The same for stages of units."""
        if self.measured is None:
            return self
        signature, key = self.measured.signature, self.measured.operator_key
        measured = replace(
            self.measured,
            signature=lambda stage: signature(units.expanded_stage(stage)),
            operator_key=lambda unit: units.key(unit, key, signature),
        )
        return replace(self, measured=measured)

    def without_graphs(self) -> ImportedProfile:
        """The same for a plan in which no CUDA graph launches kernels: what was measured in one is passed over."""
        if self.measured is None:
            return NO_PROFILE
        return ImportedProfile(
            passed_over=(
                f"Stages measured on {self.measured.device} are ignored because they ran in a CUDA graph:"
                " use launch='graph' to include them.",
            )
        )

    def share(self, stages: Iterable[Stage], latency_us: Callable[[Stage], float]) -> float | None:
        """See `ImportedStages.share`, rounded to four digits; None where no stages were found."""
        return None if self.measured is None else round(self.measured.share(stages, latency_us), 4)


NO_PROFILE = ImportedProfile()
"""Of a device that is here, or that nothing was measured on."""

FindImported = Callable[[ProfileDatabase, Model, str, PrecisionName], ImportedProfile]
"""Finds what the database has of a model on the GPU of the table with this key."""


def find_nothing(database: ProfileDatabase, model: Model, gpu: str, precision: PrecisionName) -> ImportedProfile:
    """Finds nothing."""
    del database, model, gpu, precision
    return NO_PROFILE
