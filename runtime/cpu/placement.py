"""Which tensors of a kernel graph live in another tensor's buffer.

At batch 1 the operands of a Concat are written straight into its buffer, and Split, Reshape and their kin become views.
A convolution that adds to another tensor, which nobody reads afterwards, does so where that lies: else onnxruntime's
kernel copies it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx

from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import integer
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.rewrite.blocked import NCHWC
from iosched.runtime.placement import Homes, Placement
from iosched.runtime.plan import View

_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})


def place_tensors(kernels: KernelGraph) -> Placement:
    """Decides the storage of every tensor of `kernels`; O(nodes + edges) for each convolution that adds."""
    homes = Homes({name: spec.nbytes for name, spec in kernels.tensors.items() if spec.is_static})
    elided: set[int] = set()
    left: dict[int, Sequence[tuple[str, int]]] = {}
    for index, node in enumerate(kernels.nodes):
        if node.domain:
            continue
        if node.op_type in _RESHAPES and _view_reshape(kernels, node, homes):
            elided.add(index)
        if node.op_type == "Split" and _view_split(kernels, node, homes):
            elided.add(index)
        if node.op_type == "Slice" and _view_slice(kernels, node, homes):
            elided.add(index)
    for index, node in enumerate(kernels.nodes):
        if node.op_type == "Concat" and not node.domain and _is_contiguous_concat(kernels, node):
            elided.add(index)
            left[index] = homes.join(node.input, node.output[0], lambda name, _: _is_movable(kernels, name))
    for index in _adding(kernels):
        _add_in_place(kernels, index, homes)
    views = {name: _view(spec, *homes.resolve(name)) for name, spec in kernels.tensors.items()}
    copies = {
        index: tuple((name, _view(kernels.tensors[name], target.buffer, target.offset + at)) for name, at in own)
        for index, own in left.items()
        for target in (views[kernels.nodes[index].output[0]],)
    }
    return Placement(views, frozenset(elided), copies)


def _view(spec: TensorSpec, root: str, offset: int) -> View:
    return View(root, spec.dtype, spec.shape if spec.is_static else None, offset, spec.nbytes if spec.is_static else 0)


def _is_movable(kernels: KernelGraph, name: str) -> bool:
    """Whether a tensor may live in another's buffer: it is computed, of known size, and no output of the model."""
    spec = kernels.tensors.get(name)
    return spec is not None and spec.is_static and name not in kernels.outputs and name not in kernels.inputs


def _view_reshape(kernels: KernelGraph, node: onnx.NodeProto, homes: Homes) -> bool:
    source, result = node.input[0], node.output[0]
    if source not in kernels.tensors or not kernels.tensors[source].is_static or not _is_movable(kernels, result):
        return False
    if any(name in kernels.tensors for name in node.input[1:]):
        return False
    homes.move(result, source, 0)
    return True


def _view_split(kernels: KernelGraph, node: onnx.NodeProto, homes: Homes) -> bool:
    source = node.input[0]
    spec = kernels.tensors.get(source)
    if spec is None or not spec.is_static or not all(_is_movable(kernels, name) for name in node.output):
        return False
    shape = spec.shape or ()
    axis = integer(node, "axis") % len(shape)
    if prod(shape[:axis]) != 1 or any(name in kernels.tensors for name in node.input[1:]):
        return False
    for name, offset in zip(node.output, homes.columns(node.output), strict=True):
        homes.move(name, source, offset)
    return True


def _view_slice(kernels: KernelGraph, node: onnx.NodeProto, homes: Homes) -> bool:
    """A Slice along the first axis that is not 1."""
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
    homes.move(result, node.input[0], slice(first, stop).indices(shape[axis])[0] * nbytes)
    return True


def _adding(kernels: KernelGraph) -> list[int]:
    """The convolutions that add their result to another tensor."""
    return [
        index for index, node in enumerate(kernels.nodes)
        if (node.domain, node.op_type) == (NCHWC, "Conv") and any(node.input[3:4])
    ]  # fmt: skip


def _add_in_place(kernels: KernelGraph, index: int, homes: Homes) -> None:
    """Lets the result live where what is added to does, if that is a whole buffer that only earlier nodes read.

    Earlier are those on whose results the node depends: whatever the schedule, they run before it.
    """
    node = kernels.nodes[index]
    added, result = node.input[3], node.output[0]
    if not all(_is_movable(kernels, name) for name in (added, result)) or result in homes.host:
        return
    root, _ = homes.resolve(added)
    inside = {name for name in homes.nbytes if homes.resolve(name)[0] == root}
    if not inside.isdisjoint((*kernels.inputs, *kernels.outputs, *node.input[:1], result)):
        return
    if (
        not homes.nbytes[root] == homes.nbytes[added] == homes.nbytes[result]
        or kernels.tensors[root].dtype != "float32"
    ):
        return
    others = {reader for name in inside for reader in kernels.readers[name]} - {index}
    if others <= _before(kernels, index):
        homes.move(result, added, 0)


def _before(kernels: KernelGraph, index: int) -> set[int]:
    """All nodes on whose results a node depends."""
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
