"""A part of a model: some of its operators, what they read, and what others read of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from iosched.models.graph import Operator, TensorSpec
from iosched.models.model import Model
from iosched.models.wiring import reads, writes

Groups = tuple[tuple[str, ...], ...]
"""Operators by name, those of each group in order."""


@dataclass(frozen=True, eq=False)
class Part:
    """Operators of a model as nodes, which may have been changed since.

    Attributes:
        groups: the operators by name.
        members: for each operator its nodes, by name.
        nodes: in topological order.
        weights: what the nodes read and nobody computes, by name.
        inputs: what they read that is computed before them, or fed.
        outputs: what others read of them, or the model returns.
        returned: those of the outputs that the model returns.
        tensors: types and shapes of all that the nodes read and write, as far as they are known; no weights.
        opsets: the versions of operator sets, by domain.
        ir_version: of the model.
    """

    groups: Groups
    members: Mapping[str, tuple[str, ...]]
    nodes: tuple[onnx.NodeProto, ...]
    weights: Mapping[str, np.ndarray]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    returned: frozenset[str]
    tensors: Mapping[str, TensorSpec]
    opsets: Mapping[str, int]
    ir_version: int

    def of(self, operator: str) -> tuple[onnx.NodeProto, ...]:
        """The nodes of an operator, in topological order."""
        own = set(self.members[operator])
        return tuple(node for node in self.nodes if node.name in own)

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of a tensor or of a weight; () where it is not known."""
        if tensor in self.weights:
            return tuple(self.weights[tensor].shape)
        spec = self.tensors.get(tensor)
        return () if spec is None else spec.shape or ()

    def changed(
        self,
        nodes: Mapping[str, onnx.NodeProto],
        weights: Mapping[str, np.ndarray],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> Part:
        """The part with other nodes in the places of those of these names, more weights, and other shapes of tensors.

        Weights that no node reads any more are left out.
        """
        placed = tuple(nodes.get(node.name, node) for node in self.nodes)
        used = {name for node in placed for name in reads(node)}

        def reshaped(spec: TensorSpec) -> TensorSpec:
            return replace(spec, shape=shapes.get(spec.name, spec.shape))

        return replace(
            self,
            nodes=placed,
            weights={name: array for name, array in {**self.weights, **weights}.items() if name in used},
            outputs=tuple(map(reshaped, self.outputs)),
            tensors={name: reshaped(spec) for name, spec in self.tensors.items()},
        )


def part_of(model: Model, groups: Sequence[Sequence[str]]) -> Part:
    """The operators of `groups`, as they are in `model`; O(nodes and edges of the model).

    Raises:
        KeyError: the model has no such operator.
    """
    operators = [model.graph.by_name[name] for group in groups for name in group]
    members = {node for operator in operators for node in operator.nodes}
    nodes = tuple(node for node in model.proto.graph.node if node.name in members)
    made = {name for node in nodes for name in writes(node)}
    used = {name for node in model.proto.graph.node if node.name not in members for name in reads(node)}
    returned = frozenset(made.intersection(model.graph.outputs))
    tensors = model.graph.tensor
    met = dict.fromkeys(name for node in nodes for name in (*reads(node), *writes(node)))
    read = [name for name in met if name not in made]
    return Part(
        groups=tuple(map(tuple, groups)),
        members={operator.name: operator.nodes for operator in operators},
        nodes=nodes,
        weights={name: model.weights[name] for name in read if name in model.weights},
        inputs=tuple(tensors[name] for name in read if name in tensors),
        outputs=tuple(tensors[name] for name in _read_outside(operators, made, used | returned)),
        returned=returned,
        tensors={name: tensors[name] for name in met if name in tensors},
        opsets={entry.domain: entry.version for entry in model.proto.opset_import},
        ir_version=model.proto.ir_version,
    )


def _read_outside(operators: Sequence[Operator], made: set[str], used: set[str] | frozenset[str]) -> Sequence[str]:
    inside = [name for operator in operators for name in operator.outputs]
    return list(dict.fromkeys(name for name in (*inside, *sorted(made)) if name in made and name in used))
