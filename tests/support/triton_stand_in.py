"""The calls of Triton's `triton_python_backend_utils` that `examples/triton/model.py` uses.

PyPI does not have that module. Each call is as the README of Triton's Python backend documents it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError:
    def __init__(self, message: str) -> None:
        self._message = message

    def message(self) -> str:
        return self._message


@dataclass
class InferenceRequest:
    given: dict[str, np.ndarray]
    requested: list[str]

    def requested_output_names(self) -> list[str]:
        return self.requested


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor] = field(default_factory=list)
    error: TritonError | None = None


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return Tensor(name, request.given[name]) if name in request.given else None


def module() -> Any:
    """What `import triton_python_backend_utils` gives in a server."""
    return SimpleNamespace(
        Tensor=Tensor,
        TritonError=TritonError,
        InferenceResponse=InferenceResponse,
        get_input_tensor_by_name=get_input_tensor_by_name,
    )
