"""Who runs operators that no kernel does, and where; by default onnxruntime on the CPU, on copies of the tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import starmap
from typing import Any, Protocol, runtime_checkable

import numpy as np

from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.kernel import SessionKernel
from iosched.runtime.plan import View

_NAMED = 3


class Home(StrEnum):
    """Where onnxruntime runs an operator, for people."""

    PROVIDER = "in onnxruntime's CUDA provider"
    PARTLY = "in onnxruntime's CUDA provider and partly on the CPU"
    CPU = "in onnxruntime on the CPU"
    NO_PROVIDER = "in onnxruntime on the CPU (its CUDA provider does not load: see `iosched devices`)"


@dataclass(frozen=True)
class Tensor:
    """A row-major tensor of the model's own type on the device."""

    address: int
    view: View


@runtime_checkable
class SessionRun(Protocol):
    """One operator with its tensors, ready to run as often as wanted."""

    @property
    def home(self) -> Home:
        """Where the operator runs."""
        ...

    def __call__(self, stream: Any) -> None:
        """One run after all that the stream was given before; what it is given from now on comes after the run.

        Raises:
            ExecutionError: onnxruntime fails.
        """
        ...


class Sessions(Protocol):
    """Opens the operators that no kernel does, so that onnxruntime runs them."""

    def open(self, kernel: SessionKernel, reads: Sequence[Tensor], writes: Sequence[Tensor], stream: Any) -> SessionRun:
        """`kernel` on these tensors, to be run in the order of `stream` and of no other.

        Raises:
            InvalidModelError: onnxruntime refuses the operator.
            DeviceError: onnxruntime is not installed.
        """
        ...


@dataclass(frozen=True, eq=False)
class HostSessions:
    """onnxruntime on the CPU, on copies of what is read."""

    driver: Driver
    home: Home = Home.CPU

    def open(self, kernel: SessionKernel, reads: Sequence[Tensor], writes: Sequence[Tensor], stream: Any) -> SessionRun:
        """See `Sessions`."""
        del stream
        return _HostRun(self.driver, kernel, tuple(map(_Copied.of, reads)), tuple(map(_Copied.of, writes)), self.home)


@dataclass(frozen=True, eq=False)
class _Copied:
    """A tensor on the device, and the array on the host that it is copied to or from."""

    address: int
    array: np.ndarray

    @classmethod
    def of(cls, tensor: Tensor) -> _Copied:
        return cls(tensor.address, np.empty(tensor.view.shape or (), tensor.view.dtype))


@dataclass(frozen=True, eq=False)
class _HostRun:
    driver: Driver
    kernel: SessionKernel
    reads: tuple[_Copied, ...]
    writes: tuple[_Copied, ...]
    home: Home

    def __call__(self, stream: Any) -> None:
        for each in self.reads:
            self.driver.download(each.address, each.array, stream)
        self.kernel.interpret([each.array for each in self.reads], [each.array for each in self.writes])
        for each in self.writes:
            self.driver.upload(each.address, each.array, stream)


def described(operators: Mapping[str, tuple[str, ...]], homes: Mapping[str, Home]) -> str:
    """Operators by their ONNX types and where they run: "Det 'd', 'e' in onnxruntime on the CPU"."""
    found: dict[Home, dict[str, list[str]]] = {}
    for name, kinds in operators.items():
        found.setdefault(homes[name], {}).setdefault("+".join(kinds), []).append(name)
    return "; ".join(f"{', '.join(starmap(_named, by_kind.items()))} {home}" for home, by_kind in found.items())


def _named(kind: str, names: Sequence[str]) -> str:
    """An operator's types with the first few of its names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{kind} {', '.join(map(repr, names[:_NAMED]))}{more}"
