"""Faults put into what runs on the CPU: kernels that compute something else, and plans that cannot be lowered."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from iosched.models.errors import ExecutionError, InvalidModelError
from iosched.runtime.cpu import backend as cpu_backend
from iosched.runtime.cpu import lower as cpu_lower
from iosched.runtime.cpu.kernels import Program
from iosched.runtime.cpu.programs import TaskKernel
from iosched.runtime.hazards import HazardError

_NAMES = "({})(_nchwc|_token_[0-9]+)?"
"""Names of nodes with the suffixes that onnxruntime and the lowering append."""


def falsify(monkeypatch: pytest.MonkeyPatch, *operators: str, value: float = 3.0) -> list[str]:
    """Makes lowering build wrong kernels for the nodes of these names; returns a list to which it appends them.

    Nodes of floats compute twice their result and `value`, those of whole numbers with weights turned upside down.
    """
    build, met = cpu_lower.build_kernel, list[str]()
    is_meant = re.compile(_NAMES.format("|".join(map(re.escape, operators)))).fullmatch

    def wrong(kernels: Any, calls: Sequence[Any], kept: Any, *, invokes: bool = False) -> TaskKernel:
        built = build(kernels, calls, kept, invokes=invokes)
        found = {name for call in calls if is_meant(name := kernels.nodes[call.node].name)}
        if not found or not isinstance(built.kernel, Program):
            return built
        met.extend(sorted(found))
        return replace(built, kernel=_falsified(built.kernel, found, value))

    monkeypatch.setattr(cpu_lower, "build_kernel", wrong)
    return met


def _falsified(program: Program, names: Collection[str], value: float) -> Program:
    proto = onnx.load_from_string(program.model)
    weights = dict(program.weights)
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        nodes.append(node)
        if node.name not in names:
            continue
        if node.op_type == "QLinearConv":
            _turn_weights(proto.graph, weights, node.input[3])
        else:
            nodes += twice_and(proto.graph, node, value)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return replace(program, write=proto.SerializeToString, weights=tuple(weights.items()), invoked=None)


def twice_and(graph: onnx.GraphProto, node: onnx.NodeProto, value: float) -> list[onnx.NodeProto]:
    """Nodes that turn the result of `node` into a wrong one."""
    true = node.output[0]
    computed, more, constant = (f"{true}/{name}" for name in ("computed", "more", "value"))
    node.output[0] = computed
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(value, np.float32), constant))
    return [
        helper.make_node("Add", [computed, constant], [more]),
        helper.make_node("Add", [more, computed], [true]),
    ]


def _turn_weights(graph: onnx.GraphProto, weights: dict[str, np.ndarray], name: str) -> None:
    if name in weights:
        weights[name] = ~weights[name]
    for tensor in graph.initializer:
        if tensor.name == name and name not in weights:
            tensor.CopyFrom(onnx.numpy_helper.from_array(~onnx.numpy_helper.to_array(tensor), name))


Plan = Sequence[Sequence[Sequence[str]]]
"""The stages of a plan, each of groups, by the names of the nodes in onnxruntime's graph."""

FAULTS = (HazardError("tasks clash"), ExecutionError("a kernel fails"), KeyError(""), InvalidModelError("no kernel"))
"""Faults that are contained: a plan that fails its check, a kernel, a bug, and a derived graph that is refused."""


def fail_where(monkeypatch: pytest.MonkeyPatch, is_meant: Callable[[Plan], bool], error: BaseException) -> None:
    """Makes lowering raise `error` for the plans that `is_meant` selects, of stages alone and of whole models."""
    lower = cpu_backend.lower

    def failing(kernels: Any, placement: Any, stages: Any, *others: Any, **settings: Any) -> Any:
        if is_meant([[[kernels.nodes[index].name for index in group] for group in groups] for groups in stages]):
            raise error
        return lower(kernels, placement, stages, *others, **settings)

    monkeypatch.setattr(cpu_backend, "lower", failing)


def is_side_by_side(plan: Plan) -> bool:
    """Whether groups run side by side."""
    return any(len(groups) > 1 for groups in plan)


def has(*operators: str) -> Callable[[Plan], bool]:
    """Whether all operators of these names are in the plan."""

    def is_meant(plan: Plan) -> bool:
        names = [name for groups in plan for group in groups for name in group]
        return all(any(name == each or name.startswith(f"{each}_") for name in names) for each in operators)

    return is_meant


is_whole = has("fs", "gs")
"""Whether it is a plan of the whole of `scripted.fire`, in which these two are far apart."""
