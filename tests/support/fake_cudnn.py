"""A cuDNN that only records: which tensors and operations a graph gets, and which plans are asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest


class NotSupportedError(Exception):
    """The frontend's cudnnGraphNotSupportedError."""


@dataclass(eq=False)
class Tensor:
    """A tensor of a graph; `operation` is how it was computed."""

    operation: str
    operands: tuple[Tensor, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Callable[[Any], Tensor]:
        """set_dim and similar methods keep their argument in `attributes`."""
        if not name.startswith("set_"):
            raise AttributeError(name)

        def keep(value: Any) -> Tensor:
            self.attributes[name.removeprefix("set_")] = value
            return self

        return keep


@dataclass(eq=False)
class Handle:
    """A cuDNN handle with the address of its stream."""

    stream: int = 0


@dataclass(eq=False)
class Graph:
    """Offers the plans of `configurations`: cuDNN's name, and the message with which its build fails or "".

    Names that begin with "rtc" are compiled at run time.

    Attributes:
        noted: plans by cuDNN's note that they have.
        workspaces_nbytes: of plans by name; 100 times the index for others.
        appendable: engines that plans can be asked for by engine and knobs.
    """

    arguments: dict[str, Any]
    configurations: Sequence[tuple[str, str]]
    refusal: str = ""
    tensors: list[Tensor] = field(default_factory=list)
    built: list[int] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)
    execute: Callable[[str, list[int], int, Handle], None] | None = None
    loaded: bool = False
    only: int = 0
    noted: Mapping[str, Sequence[str]] = field(default_factory=dict)
    workspaces_nbytes: Mapping[str, int] = field(default_factory=dict)
    appendable: Sequence[int] = ()

    def tensor(self, **attributes: Any) -> Tensor:
        self.tensors.append(Tensor("tensor", (), {}, attributes))
        return self.tensors[-1]

    def __getattr__(self, operation: str) -> Any:
        if operation.startswith("_"):
            raise AttributeError(operation)

        def record(**arguments: Any) -> Tensor:
            operands = tuple(value for value in arguments.values() if isinstance(value, Tensor))
            rest = {key: value for key, value in arguments.items() if not isinstance(value, Tensor)}
            self.tensors.append(Tensor(operation, operands, rest))
            return self.tensors[-1]

        return record

    def validate(self) -> None:
        pass

    def build_operation_graph(self) -> None:
        pass

    def create_execution_plans(self, modes: list[str]) -> None:
        assert modes == ["A", "FALLBACK"]

    def create_execution_plan(self, engine: int, knobs: dict[int, int]) -> None:
        if engine not in self.appendable:
            raise RuntimeError("detail::finalize(engine_config) failed")
        name = "".join([f"eng{engine}", *(f"_k{knob}={value}" for knob, value in knobs.items())])
        self.configurations = [*self.configurations, (name, "")]

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        self.forbidden = notes

    def check_support(self) -> None:
        if self.refusal or not self.configurations:
            raise NotSupportedError(self.refusal or "no such engine\nat some line")

    def get_execution_plan_count(self) -> int:
        return len(self.configurations)

    def build_plan_at_index(self, index: int) -> None:
        name, message = self.configurations[index]
        if message:
            raise NotSupportedError(message)
        if any(name in self.noted.get(note, ()) for note in self.forbidden):
            raise NotSupportedError(f"Deselecting execution plan at position {index}")
        self.built.append(index)

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[str]:
        return ["RUNTIME_COMPILATION"] if self.configurations[index][0].startswith("rtc") else []

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return self.workspaces_nbytes.get(self.configurations[index][0], 100 * index)

    def get_plan_name_at_index(self, index: int) -> str:
        assert not self.loaded, "the frontend crashes"
        return self.configurations[index][0]

    def serialize(self) -> list[int]:
        return list(f"{self.built[-1]} {self.configurations[self.built[-1]][0]}".encode())

    def deserialize(self, handle: object, content: list[int]) -> None:
        index, name = bytes(content).decode().split()
        if self.configurations[int(index)][0] != name:
            raise RuntimeError("of another cuDNN")
        self.loaded, self.only = True, int(index)

    def get_workspace_size(self) -> int:
        return 100 * self.only

    def execute_plan_at_index(self, tensors: dict[int, int], workspace: int, index: int, handle: Handle) -> None:
        if self.execute is not None:
            name = self.configurations[self.only if self.loaded else index][0]
            self.execute(name, list(tensors.values()), workspace, handle)


NOTES = (
    *("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC"),
    *("FFT", "WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13"),
)


def install(
    monkeypatch: pytest.MonkeyPatch,
    configurations: Sequence[tuple[str, str]] = (),
    refusal: str = "",
    execute: Callable[[str, list[int], int, Handle], None] | None = None,
    **facts: Any,
) -> list[Graph]:
    """Makes this module's cuDNN the one that is imported; returns the graphs that will be made.

    Args:
        execute: called for every run of a plan: its name, the tensors' addresses, the workspace's, and the handle.
        facts: attributes of these graphs.
    """
    graphs: list[Graph] = []

    def pygraph(**arguments: Any) -> Graph:
        graphs.append(Graph(arguments, list(configurations), refusal, execute=execute, **facts))
        return graphs[-1]

    def set_stream(handle: Handle, stream: int) -> None:
        handle.stream = stream

    module = SimpleNamespace(
        backend_version=lambda: 91900,
        create_device_properties=lambda text: f"properties {len(text)}",
        cudnnGraphNotSupportedError=NotSupportedError,
        data_type=SimpleNamespace(HALF="half", FLOAT="float"),
        heur_mode=SimpleNamespace(A="A", FALLBACK="FALLBACK"),
        knob_type=SimpleNamespace(TILE_SIZE=2, IDX_MODE=18),
        behavior_note=SimpleNamespace(RUNTIME_COMPILATION="RUNTIME_COMPILATION"),
        create_handle=Handle,
        set_stream=set_stream,
        numerical_note=SimpleNamespace(__members__={name: name for name in NOTES}),
        pygraph=pygraph,
    )
    monkeypatch.setitem(sys.modules, "cudnn", module)  # type: ignore[arg-type]
    return graphs
