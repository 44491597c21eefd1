"""onnxruntime as a baseline, which a schedule has to beat on the CPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from iosched.models.model import Model
from iosched.profiler.measuring.disturbance import watch
from iosched.profiler.measuring.interleaved_models import closing_all, fastest_setting
from iosched.runtime.cores import allowed_cpus, has_whole_machine, physical_cores
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import Reference, ReferenceSettings, candidates

MANY_SESSIONS_NBYTES = 256 << 20
"""Settings are compared only for models with fewer bytes of weights, since every session copies them."""


@dataclass(frozen=True, eq=False)
class OnnxruntimeBaseline:
    """onnxruntime on the original model, with `threads` cores of this machine."""

    model: Model
    threads: int

    @property
    def settings(self) -> Sequence[ReferenceSettings]:
        """The settings that a user with this number of cores would try, the usual one first."""
        return candidates(self.threads, physical_cores(), is_whole=has_whole_machine())

    def ready(self, setting: ReferenceSettings, inputs: Arrays) -> Candidate:
        """Opens the model in this setting.

        Raises:
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: onnxruntime is not installed.
        """
        reference = Reference(self.model, setting)
        return Candidate(partial(reference.time, inputs), reference.close)

    def best(self, inputs: Arrays) -> ReferenceSettings:
        """The fastest setting (`fastest_setting`); the usual one without others, with large weights, or beside other
        processes: one thread may be the fastest there, and later calls keep the setting.
        """
        settings = self.settings
        weights_nbytes = sum(array.nbytes for array in self.model.weights.values())
        if len(settings) == 1 or weights_nbytes > MANY_SESSIONS_NBYTES:
            return settings[0]
        opened = {setting: self.ready(setting, inputs) for setting in settings}
        is_quiet = watch(allowed_cpus())
        with closing_all(opened):
            found = settings[fastest_setting(list(opened.values()))]
        return found if is_quiet() else settings[0]

    @cached_property
    def opening_and_run_s(self) -> tuple[float, float]:
        """Seconds to open the model in the usual setting, and of one run; measured once."""
        began = time.monotonic()
        with Reference(self.model, self.settings[0]) as reference:
            run_s = reference.time(random_inputs(self.model.graph.inputs), 1)[0] / 1e6
        return time.monotonic() - began - run_s, run_s


def open_best(model: Model, threads: int, inputs: Arrays) -> Candidate:
    """Opens onnxruntime in its fastest setting."""
    plain = OnnxruntimeBaseline(model, threads)
    return plain.ready(plain.best(inputs), inputs)


def open_parallel(model: Model, threads: int, inputs: Arrays) -> Candidate:
    """Opens onnxruntime in its parallel mode."""
    return OnnxruntimeBaseline(model, threads).ready(
        ReferenceSettings("parallel", max(1, threads // 2), threads), inputs
    )
