"""OpenVINO on the CPU: a baseline, which ships if it is fastest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from iosched.models.model import Model
from iosched.profiler.baselines.library import LibraryBaseline
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays
from iosched.runtime.openvino.library import available, installed_version
from iosched.runtime.openvino.openvino_model import OpenvinoModel


@dataclass(frozen=True, eq=False)
class OpenvinoBaseline(LibraryBaseline):
    """OpenVINO on the original model, with `threads` cores."""

    name = "openvino"
    label = "OpenVINO"

    @staticmethod
    def is_installed() -> bool:
        """Whether OpenVINO is installed."""
        return available()

    @property
    def version(self) -> str:
        """The version of OpenVINO."""
        return installed_version() or ""

    @property
    def text(self) -> str:
        """See `LibraryBaseline`."""
        return f"openvino {self.version}, {self.precision}"

    def _open(self) -> OpenvinoModel:
        return OpenvinoModel(self.model, self.threads, self.precision)


def open_openvino(model: Model, threads: int, inputs: Arrays) -> Candidate:
    """Opens OpenVINO on `threads` cores with its latency settings, in the model's precision. Raises as `opened`."""
    opened = OpenvinoModel(model, threads)
    return Candidate(partial(opened.time, inputs), opened.close)
