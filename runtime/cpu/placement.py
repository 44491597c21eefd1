"""Decides which tensors of a kernel graph are stored in another tensor's buffer.

At batch 1, operands of a Concat are written directly into its buffer, and Split, Reshape and the like become views. A
convolution adds in place to a tensor with no later reader; otherwise onnxruntime's kernel copies the tensor first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx

from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import integer
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.rewrite.blocked import NCHWC
from iosched.runtime.placement import Placement, StorageMap
from iosched.runtime.plan import View

_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})


def place_tensors(kernels: KernelGraph) -> Placement:
    """Decide the storage of every tensor of `kernels`; O(nodes + edges) for each convolution that adds."""
    storage = StorageMap({name: spec.nbytes for name, spec in kernels.tensors.items() if spec.is_static})
    elided: set[int] = set()
    left: dict[int, Sequence[tuple[str, int]]] = {}
    for index, node in enumerate(kernels.nodes):
        if node.domain:
            continue
        if node.op_type in _RESHAPES and _view_reshape(kernels, node, storage):
            elided.add(index)
        if node.op_type == "Split" and _view_split(kernels, node, storage):
            elided.add(index)
        if node.op_type == "Slice" and _view_slice(kernels, node, storage):
            elided.add(index)
    for index, node in enumerate(kernels.nodes):
        if node.op_type == "Concat" and not node.domain and _is_contiguous_concat(kernels, node):
            elided.add(index)
            left[index] = storage.join(node.input, node.output[0], lambda name, _: _is_movable(kernels, name))
    for index in _adding(kernels):
        _add_in_place(kernels, index, storage)
    views = {name: _view(spec, *storage.resolve(name)) for name, spec in kernels.tensors.items()}
    copies = {
        index: tuple((name, _view(kernels.tensors[name], target.buffer, target.offset + at)) for name, at in own)
        for index, own in left.items()
        for target in (views[kernels.nodes[index].output[0]],)
    }
    return Placement(views, frozenset(elided), copies)


def _view(spec: TensorSpec, root: str, offset: int) -> View:
    return View(root, spec.dtype, spec.shape if spec.is_static else None, offset, spec.nbytes if spec.is_static else 0)


def _is_movable(kernels: KernelGraph, name: str) -> bool:
    """Whether a tensor may be stored in another's buffer: computed, of known size, and no output of the model."""
    spec = kernels.tensors.get(name)
    return spec is not None and spec.is_static and name not in kernels.outputs and name not in kernels.inputs


def _view_reshape(kernels: KernelGraph, node: onnx.NodeProto, storage: StorageMap) -> bool:
    source, result = node.input[0], node.output[0]
    if source not in kernels.tensors or not kernels.tensors[source].is_static or not _is_movable(kernels, result):
        return False
    if any(name in kernels.tensors for name in node.input[1:]):
        return False
    storage.move(result, source, 0)
    return True


def _view_split(kernels: KernelGraph, node: onnx.NodeProto, storage: StorageMap) -> bool:
    source = node.input[0]
    spec = kernels.tensors.get(source)
    if spec is None or not spec.is_static or not all(_is_movable(kernels, name) for name in node.output):
        return False
    shape = spec.shape or ()
    axis = integer(node, "axis") % len(shape)
    if prod(shape[:axis]) != 1 or any(name in kernels.tensors for name in node.input[1:]):
        return False
    for name, offset in zip(node.output, storage.columns(node.output), strict=True):
        storage.move(name, source, offset)
    return True


def _view_slice(kernels: KernelGraph, node: onnx.NodeProto, storage: StorageMap) -> bool:
    source, result = kernels.tensors.get(node.input[0]), node.output[0]
    constants = [kernels.weights.get(name) for name in node.input[1:] if name]
    if source is None or not source.is_static or not _is_movable(kernels, result) or len(node.input) < 4:
        return False
    if any(array is None or array.size != 1 for array in constants):
        return False
    first, stop, axis, *step = (int(array.reshape(-1)[0]) for array in constants if array is not None)
    shape = source.shape or ()
    axis %= len(shape)
    if prod(shape[:axis]) != 1 or step not in ([], [1]) or not node.input[3]:
        return False
    nbytes = source.nbytes // max(shape[axis], 1)
    storage.move(result, node.input[0], slice(first, stop).indices(shape[axis])[0] * nbytes)
    return True


def _adding(kernels: KernelGraph) -> list[int]:
    return [
        index for index, node in enumerate(kernels.nodes)
        if (node.domain, node.op_type) == (NCHWC, "Conv") and any(node.input[3:4])
    ]  # fmt: skip


def _add_in_place(kernels: KernelGraph, index: int, storage: StorageMap) -> None:
    """Store the result in the summand's buffer, if the summand fills it and only preceding nodes read it.

    Preceding nodes are those that the node depends on: they run first in any schedule.
    """
    node = kernels.nodes[index]
    added, result = node.input[3], node.output[0]
    if not all(_is_movable(kernels, name) for name in (added, result)) or result in storage.host:
        return
    root, _ = storage.resolve(added)
    inside = {name for name in storage.nbytes if storage.resolve(name)[0] == root}
    if not inside.isdisjoint((*kernels.inputs, *kernels.outputs, *node.input[:1], result)):
        return
    if (
        not storage.nbytes[root] == storage.nbytes[added] == storage.nbytes[result]
        or kernels.tensors[root].dtype != "float32"
    ):
        return
    others = {reader for name in inside for reader in kernels.readers[name]} - {index}
    if others <= _before(kernels, index):
        storage.move(result, added, 0)


def _before(kernels: KernelGraph, index: int) -> set[int]:
    found: set[int] = set()
    left = [index]
    while left:
        made_by = {kernels.producer[name] for name in kernels.reads[left.pop()] if name in kernels.producer}
        left += made_by - found
        found |= made_by
    return found


def _is_contiguous_concat(kernels: KernelGraph, node: onnx.NodeProto) -> bool:
    result = kernels.tensors[node.output[0]]
    if not result.is_static or not all(n in kernels.tensors and kernels.tensors[n].is_static for n in node.input):
        return False
    shape = result.shape or ()
    axis = integer(node, "axis") % len(shape)
    return prod(shape[:axis]) == 1
