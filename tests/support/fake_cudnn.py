"""A cuDNN that only records: which tensors and operations a graph gets, and which plans are asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest


class NotSupportedError(Exception):
    """What the frontend calls cudnnGraphNotSupportedError."""


class Knob(Enum):
    """Knobs by the frontend's names."""

    TILE_SIZE = 2
    STAGES = 7


@dataclass(eq=False)
class Tensor:
    """A tensor of a graph; how it was computed stands in `operation`."""

    operation: str
    operands: tuple[Tensor, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)

    def set_output(self, value: bool) -> Tensor:
        self.attributes["output"] = value
        return self

    def set_data_type(self, value: str) -> Tensor:
        self.attributes["data_type"] = value
        return self

    def set_uid(self, value: int) -> Tensor:
        self.attributes["uid"] = value
        return self

    def set_dim(self, value: list[int]) -> None:
        self.attributes["dim"] = value

    def set_stride(self, value: list[int]) -> None:
        self.attributes["stride"] = value


@dataclass(eq=False)
class Graph:
    """Offers the plans of `configurations`: engine, knobs, and the message with which its build fails or ""."""

    arguments: dict[str, Any]
    configurations: Sequence[tuple[int, dict[Knob, int], str]]
    refusal: str = ""
    tensors: list[Tensor] = field(default_factory=list)
    built: list[int] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)

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

    def create_execution_plan(self, engine: int, knobs: dict[Knob, int]) -> None:
        self.configurations = [each for each in self.configurations if each[:2] == (engine, knobs)]

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        self.forbidden = notes

    def check_support(self) -> None:
        if self.refusal or not self.configurations:
            raise NotSupportedError(self.refusal or "no such engine\nat some line")

    def get_execution_plan_count(self) -> int:
        return len(self.configurations)

    def build_plan_at_index(self, index: int) -> None:
        if message := self.configurations[index][2]:
            raise NotSupportedError(message)
        self.built.append(index)

    def get_engine_and_knobs_at_index(self, index: int) -> tuple[int, dict[Knob, int]]:
        return self.configurations[index][:2]

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return 100 * index

    def get_plan_name_at_index(self, index: int) -> str:
        return f"eng{self.configurations[index][0]}"


NOTES = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC", "WINOGRAD_TILE_13x13")


def install(
    monkeypatch: pytest.MonkeyPatch, configurations: Sequence[tuple[int, dict[Knob, int], str]] = (), refusal: str = ""
) -> list[Graph]:
    """Makes this module's cuDNN the one that is imported; returns the graphs that will be made."""
    graphs: list[Graph] = []

    def pygraph(**arguments: Any) -> Graph:
        graphs.append(Graph(arguments, list(configurations), refusal))
        return graphs[-1]

    module = SimpleNamespace(
        backend_version=lambda: 91900,
        create_device_properties=lambda text: f"properties {len(text)}",
        cudnnGraphNotSupportedError=NotSupportedError,
        data_type=SimpleNamespace(HALF="half", FLOAT="float"),
        heur_mode=SimpleNamespace(A="A", FALLBACK="FALLBACK"),
        knob_type=Knob,
        numerical_note=SimpleNamespace(__members__={name: name for name in NOTES}),
        pygraph=pygraph,
    )
    monkeypatch.setitem(sys.modules, "cudnn", module)  # type: ignore[arg-type]
    return graphs
