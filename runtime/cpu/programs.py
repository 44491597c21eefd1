"""Builds the sub-model of one task: one call, or several calls of one lane fused into one session."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx

from iosched.models.initializers import is_packed
from iosched.models.node_attributes import copied, has_subgraphs
from iosched.models.shapes.inference import kernel_may_differ
from iosched.runtime.cpu.calls import NodeCall
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.kernels import EXTERNAL_LOCATION, Copy, Kernel, Program, invoked_node
from iosched.runtime.plan import View

_INLINE_NBYTES = 1024
_ELEMENT_TYPES = {"float32": "FLOAT", "float64": "DOUBLE"}
_PARAMETER = re.compile(r"^(\w+)\((.*)\)$")


@dataclass(frozen=True, eq=False)
class TaskKernel:
    """A kernel with the views it reads and writes, in the kernel's order."""

    kernel: Kernel
    reads: tuple[View, ...]
    writes: tuple[View, ...]


def build_kernel(
    kernels: KernelGraph, calls: Sequence[NodeCall], kept: Iterable[str], *, invokes: bool = False
) -> TaskKernel:
    """Build the kernel that runs `calls` one after another.

    Args:
        calls: calls of one lane that `can_follow` allows in one session.
        kept: tensors that other calls read; the others stay inside the session.
        invokes: whether a single call may run without a session.
    """
    if calls[0].is_copy:
        return TaskKernel(Copy(), (calls[0].reads[0][1],), (calls[0].writes[0][1],))
    names = _LocalNames()
    keep = set(kept)
    # Two tensors may be the same bytes (one a reshape of the other), so a view does not identify a tensor.
    written = dict.fromkeys(pair for call in calls for pair in call.writes)
    read = dict.fromkeys(pair for call in calls for pair in call.reads if pair not in written)
    outputs = {pair: names.of(*pair) for pair in written if pair[0] in keep}
    inputs = {pair: names.of(*pair) for pair in read}
    weights: dict[str, np.ndarray] = {}
    nodes = [node for call in calls for node in _nodes(kernels, call, names, weights)]
    reads = {name: view for (_, view), name in inputs.items()}
    writes = {name: view for (_, view), name in outputs.items()}
    shared = tuple((name, array) for name, array in weights.items() if not _is_inline(array))
    invoked = None
    if invokes and len(nodes) == len(calls) == calls[0].cores == 1:
        invoked = invoked_node(nodes[0], kernels.opsets, reads, writes, weights)
    program = Program(
        partial(_model, kernels, nodes, list(reads.items()), list(writes.items()), weights),
        *(tuple(reads), tuple(writes), shared, calls[0].cores, invoked),
    )
    return TaskKernel(program, tuple(reads.values()), tuple(writes.values()))


class _LocalNames:
    """Names inside one session: a tensor's own name for its first slice, numbered names for others.

    Control flow captures tensors by their own names; such a node runs alone, so each of its tensors has one slice.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, View], str] = {}
        self._taken: dict[str, int] = {}

    def of(self, tensor: str, view: View) -> str:
        key = (tensor, view)
        if key not in self._names:
            name = tensor.replace("\0", "?")  # the compiled executor reads names as C strings
            count = self._taken.get(name, 0)
            self._taken[name] = count + 1
            self._names[key] = f"{name}@{count}" if count else name
        return self._names[key]


def _nodes(
    kernels: KernelGraph, call: NodeCall, names: _LocalNames, weights: dict[str, np.ndarray]
) -> Sequence[onnx.NodeProto]:
    """The nodes of the call; the constants that they read are added to `weights`."""
    node = kernels.nodes[call.node]
    if node.name not in kernels.inside:
        return (_renamed(kernels, call, names, weights),)
    # It is alone in its session, so tensors keep their names unless C strings cannot hold them.
    weights.update({name: kernels.weights[name] for name in kernels.constants[call.node]})
    local = {name: names.of(name, view) for name, view in (*call.reads, *call.writes) if "\0" in name}
    return [_with_names(each, local) for each in kernels.inside[node.name]] if local else kernels.inside[node.name]


def _renamed(
    kernels: KernelGraph, call: NodeCall, names: _LocalNames, weights: dict[str, np.ndarray]
) -> onnx.NodeProto:
    """The call's node with local names; the constants that it reads are added to `weights`."""
    source = call.share.node if call.share else kernels.nodes[call.node]
    local = {name: names.of(name, view) for name, view in (*call.reads, *call.writes)}
    sliced = call.share.weights if call.share else {}
    constants = (
        [name for name in source.input if name in kernels.weights] if call.share else kernels.constants[call.node]
    )
    for name in constants:
        array = sliced.get(name, kernels.weights[name])
        local[name] = _slice_name(name, array, kernels.weights[name])
        weights[local[name]] = array
    return _with_names(source, local)


