"""A library that runs the original model: a baseline, which ships if it is fastest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Literal

from iosched.models.errors import DeviceError, ExecutionError, IoschedError, MismatchError
from iosched.models.model import Model
from iosched.runtime.compare import Check, compare, rtol_of
from iosched.runtime.executor import Candidate, Runnable
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.scheduler.precision import DEFAULT_PRECISION


@dataclass(frozen=True, eq=False)
class LibraryBaseline(ABC):
    """A library on the original model; on a CPU, precision "fp32" means the model's own types.

    Attributes:
        name: in results and files.
        label: in messages.
        threads: the number of CPU cores.
    """

    name: ClassVar[Literal["openvino", "tensorrt"]]
    label: ClassVar[str]
    model: Model
    threads: int
    precision: str = DEFAULT_PRECISION

    @property
    @abstractmethod
    def text(self) -> str:
        """Identifies how the model is run; latencies of equal texts are interchangeable."""

    @abstractmethod
    def _open(self) -> Runnable:
        """Opens the model; raises a DeviceError if the library is missing or cannot run it."""

    @property
    def opened(self) -> Runnable:
        """The model, opened and checked against onnxruntime once.

        Raises:
            DeviceError: the library is not installed, or cannot run the model.
            MismatchError: its outputs differ.
        """
        return self._found[0]

    @property
    def agreement(self) -> Check:
        """The difference of its outputs from onnxruntime's in 32-bit floats. Raises as `opened` does."""
        return self._found[1]

    @property
    def _found(self) -> tuple[Runnable, Check]:
        if isinstance(self._tried, IoschedError):
            raise self._tried
        return self._tried

    @cached_property
    def _tried(self) -> tuple[Runnable, Check] | DeviceError | MismatchError:
        try:
            found = self._open()
            try:
                return found, self._checked(found)
            except BaseException:
                found.close()
                raise
        except (DeviceError, MismatchError) as error:
            return error

    def _checked(self, found: Runnable) -> Check:
        inputs = random_inputs(self.model.graph.inputs)
        with Reference(self.model, ReferenceSettings("sequential", self.threads)) as reference:
            expected = reference.run(inputs)
        try:
            check = compare(found.run(inputs), expected, rtol=rtol_of(self.precision))
        except (DeviceError, ExecutionError) as error:
            raise DeviceError(f"{self.label} cannot run this model: {error}") from error
        if not check.passed:
            raise MismatchError(check.reasons[0])
        return check

    @cached_property
    def run_s(self) -> float:
        """Seconds of one run; measured once. Raises as `opened` does."""
        return self.opened.time(random_inputs(self.model.graph.inputs), 2)[-1] / 1e6

    def ready(self, inputs: Arrays) -> Candidate:
        """The model ready to be timed on these inputs. Raises as `opened` does."""
        opened = self.opened
        return Candidate(partial(opened.time, inputs), opened.close)
