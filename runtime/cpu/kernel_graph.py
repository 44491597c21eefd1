"""The graph that onnxruntime optimized for this machine: fused nodes in the blocked NCHWc layout.

Schedules are lowered onto this graph, not onto the model's own nodes: cuts between its nodes are bit-exact and carry
no layout conversion. It is specific to the instruction set, so it is built where it runs and never shipped.
"""

from __future__ import annotations

import mmap
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from iosched.models.errors import InvalidModelError
from iosched.models.graph import TensorSpec
from iosched.models.initializers import is_packed
from iosched.models.kernel_shapes import inferred_as_run
from iosched.models.model import Model
from iosched.models.wiring import reads
from iosched.runtime.cpu.affine_chains import join_affine
from iosched.runtime.cpu.align import align_channels
from iosched.runtime.cpu.node_order import in_one_order
from iosched.runtime.cpu.response_norm import spell_out_response_norms
from iosched.runtime.cpu.windows import take_in_windows
from iosched.runtime.cpu.working import WorkingGraph
from iosched.runtime.faults import plan_error
from iosched.runtime.reference import Reference
from iosched.runtime.session import DERIVED, lent_weights, load_onnxruntime, open_session

_NCHWC = "com.microsoft.nchwc"
_INLINE_NBYTES = 1024  # smaller constants stay in the graph, where shape inference can see them
_ELEMENT = re.compile(r"^tensor\((\w+)\)$")
_NUMPY_NAMES = {"float": "float32", "double": "float64"}


@dataclass(frozen=True, eq=False)
class SummedParts:
    """Another way to compute what a convolution does: some of the channels it reads for each core, and then the sum.

    Attributes:
        nodes: the parts, each of which writes a tensor of its own.
        edges: the channels at which the parts begin, and the last one ends.
        then: elementwise nodes, the last of which writes the result of the convolution.
    """

    nodes: tuple[onnx.NodeProto, ...]
    edges: tuple[int, ...]
    then: tuple[onnx.NodeProto, ...]


