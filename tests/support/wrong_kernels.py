"""Faults put into what runs: kernels of the CPU that compute something else than their nodes say."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from iosched.runtime.cpu import lower as cpu_lower
from iosched.runtime.cpu.kernels import Program
from iosched.runtime.cpu.programs import TaskKernel

_NAMES = "({})(_nchwc|_token_[0-9]+)?"
"""What onnxruntime and the lowering make of the names of nodes."""


def falsify(monkeypatch: pytest.MonkeyPatch, *operators: str, value: float = 3.0) -> list[str]:
    """From now on lowering makes wrong kernels of the nodes of these names; returns those that it met, as they come.

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
    """Nodes that make of what `node` computes what it shall write from now on."""
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
