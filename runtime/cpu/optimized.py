"""The graph that onnxruntime optimizes for this machine: fused nodes in the blocked NCHWc layout.

It depends on the instruction set, so it is built where it runs.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.errors import InvalidModelError
from iosched.models.graph import TensorSpec
from iosched.models.initializers import is_external, read_weights
from iosched.models.model import INLINE_NBYTES, Model
from iosched.models.node_attributes import copied
from iosched.models.shapes.inference import infer_as_run
from iosched.models.wiring import producers, reads, replace_nodes, writes
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.rewrite import model_rewrites
from iosched.runtime.cpu.rewrite.blocked import NCHWC
from iosched.runtime.faults import plan_error
from iosched.runtime.reference import Reference
from iosched.runtime.session import DERIVED, external_weights, load_onnxruntime, open_session

_ELEMENT = re.compile(r"^tensor\((\w+)\)$")
_NUMPY_NAMES = {"float": "float32", "double": "float64"}


def build_kernel_graph(model: Model) -> KernelGraph:
    """Let onnxruntime optimize `model` for this machine and read the result.

    Raises:
        InvalidModelError: onnxruntime refuses the model.
        PlanError: onnxruntime accepts the model, but refuses the graph derived from it.
        DeviceError: onnxruntime is not installed.
    """
    block = _channel_block()
    graph = EditableGraph.of(model.proto, model.weights, model.graph.tensor)
    for rewrite in model_rewrites(block):
        rewrite(graph)
    graph = _optimized(model, graph)
    return KernelGraph(graph, graph.nodes, block)


def _optimized(model: Model, graph: EditableGraph) -> EditableGraph:
    with tempfile.TemporaryDirectory(prefix="iosched-") as folder:
        path = Path(folder) / "optimized.onnx"
        _save_optimized(model, graph, path)
        proto = onnx.load(str(path), load_external_data=False)
        stored = {tensor.name: tensor for tensor in proto.graph.initializer if is_external(tensor)}
        weights = read_weights(proto, path)  # the mapping outlives the file's name
        replace_nodes(proto.graph, in_one_order(proto.graph.node, [value.name for value in proto.graph.output]))
        found = EditableGraph.of(proto, weights, is_own=True)
        _unshare_input_reorders(found)
        found.tensors = _infer_tensors(found, stored, path, graph.tensors)
    return found


def _save_optimized(model: Model, graph: EditableGraph, path: Path) -> None:
    options = _quiet_options(load_onnxruntime().GraphOptimizationLevel.ORT_ENABLE_ALL)
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = str(path)
    prefix = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(prefix + "file_name", "weights.bin")
    options.add_session_config_entry(prefix + "min_size_in_bytes", str(INLINE_NBYTES))
    proto = graph.to_proto()
    names, values, arrays = external_weights(proto, graph.weights)
    if names:
        options.add_external_initializers(names, values)
    try:
        open_session(proto.SerializeToString(), options, called=DERIVED)
    except InvalidModelError as error:
        Reference(model).close()  # raises if the model itself is at fault
        raise plan_error("", error) from error
    del arrays  # the session needs them until here


def in_one_order(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """The nodes in a topological order that depends on neither names nor input order; O(nodes + edges).

    onnxruntime visits some nodes in the order of their addresses, so it writes the same graph in several orders.
    The order decides which node reads a tensor first (`handovers.py`), and so the signatures of stages.

    Each graph output follows directly after everything it needs; a node's operands are computed in the order of its
    inputs. Nodes that no output needs come last, in their original order.
    """
    producer = producers(nodes)
    done: dict[int, None] = {}
    left = [*reversed(range(len(nodes))), *(producer[name] for name in reversed(outputs) if name in producer)]
    while left:
        index = left.pop()
        if index in done:
            continue
        needed = [producer[name] for name in reads(nodes[index]) if name in producer]
        missing = [each for each in needed if each not in done]
        if missing:
            left += [index, *reversed(missing)]
        else:
            done[index] = None
    return [nodes[index] for index in done]


def _unshare_input_reorders(graph: EditableGraph) -> None:
    """Give every reader of a graph input its own layout conversion.

    Otherwise the other readers would wait for the reader whose unit contains the conversion.
    """
    for node in graph.nodes:
        if node.op_type != "ReorderInput" or node.input[0] not in graph.inputs:
            continue
        shared = node.output[0]
        readers = [reader for reader in graph.nodes if shared in reader.input]
        for number, reader in reversed([*enumerate(readers)][1:]):
            made = copied(node)
            made.name, made.output[0] = f"{node.name}/copy{number}", f"{shared}/copy{number}"
            graph.insert_after(shared, made)
            own = [made.output[0] if name == shared else name for name in reader.input]
            graph.set_inputs(node_name(reader), own)


def _quiet_options(level: Any) -> Any:
    options = load_onnxruntime().SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def _infer_tensors(
    graph: EditableGraph, stored: Mapping[str, onnx.TensorProto], path: Path, known: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec]:
    """Ask onnxruntime for types and shapes, since only it can infer those of its own operators.

    Some of its fused operators have no inference; a tensor that keeps its name from the model gets its known shape
    as a hint.

    Args:
        stored: large initializers by name, in their stored form.
        path: a file in the folder where they are stored.
    """
    computed = [name for node in graph.nodes for name in writes(node)]

    def specs(exposed: EditableGraph) -> dict[str, TensorSpec]:
        proto = exposed.to_proto()
        for tensor in proto.graph.initializer:
            tensor.CopyFrom(stored.get(tensor.name, tensor))
        onnx.save(proto, str(path))
        session = open_session(path, _quiet_options(load_onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL))
        found = {value.name: value for value in (*session.get_inputs(), *session.get_outputs())}
        return {name: _spec(found[name], known) for name in (*graph.inputs, *computed)}

    exposed = graph.copy()
    exposed.outputs = {name: _hint(name, known.get(name)) for name in computed}
    try:
        return infer_as_run(exposed, specs, lambda found: found)[1]
    except InvalidModelError:  # it accepted the model itself
        return {name: TensorSpec(name, "", None) for name in (*graph.inputs, *computed)}


def _hint(name: str, spec: TensorSpec | None) -> onnx.ValueInfoProto:
    if spec is None or not spec.is_static:
        return onnx.ValueInfoProto(name=name)
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return onnx.helper.make_tensor_value_info(name, element, spec.shape)


def _spec(value: Any, known: Mapping[str, TensorSpec]) -> TensorSpec:
    match = _ELEMENT.match(value.type)
    dtype = _NUMPY_NAMES.get(match[1], match[1]) if match else value.type
    shape = tuple(value.shape) if match and value.shape is not None else None
    if shape is not None and not all(isinstance(size, int) and size >= 0 for size in shape):
        shape = None
    if shape == () and (value.name not in known or known[value.name].shape != ()):
        shape = None  # onnxruntime reports scalars and unknown ranks the same way
    return TensorSpec(value.name, dtype, shape)


@cache
def _channel_block() -> int:
    """Channels in a block of the NCHWc layout (8 with AVX2, 16 with AVX-512), from a small convolution."""
    weight = onnx.numpy_helper.from_array(np.ones((8, 3, 1, 1), np.float32), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Conv", ["x", "w"], ["y"])],
        "probe",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 4, 4])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [weight],
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    options = _quiet_options(load_onnxruntime().GraphOptimizationLevel.ORT_ENABLE_ALL)
    with tempfile.TemporaryDirectory(prefix="iosched-") as folder:
        options.optimized_model_filepath = str(Path(folder) / "probe.onnx")
        open_session(proto.SerializeToString(), options)
        saved = onnx.load(options.optimized_model_filepath)
    return block_of(saved)


def block_of(optimized: onnx.ModelProto) -> int:
    """Channels in a block of the layout that onnxruntime gave a convolution, from its padded weights.

    1 if it has no blocked kernels, as on aarch64: nothing is padded then.
    """
    if not any(node.domain == NCHWC for node in optimized.graph.node):
        return 1
    return max(int(tensor.dims[0]) for tensor in optimized.graph.initializer if len(tensor.dims) == 4)
