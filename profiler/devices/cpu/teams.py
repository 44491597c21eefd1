"""The ways to run a model in teams of the cores of this CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from iosched.models.images import with_images
from iosched.models.model import Model
from iosched.profiler.devices.device import OpenModelHere
from iosched.profiler.peers.requests import timed
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.divided import TeamBackends, lower_in_teams, open_divided
from iosched.runtime.cpu.lane_cpus import LaneCpus
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.teams import Teams


@dataclass(frozen=True, eq=False)
class CpuTeams:
    """See `TeamWays`."""

    model: Model
    lanes: int
    cpus: LaneCpus
    open_beside: Callable[[Model, CpuBackend], OpenModelHere]
    _backends: dict[int, TeamBackends] = field(default_factory=dict)

    def opened(self, teams: Teams) -> OpenModelHere:
        """The model as one team runs it, for as many images as it takes at once; closed with the whole model."""
        backend = self._of(teams).of(teams.images)
        return self.open_beside(with_images(self.model, teams.images), backend)

    def ready(self, schedule: Schedule, teams: Teams, inputs: Arrays) -> tuple[Candidate, Callable[[], Arrays]]:
        """The model ready to be timed on these inputs, and a function that runs it once for its outputs.

        Raises:
            UsageError: the model does not compute the images of its batch apart.
            ExecutionError: onnxruntime refuses a kernel.
        """
        found = open_divided(self._of(teams), schedule, teams, self.cpus)
        return timed(found, inputs), partial(found.run, inputs)

    def n_kernels(self, schedule: Schedule, teams: Teams) -> int:
        """How many kernels one run of the model calls; `schedule` is what a team runs, in operators of the model."""
        return len(lower_in_teams(self._of(teams), schedule, teams).plan.tasks)

    def close(self) -> None:
        """Frees what was prepared."""
        for backends in self._backends.values():
            backends.close()

    def _of(self, teams: Teams) -> TeamBackends:
        lanes = teams.lanes(self.lanes)
        if lanes not in self._backends:
            self._backends[lanes] = TeamBackends(self.model, lanes)
        return self._backends[lanes]
