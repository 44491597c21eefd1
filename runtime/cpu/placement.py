"""Where each tensor lives: its own buffer, or a slice of another tensor's buffer.

Nodes that only move bytes disappear here: at batch 1 the operands of a Concat are written straight into its buffer, and
Split, Reshape and their kin become views.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import onnx

from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import integer
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.plan import Buffer, Space, View

_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})


@dataclass(frozen=True, eq=False)
class Placement:
    """Storage of every tensor of a kernel graph.

    Attributes:
        views: for each tensor, the bytes that hold it.
        elided: nodes that need no kernel.
        copies: for elided Concat nodes, operands that must still be copied: (operand, destination).
    """

    views: Mapping[str, View]
    elided: frozenset[int]
    copies: Mapping[int, tuple[tuple[str, View], ...]]
    spaces: Mapping[str, Space]

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Tensors in whose buffers others live."""
        return frozenset(view.buffer for name, view in self.views.items() if view.buffer != name)

    def buffer(self, name: str) -> Buffer:
        """The storage called `name`, not yet placed in the arena."""
        return Buffer(name, self.spaces[name], self.views[name].nbytes)


@dataclass
class _Draft:
    """Roots and byte offsets while they are still being joined."""

    root: dict[str, str]
    offset: dict[str, int]

    def resolve(self, name: str) -> tuple[str, int]:
        offset = 0
        while self.root[name] != name:
            offset += self.offset[name]
            name = self.root[name]
        return name, offset

    def move(self, name: str, root: str, offset: int) -> None:
        self.root[name], self.offset[name] = root, offset


def place_tensors(kernels: KernelGraph) -> Placement:
    """Decides the storage of every tensor of `kernels`; O(nodes + edges)."""
    draft = _Draft({name: name for name in kernels.tensors}, dict.fromkeys(kernels.tensors, 0))
    elided: set[int] = set()
    copies: dict[int, tuple[tuple[str, int], ...]] = {}
    for index, node in enumerate(kernels.nodes):
        if node.domain:
            continue
        if node.op_type in _RESHAPES and _view_reshape(kernels, node, draft):
            elided.add(index)
        if node.op_type == "Split" and _view_split(kernels, node, draft):
            elided.add(index)
    for index, node in enumerate(kernels.nodes):
        if node.op_type == "Concat" and not node.domain and _is_contiguous_concat(kernels, node):
            elided.add(index)
            copies[index] = tuple(_place_operands(kernels, node, draft))
    return _finish(kernels, draft, frozenset(elided), copies)


def _finish(
    kernels: KernelGraph, draft: _Draft, elided: frozenset[int], copies: Mapping[int, tuple[tuple[str, int], ...]]
) -> Placement:
    views = {name: _view(spec, *draft.resolve(name)) for name, spec in kernels.tensors.items()}
    spaces = {name: _space(kernels, spec) for name, spec in kernels.tensors.items()}
    destinations = {
        index: tuple(
            (name, _inside(views[kernels.nodes[index].output[0]], kernels.tensors[name], offset))
            for name, offset in found
        )
        for index, found in copies.items()
    }
    return Placement(views, elided, destinations, spaces)


def _view(spec: TensorSpec, root: str, offset: int) -> View:
    return View(root, spec.dtype, spec.shape if spec.is_static else None, offset, spec.nbytes if spec.is_static else 0)


def _inside(outer: View, spec: TensorSpec, offset: int) -> View:
    return View(outer.buffer, spec.dtype, spec.shape, outer.offset + offset, spec.nbytes)


def _space(kernels: KernelGraph, spec: TensorSpec) -> Space:
    if spec.name in kernels.inputs:
        return Space.INPUT
    if not spec.is_static:
        return Space.DYNAMIC
    return Space.OUTPUT if spec.name in kernels.outputs else Space.ARENA


def _is_movable(kernels: KernelGraph, name: str) -> bool:
    """Whether a tensor may live in another's buffer: it is computed, its size is known, nobody outside expects it."""
    spec = kernels.tensors.get(name)
    return spec is not None and spec.is_static and name not in kernels.outputs and name not in kernels.inputs


def _view_reshape(kernels: KernelGraph, node: onnx.NodeProto, draft: _Draft) -> bool:
    source, result = node.input[0], node.output[0]
    if source not in kernels.tensors or not kernels.tensors[source].is_static or not _is_movable(kernels, result):
        return False
    if any(name in kernels.tensors for name in node.input[1:]):
        return False
    draft.move(result, source, 0)
    return True


def _view_split(kernels: KernelGraph, node: onnx.NodeProto, draft: _Draft) -> bool:
    source = node.input[0]
    spec = kernels.tensors.get(source)
    if spec is None or not spec.is_static or not all(_is_movable(kernels, name) for name in node.output):
        return False
    shape = spec.shape or ()
    axis = integer(node, "axis") % len(shape)
    if prod(shape[:axis]) != 1 or any(name in kernels.tensors for name in node.input[1:]):
        return False
    offset = 0
    for name in node.output:
        draft.move(name, source, offset)
        offset += kernels.tensors[name].nbytes
    return True


def _is_contiguous_concat(kernels: KernelGraph, node: onnx.NodeProto) -> bool:
    result = kernels.tensors[node.output[0]]
    if not result.is_static or not all(n in kernels.tensors and kernels.tensors[n].is_static for n in node.input):
        return False
    shape = result.shape or ()
    axis = integer(node, "axis") % len(shape)
    return prod(shape[:axis]) == 1


def _place_operands(kernels: KernelGraph, node: onnx.NodeProto, draft: _Draft) -> list[tuple[str, int]]:
    """Moves the operands that can move into the Concat's buffer; returns the others with their offsets in it."""
    result = node.output[0]
    left: list[tuple[str, int]] = []
    offset = position = 0
    while position < len(node.input):
        whole = _whole_buffer(kernels, list(node.input[position:]), draft)
        if whole and _is_movable(kernels, whole[0]) and draft.resolve(result)[0] != whole[0]:
            draft.move(whole[0], result, offset)
            taken = whole[1]
        else:
            left.append((node.input[position], offset))
            taken = 1
        offset += sum(kernels.tensors[name].nbytes for name in node.input[position : position + taken])
        position += taken
    return left


def _whole_buffer(kernels: KernelGraph, operands: list[str], draft: _Draft) -> tuple[str, int] | None:
    """The root buffer that the first operands, in order, fill exactly, and how many they are."""
    root, _ = draft.resolve(operands[0])
    end = 0
    for count, name in enumerate(operands, start=1):
        if draft.resolve(name) != (root, end):
            return None
        end += kernels.tensors[name].nbytes
        if end == kernels.tensors[root].nbytes:
            return root, count
    return None