@dataclass(frozen=True, eq=False)
class SharedRows:
    """A run of nodes that cores compute by rows of the image (`shared_rows.py`).

    Attributes:
        lane_of: for results of nodes that one core runs whole, which of the cores.
        whole: the nodes of the run as they were.
        made: results of all nodes that stand for them.
    """

    lane_of: Mapping[str, int] = field(default_factory=dict)
    whole: tuple[onnx.NodeProto, ...] = ()
    made: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class AsOne:
    """Nodes that take the place of several units' nodes in a kernel graph, as its last ones."""

    nodes: tuple[onnx.NodeProto, ...]
    own: tuple[int, ...]  # all nodes that stand for the units now, new ones included
    gone: frozenset[int] = frozenset()  # nodes whose places become empty
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    tensors: Mapping[str, TensorSpec] = field(default_factory=dict)
    inside: Mapping[str, tuple[onnx.NodeProto, ...]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class KernelGraph:
    """Nodes in topological order, each one call of one onnxruntime kernel.

    Attributes:
        nodes: the optimized nodes.
        weights: constants by name, backed by one read-only mapping that all sub-sessions share.
        tensors: type and shape of every graph input and computed tensor; shape None where only the run knows it. The
            type is "" for all of them where onnxruntime does not read back what it wrote, as with some loops.
        inputs: names of the graph inputs.
        outputs: names of the graph outputs.
        opsets: operator set versions by domain.
        ir_version: of the optimized model.
        channel_block: channels in a block of the NCHWc layout on this machine, see `block_of`.
        parts: for results of convolutions that may be computed in parts, the parts. Their tensors are among `tensors`.
        rows: the nodes that are shared out between rows, where there are any.
        inside: for nodes that stand for others, by name, those others; their own places among `nodes` are empty.
    """

    nodes: tuple[onnx.NodeProto, ...]
    weights: Mapping[str, np.ndarray]
    tensors: Mapping[str, TensorSpec]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opsets: Mapping[str, int]
    ir_version: int
    channel_block: int
    parts: Mapping[str, SummedParts] = field(default_factory=dict)
    rows: SharedRows = SharedRows()
    inside: Mapping[str, tuple[onnx.NodeProto, ...]] = field(default_factory=dict)

    @property
    def is_typed(self) -> bool:
        """Whether the types of all tensors are known."""
        return all(spec.dtype for spec in self.tensors.values())

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """Index of the node that computes each tensor."""
        return {name: index for index, node in enumerate(self.nodes) for name in node.output if name}

    @cached_property
    def reads(self) -> tuple[tuple[str, ...], ...]:
        """For each node, the graph inputs and computed tensors it reads, subgraph captures included, each once."""
        known = self.tensors
        return tuple(tuple(dict.fromkeys(n for n in reads(node) if n in known)) for node in self.nodes)

    @cached_property
    def constants(self) -> tuple[tuple[str, ...], ...]:
        """For each node, the weights it reads, subgraph captures included, each once."""
        return tuple(tuple(dict.fromkeys(n for n in reads(node) if n in self.weights)) for node in self.nodes)

    @cached_property
    def readers(self) -> Mapping[str, tuple[int, ...]]:
        """For each tensor, the nodes that read it."""
        found: dict[str, list[int]] = {name: [] for name in self.tensors}
        for index, names in enumerate(self.reads):
            for name in names:
                found[name].append(index)
        return {name: tuple(indices) for name, indices in found.items()}

    def changed(self, changes: Sequence[AsOne]) -> KernelGraph:
        """The graph after all `changes`, whose new nodes stand in this order behind those that there are."""
        if not changes:
            return self
        gone = frozenset().union(*(each.gone for each in changes))
        rest = (onnx.NodeProto() if index in gone else node for index, node in enumerate(self.nodes))
        return replace(
            self,
            nodes=(*rest, *(node for each in changes for node in each.nodes)),
            weights={**self.weights, **{name: array for each in changes for name, array in each.weights.items()}},
            tensors={**self.tensors, **{name: spec for each in changes for name, spec in each.tensors.items()}},
            inside={**self.inside, **{name: nodes for each in changes for name, nodes in each.inside.items()}},
        )


def build_kernel_graph(model: Model) -> KernelGraph:
    """Lets onnxruntime optimize `model` for this machine and reads back what it made of it.

    Raises:
        InvalidModelError: onnxruntime refuses the model.
        PlanError: onnxruntime refuses only what is derived from it.
        DeviceError: onnxruntime is not installed.
    """
    block = _channel_block()
    graph = WorkingGraph(model.proto, model.weights, model.graph.tensor)
    graph = take_in_windows(join_affine(spell_out_response_norms(graph)))
    aligned = align_channels(graph, block)
    with tempfile.TemporaryDirectory(prefix="iosched-") as folder:
        path = Path(folder) / "optimized.onnx"
        _save_optimized(model, replace(model, proto=aligned.proto, weights=aligned.weights), path)
        proto = onnx.load(str(path), load_external_data=False)
        _sort(proto.graph)
        _unshare_input_reorders(proto.graph)
        weights = _map_weights(proto, path.parent)
        tensors = _infer_tensors(proto, path, aligned.tensors)
    return KernelGraph(
        nodes=tuple(proto.graph.node),
        weights=weights,
        tensors=tensors,
        inputs=tuple(value.name for value in proto.graph.input if value.name not in weights),
        outputs=tuple(value.name for value in proto.graph.output),
        opsets={entry.domain: entry.version for entry in proto.opset_import},
        ir_version=proto.ir_version,
        channel_block=block,
    )


def _save_optimized(given: Model, model: Model, path: Path) -> None:
    """Has onnxruntime optimize `model`, which was derived from `given`, and write it."""
    ort = load_onnxruntime()
    options = _quiet_options(ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    names, values, arrays = lent_weights(model)
    if names:
        options.add_external_initializers(names, values)
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = str(path)
    prefix = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(prefix + "file_name", "weights.bin")
    options.add_session_config_entry(prefix + "min_size_in_bytes", str(_INLINE_NBYTES))
    try:
        open_session(model.proto.SerializeToString(), options, called=DERIVED)
    except InvalidModelError as error:
        Reference(given).close()  # raises if the model is at fault itself
        raise plan_error("", error) from error
    del arrays  # lent until here


def _sort(graph: onnx.GraphProto) -> None:
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    del graph.node[:]
    graph.node.extend(in_one_order(nodes, [value.name for value in graph.output]))


def _unshare_input_reorders(graph: onnx.GraphProto) -> None:
    """Gives every reader of a graph input its own layout conversion.

    A conversion of a computed tensor belongs to the operator that computes it. One of a graph input belongs to a
    reader, and if several shared it, the others would have to wait for that one.
    """
    inputs = {value.name for value in graph.input}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type != "ReorderInput" or node.input[0] not in inputs:
            continue
        readers = [reader for reader in graph.node if node.output[0] in reader.input]
        nodes.extend(_own_copy(node, reader, number) for number, reader in enumerate(readers[1:], start=1))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _own_copy(node: onnx.NodeProto, reader: onnx.NodeProto, number: int) -> onnx.NodeProto:
    """A copy of `node` under a name of its own, which `reader` is made to read instead."""
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    copied.name = f"{node.name}/copy{number}"
    copied.output[0] = f"{node.output[0]}/copy{number}"
    reader.input[:] = [copied.output[0] if name == node.output[0] else name for name in reader.input]
    return copied


def _quiet_options(level: Any) -> Any:
    """Session options for looking at a graph, not for running it."""
    options = load_onnxruntime().SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def _map_weights(proto: onnx.ModelProto, folder: Path) -> dict[str, np.ndarray]:
    """Constants of the saved model. Its weight file is mapped, not read; the mapping outlives the file's name."""
    path = folder / "weights.bin"
    mapping: mmap.mmap | bytes = b""
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return {tensor.name: _weight(tensor, mapping) for tensor in proto.graph.initializer}


def _weight(tensor: onnx.TensorProto, mapping: mmap.mmap | bytes) -> np.ndarray:
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return onnx.numpy_helper.to_array(tensor)
    place = {entry.key: entry.value for entry in tensor.external_data}
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    shape = tuple(tensor.dims)
    if is_packed(dtype):
        begin, nbytes = (int(place.get(key, "0")) for key in ("offset", "length"))
        inside = onnx.TensorProto(data_type=tensor.data_type, dims=shape, raw_data=mapping[begin : begin + nbytes])
        return onnx.numpy_helper.to_array(inside)
    array = np.frombuffer(mapping, dtype, count=int(np.prod(shape)), offset=int(place.get("offset", "0")))
    return array.reshape(shape)


def _infer_tensors(proto: onnx.ModelProto, path: Path, known: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """Asks onnxruntime itself for types and shapes, since only it knows its own operators' inference.

    Some of its fused operators have none; where such a tensor kept the name it has in the model, the shape it
    had before (`known`) goes in as a hint.
    """
    inputs = [value.name for value in proto.graph.input]
    computed = [name for node in proto.graph.node for name in node.output if name]

    def specs(exposed: onnx.ModelProto) -> dict[str, TensorSpec]:
        onnx.save(exposed, str(path.with_name("exposed.onnx")))
        options = _quiet_options(load_onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL)
        session = open_session(path.with_name("exposed.onnx"), options)
        found = {value.name: value for value in (*session.get_inputs(), *session.get_outputs())}
        return {name: _spec(found[name], known) for name in (*inputs, *computed)}

    exposed = onnx.ModelProto()
    exposed.CopyFrom(proto)
    del exposed.graph.output[:]
    exposed.graph.output.extend(_hint(name, known.get(name)) for name in computed)
    try:
        return inferred_as_run(exposed, specs, lambda found: found)[1]
    except InvalidModelError:  # it took the model itself before
        return {name: TensorSpec(name, "", None) for name in (*inputs, *computed)}


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
        shape = None  # onnxruntime says the same of a single number and of a tensor of unknown rank
    return TensorSpec(value.name, dtype, shape)


@cache
def _channel_block() -> int:
    """Channels in a block of the NCHWc layout here (8 with AVX2, 16 with AVX-512), as a small convolution shows."""
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
    """Channels in a block of the layout that onnxruntime gave a convolution, by its padded weights.

    1 where it has no kernels for blocks, as on aarch64: weights are as they were, and nothing is to be padded.
    """
    if not any(node.domain == _NCHWC for node in optimized.graph.node):
        return 1
    return max(int(tensor.dims[0]) for tensor in optimized.graph.initializer if len(tensor.dims) == 4)
