"""OpenVINO on the CPU: a baseline, which ships if it is fastest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

from iosched.models.errors import DeviceError, ExecutionError, IoschedError, MismatchError
from iosched.models.model import Model
from iosched.runtime.compare import Check, compare, rtol_of
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.openvino.library import available, installed_version
from iosched.runtime.openvino.openvino_model import OpenvinoModel
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.scheduler.precision import DEFAULT_PRECISION


@dataclass(frozen=True, eq=False)
class OpenvinoBaseline:
    """OpenVINO on the original model, with `threads` cores; precision "fp32" stands for the model's own types."""

    model: Model
    threads: int
    precision: str = DEFAULT_PRECISION

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
        """Identifies how the model is run; latencies of equal texts are interchangeable."""
        return f"openvino {self.version}, {self.precision}"

    @property
    def opened(self) -> OpenvinoModel:
        """The model, opened and checked against onnxruntime once.

        Raises:
            DeviceError: OpenVINO is not installed, or cannot run the model.
            MismatchError: its outputs differ.
        """
        if isinstance(self._tried, IoschedError):
            raise self._tried
        return self._tried[0]

    @property
    def agreement(self) -> Check:
        """The difference of its outputs from onnxruntime's in 32-bit floats. Raises as `opened` does."""
        if isinstance(self._tried, IoschedError):
            raise self._tried
        return self._tried[1]

    @cached_property
    def _tried(self) -> tuple[OpenvinoModel, Check] | DeviceError | MismatchError:
        inputs = random_inputs(self.model.graph.inputs)
        with Reference(self.model, ReferenceSettings("sequential", self.threads)) as reference:
            expected = reference.run(inputs)
        try:
            found = OpenvinoModel(self.model, self.threads, self.precision)
        except DeviceError as error:
            return error
        checked = _checked(found, inputs, expected, rtol_of(self.precision))
        if isinstance(checked, Check):
            return found, checked
        found.close()
        return checked

    @cached_property
    def run_s(self) -> float:
        """Seconds of one run; measured once. Raises as `opened` does."""
        return self.opened.time(random_inputs(self.model.graph.inputs), 2)[-1] / 1e6

    def ready(self, inputs: Arrays) -> Candidate:
        """The model ready to be timed on these inputs. Raises as `opened` does."""
        opened = self.opened
        return Candidate(partial(opened.time, inputs), opened.close)


def _checked(
    opened: OpenvinoModel, inputs: Arrays, expected: Arrays, rtol: float
) -> Check | DeviceError | MismatchError:
    try:
        check = compare(opened.run(inputs), expected, rtol=rtol)
    except ExecutionError as error:
        return DeviceError(f"OpenVINO cannot run this model: {error}")
    return check if check.passed else MismatchError(check.reasons[0])


def open_openvino(model: Model, threads: int, inputs: Arrays) -> Candidate:
    """Opens OpenVINO on `threads` cores with its latency settings, in the model's precision. Raises as `opened`."""
    opened = OpenvinoModel(model, threads)
    return Candidate(partial(opened.time, inputs), opened.close)
