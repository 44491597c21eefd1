"""GPUs as cuDNN knows them: one that is attached, or the description of one that is elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from iosched.models.errors import DeviceError
from iosched.runtime.cuda.gpu.failures import first_line, how_to_install

_NEEDED = ("deviceName", "deviceVer", "multiProcessorCount")


@dataclass(frozen=True)
class GpuDescription:
    """What cuDNN's heuristics look at: enough to build plans for a GPU on a machine that has none.

    Attributes:
        properties: JSON, as `cudnn.create_device_properties(index).serialize()` gives it.
    """

    properties: str

    @classmethod
    def from_json(cls, text: str) -> GpuDescription:
        """A described GPU.

        Raises:
            DeviceError: the text is no such description.
        """
        try:
            known = json.loads(text)
        except ValueError as error:
            raise DeviceError(f"the description of the GPU is no JSON: {error}") from error
        missing = [key for key in _NEEDED if not isinstance(known, dict) or key not in known]
        if missing:
            raise DeviceError(f"the description of the GPU lacks {', '.join(missing)}")
        return cls(json.dumps(known))

    @property
    def name(self) -> str:
        """For people: "NVIDIA H100 80GB HBM3"."""
        return str(self._value("deviceName"))

    @property
    def sm_version(self) -> int:
        """Compute capability times ten: 90 for 9.0."""
        return int(self._value("deviceVer")) // 10

    def _value(self, key: str) -> Any:
        return json.loads(self.properties)[key]


CudnnTarget = GpuDescription | Any
"""Whom plans are built for: a description, or a cuDNN handle of an attached GPU (`cudnn.create_handle()`)."""


def load_cudnn() -> ModuleType:
    """cuDNN's Python frontend, with cuDNN itself found.

    Raises:
        DeviceError: one of the two is not installed.
    """
    try:
        import cudnn
    except ImportError as error:
        raise DeviceError(f"cuDNN's Python frontend is not installed; {how_to_install()}") from error
    try:
        cudnn.backend_version()
    except (RuntimeError, OSError, AttributeError) as error:
        raise DeviceError(f"cuDNN is not installed ({first_line(error)}); {how_to_install()}") from error
    return cudnn  # type: ignore[no-any-return]
