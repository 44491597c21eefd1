"""The ways to run a model on this CPU with as many images a second as can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from iosched.models.errors import UsageError
from iosched.models.images import with_images
from iosched.models.model import Model
from iosched.profiler.devices.device import OpenModelHere
from iosched.profiler.peers.onnxruntime import MANY_SESSIONS_NBYTES
from iosched.profiler.peers.requests import open_streams, timed
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.divided import TeamBackends, lower_in_teams, open_divided
from iosched.runtime.cpu.lane_cpus import LaneCpus
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays
from iosched.runtime.shares import open_shared
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.teams import Teams, possible


@dataclass(frozen=True, eq=False)
class CpuTeams:
    """See `TeamWays`."""

    model: Model
    lanes: int
    cpus: LaneCpus
    open_beside: Callable[[Model, CpuBackend], OpenModelHere]
    _backends: dict[int, TeamBackends] = field(default_factory=dict)

    @cached_property
    def refusal(self) -> str | None:
        """Why the batch cannot be divided; None if it can, or has one image."""
        try:
            with_images(self.model, 1)
        except UsageError as error:
            return str(error)
        return None

    @property
    def choices(self) -> Sequence[Teams]:
        """The teams that are tried for our schedules."""
        return possible(self.model.batch_size, self.lanes, divides=self.refusal is None)

    @property
    def sessions(self) -> Sequence[Teams]:
        """The teams that are tried for onnxruntime: a session of one thread for each core.

        Those have a request each, or divide the batch. None for a single core, or where weights are so large that
        nobody would have them in memory so often.
        """
        weights_nbytes = sum(array.nbytes for array in self.model.weights.values())
        if self.lanes == 1 or weights_nbytes > MANY_SESSIONS_NBYTES:
            return ()
        divided = [teams for teams in self.choices if teams.requests == 1 and teams.count == self.lanes]
        return (Teams(self.lanes, 1, self.model.batch_size), *divided)

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

    def ready_sessions(self, teams: Teams, inputs: Arrays) -> Candidate:
        """Plain onnxruntime, ready to be timed on these inputs."""
        return timed(open_shared(self.model, teams, self.lanes), inputs)

    def ready_openvino(self, inputs: Arrays) -> Candidate:
        """OpenVINO in its settings for throughput, with as many requests at the same time as there are cores.

        Raises:
            DeviceError: OpenVINO is not installed, or cannot run this model.
        """
        return open_streams(self.model, self.lanes, inputs)

    def close(self) -> None:
        """Frees what was prepared."""
        for backends in self._backends.values():
            backends.close()

    def _of(self, teams: Teams) -> TeamBackends:
        lanes = teams.lanes(self.lanes)
        if lanes not in self._backends:
            self._backends[lanes] = TeamBackends(self.model, lanes)
        return self._backends[lanes]