def _with_names(source: onnx.NodeProto, local: Mapping[str, str]) -> onnx.NodeProto:
    node = copied(source)
    node.input[:] = [local.get(name, name) for name in source.input]
    node.output[:] = [local.get(name, name) for name in source.output]
    return node


def _slice_name(name: str, part: np.ndarray, whole: np.ndarray) -> str:
    if part.shape == whole.shape:
        return name
    offset = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return f"{name}@{offset}+{part.nbytes}"


def _model(
    kernels: KernelGraph,
    nodes: list[onnx.NodeProto],
    inputs: list[tuple[str, View]],
    outputs: list[tuple[str, View]],
    weights: Mapping[str, np.ndarray],
) -> bytes:
    graph = onnx.GraphProto(name="program", node=nodes)
    if any(map(kernel_may_differ, nodes)):
        # onnxruntime rejects results whose shapes differ from the inferred ones. Without input shapes it infers none,
        # and declared output shapes replace those that it infers from constants.
        inputs = [(name, replace(view, shape=None)) for name, view in inputs]
        graph.output.extend(onnx.ValueInfoProto(name=name, type=_type(view)) for name, view in outputs)
    else:
        graph.output.extend(onnx.ValueInfoProto(name=name) for name, _ in outputs)
    graph.input.extend(onnx.ValueInfoProto(name=name, type=_type(view)) for name, view in inputs)
    graph.initializer.extend(_initializer(name, array) for name, array in weights.items())
    used = {""} | {node.domain for node in nodes} | {d for node in nodes if has_subgraphs(node) for d in kernels.opsets}
    opsets = [onnx.OperatorSetIdProto(domain=d, version=v) for d, v in kernels.opsets.items() if d in used]
    proto = onnx.ModelProto(ir_version=kernels.ir_version, graph=graph, opset_import=opsets)
    return bytes(proto.SerializeToString(deterministic=True))


def _is_inline(array: np.ndarray) -> bool:
    return array.nbytes <= _INLINE_NBYTES or is_packed(array.dtype)


def _initializer(name: str, array: np.ndarray) -> onnx.TensorProto:
    if _is_inline(array):
        return onnx.numpy_helper.from_array(array, name)
    tensor = onnx.TensorProto(name=name, data_location=onnx.TensorProto.EXTERNAL)
    tensor.data_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor.dims.extend(array.shape)
    tensor.external_data.add(key="location", value=EXTERNAL_LOCATION)
    return tensor


def _type(view: View) -> onnx.TypeProto:
    """ONNX's type of a view, whose dtype may be onnxruntime's text, such as seq(tensor(float))."""
    if (match := _PARAMETER.match(view.dtype)) and match[1] in ("seq", "optional", "map"):
        return _container_type(match[1], match[2])
    name = match[2] if match else view.dtype
    element = onnx.TensorProto.DataType.Value(_ELEMENT_TYPES.get(name, name.upper()))
    return onnx.helper.make_tensor_type_proto(element, view.shape)


def _container_type(kind: str, inner: str) -> onnx.TypeProto:
    if kind == "map":
        key, _, value = inner.partition(",")
        key_type = onnx.TensorProto.DataType.Value(_ELEMENT_TYPES.get(key, key.upper()))
        return onnx.helper.make_map_type_proto(key_type, _type(View("", value.strip(), None)))
    element = _type(View("", inner, None))
    if kind == "seq":
        return onnx.helper.make_sequence_type_proto(element)
    return onnx.helper.make_optional_type_proto(element)
