"""Stages measured on a device of the same name on another machine, from an imported profile."""

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
    """Measured latencies of stages of one model on another machine's device.

    Attributes:
        device: its display name, with library versions and the day of its last measurement.
        latency_us: by signature; infinite if that device cannot run the stage.
        signature: of a stage, by that device's runtime.
        operator_key: equal for equal operators there.
    """

    device: str
    latency_us: Mapping[str, float]
    signature: Callable[[Stage], str]
    operator_key: Callable[[str], str]

    def known_us(self, stage: Stage) -> float | None:
        """The measured latency of a stage in microseconds; None if unmeasured."""
        return self.latency_us.get(self.signature(stage))

    def share(self, stages: Iterable[Stage], latency_us: Callable[[Stage], float]) -> float:
        """The measured share of the latency of `stages`, from 0 to 1; 0 if it is infinite or zero."""
        found = [(latency_us(stage), self.known_us(stage) is not None) for stage in stages]
        whole = sum(us for us, _ in found)
        return sum(us for us, is_known in found if is_known) / whole if 0 < whole < math.inf else 0.0


@dataclass(frozen=True, eq=False)
class ImportedProfile:
    """Stages of one model in the profile database, from another machine's device.

    Attributes:
        measured: its stages; None without usable ones.
        passed_over: sentences on why others were skipped; empty if some were used.
        factor: on the latencies of unmeasured operators of unmeasured kinds.
    """

    measured: ImportedStages | None = None
    passed_over: tuple[str, ...] = ()
    factor: float = 1.0

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on the origin of measured stages, or why there are none."""
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
        """The same without stages measured in a CUDA graph, for plans without one."""
        if self.measured is None:
            return NO_PROFILE
        return ImportedProfile(
            passed_over=(
                f"Stages measured on {self.measured.device} are ignored because they ran in a CUDA graph:"
                " use launch='graph' to include them.",
            )
        )

    def share(self, stages: Iterable[Stage], latency_us: Callable[[Stage], float]) -> float | None:
        """See `ImportedStages.share`, rounded to four digits; None without stages."""
        return None if self.measured is None else round(self.measured.share(stages, latency_us), 4)


NO_PROFILE = ImportedProfile()
"""Of an attached device, or without measurements."""

FindImported = Callable[[ProfileDatabase, Model, str, PrecisionName], ImportedProfile]
"""Finds the measurements of a model on the GPU with this key in the database."""


def find_nothing(database: ProfileDatabase, model: Model, gpu: str, precision: PrecisionName) -> ImportedProfile:
    """Finds nothing."""
    del database, model, gpu, precision
    return NO_PROFILE
