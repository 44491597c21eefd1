"""OpenVINO on the CPU: a peer, and a library that whole models ship on where it is the fastest one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

from iosched.models.errors import DeviceError, ExecutionError, IoschedError, MismatchError
from iosched.models.model import Model
from iosched.profiler.measuring.in_turn import Candidate
from iosched.runtime.compare import compare
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.openvino.library import available, installed_version
from iosched.runtime.openvino.model import OpenvinoModel
from iosched.runtime.reference import Reference, ReferenceSettings


@dataclass(frozen=True, eq=False)
class PlainOpenvino:
    """OpenVINO on the model as it was given, with `threads` cores of this machine, in the model's own precision."""

    model: Model
    threads: int

    @staticmethod
    def is_there() -> bool:
        """Whether OpenVINO is installed."""
        return available()

    @property
    def version(self) -> str:
        """The version of OpenVINO."""
        return installed_version() or ""

    @property
    def text(self) -> str:
        """A text that says all of how the model is run; latencies of one text can be taken for each other."""
        return f"openvino {self.version}, f32"

    @property
    def opened(self) -> OpenvinoModel:
        """The model, after it computed what onnxruntime computes; opened and checked once.

        Raises:
            DeviceError: OpenVINO is not installed, or cannot run the model.
            MismatchError: it computes something else; the text says how far off.
        """
        if isinstance(self._tried, IoschedError):
            raise self._tried
        return self._tried

    @cached_property
    def _tried(self) -> OpenvinoModel | DeviceError | MismatchError:
        inputs = random_inputs(self.model.graph.inputs)
        with Reference(self.model, ReferenceSettings("sequential", self.threads)) as reference:
            expected = reference.run(inputs)
        try:
            found = OpenvinoModel(self.model, self.threads)
        except DeviceError as error:
            return error
        refused = _refusal(found, inputs, expected)
        if refused is None:
            return found
        found.close()
        return refused

    @cached_property
    def run_s(self) -> float:
        """Seconds of one run; measured once. Raises as `opened` does."""
        return self.opened.time(random_inputs(self.model.graph.inputs), 2)[-1] / 1e6

    def ready(self, inputs: Arrays) -> Candidate:
        """The model ready to be timed on these inputs. Raises as `opened` does."""
        opened = self.opened
        return Candidate(partial(opened.time, inputs), opened.close)


def _refusal(opened: OpenvinoModel, inputs: Arrays, expected: Arrays) -> DeviceError | MismatchError | None:
    """Why a model is not compared that was opened; None if it computes what is expected."""
    try:
        check = compare(opened.run(inputs), expected)
    except ExecutionError as error:
        return DeviceError(f"OpenVINO cannot run this model: {error}")
    return None if check.passed else MismatchError(check.reasons[0])


def open_openvino(model: Model, threads: int, inputs: Arrays) -> Candidate:
    """Opens OpenVINO on `threads` cores with its settings for low latency, in the precision of the model.

    Raises:
        DeviceError: OpenVINO is not installed, or cannot run this model.
    """
    opened = OpenvinoModel(model, threads)
    return Candidate(partial(opened.time, inputs), opened.close)
