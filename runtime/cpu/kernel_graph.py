"""The graph that schedules are lowered to: onnxruntime's optimized graph, with estimates of its nodes' work.

Cuts between its nodes are bit-exact and need no layout conversion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
import onnx
from onnx import NodeProto

from iosched.models.editable_graph import EditableGraph
from iosched.models.graph import TensorSpec
from iosched.models.wiring import reads


@dataclass(frozen=True, eq=False)
class SummedParts:
    """A convolution computed as a sum over parts of its input channels, one part for each core.

    Attributes:
        nodes: the parts, each with its own result.
        edges: channel ranges of the parts: where each begins, and where the last ends.
        then: elementwise nodes, the last of which computes the result of the convolution.
    """

    nodes: tuple[NodeProto, ...]
    edges: tuple[int, ...]
    then: tuple[NodeProto, ...]


@dataclass(frozen=True, eq=False)
class SharedRows:
    """A run of nodes that cores compute by rows of the image (`shared_rows.py`).

    Attributes:
        lane_of: core of each result that a single core computes.
        whole: the original nodes of the run.
        made: results of all nodes that replace them.
    """

    lane_of: Mapping[str, int] = field(default_factory=dict)
    whole: tuple[NodeProto, ...] = ()
    made: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class KernelGraph:
    """An optimized graph whose nodes are single calls of onnxruntime kernels.

    Attributes:
        graph: weights and tensors; its nodes are final. All types are "" if onnxruntime cannot read the graph
            that it wrote, as with some loops.
        nodes: nodes in topological order; after them, nodes that replace several, whose own positions may be empty.
        channel_block: channels in a block of the NCHWc layout on this machine, see `block_of`.
        parts: by result, the parts of convolutions that can be computed in parts; their tensors are in `tensors`.
        rows: nodes divided by rows.
        inside: by name, the nodes that a session node replaces; their own positions in `nodes` are empty.
        lanes_in_a_cache: number of consecutive lanes that share a cache; 0 for all.
    """

    graph: EditableGraph
    nodes: tuple[NodeProto, ...]
    channel_block: int
    parts: Mapping[str, SummedParts] = field(default_factory=dict)
    rows: SharedRows = SharedRows()
    inside: Mapping[str, tuple[NodeProto, ...]] = field(default_factory=dict)
    lanes_in_a_cache: int = 0

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """Constants by name, mostly in one read-only mapping that all sub-sessions share."""
        return self.graph.weights

    @property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """Type and shape of every graph input and computed tensor; shape None if known only at run time."""
        return self.graph.tensors

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the graph inputs."""
        return tuple(self.graph.inputs)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the graph outputs."""
        return tuple(self.graph.outputs)

    @cached_property
    def opsets(self) -> Mapping[str, int]:
        """Operator set versions by domain; "" is ONNX's."""
        return {entry.domain: entry.version for entry in self.graph.frame.opset_import}

    @property
    def ir_version(self) -> int:
        """IR version of the optimized model."""
        return int(self.graph.frame.ir_version)

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
        """For each node, the inputs and computed tensors that it reads, with subgraph captures, without duplicates."""
        known = self.tensors
        return tuple(tuple(dict.fromkeys(n for n in reads(node) if n in known)) for node in self.nodes)

    @cached_property
    def constants(self) -> tuple[tuple[str, ...], ...]:
        """For each node, the weights that it reads, with subgraph captures, without duplicates."""
        return tuple(tuple(dict.fromkeys(n for n in reads(node) if n in self.weights)) for node in self.nodes)

    @cached_property
    def readers(self) -> Mapping[str, tuple[int, ...]]:
        """The nodes that read each tensor."""
        found: dict[str, list[int]] = {name: [] for name in self.tensors}
        for index, names in enumerate(self.reads):
            for name in names:
                found[name].append(index)
        return {name: tuple(indices) for name, indices in found.items()}

    def result(self, index: int) -> str:
        """The first tensor that a node computes."""
        return str(self.nodes[index].output[0])


_FLOP_PER_US = 50_000  # 50 GFLOP/s and 8 GB/s: a server core on dense convolutions
_INTEGER_FLOP_PER_US = 150_000  # integers with VNNI
_INTEGER_PRODUCTS = frozenset({
    "QLinearConv", "ConvInteger", "QLinearMatMul", "QGemm", "MatMulInteger", "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
})  # fmt: skip
BYTES_PER_US = 8_000
_CALL_US = 4.0  # one onnxruntime Run


def node_work_us(kernels: KernelGraph, index: int) -> float:
    """Estimated microseconds of node `index` on one core, to balance lanes and to leave small nodes whole.

    Estimates never decide which schedule is fastest. They must not change between runs, or one schedule would be
    lowered in two ways.
    """
    node = kernels.nodes[index]
    touched = [*kernels.reads[index], *(name for name in node.output if name)]
    nbytes = sum(kernels.tensors[name].nbytes for name in touched)
    nbytes += sum(kernels.weights[name].nbytes for name in kernels.constants[index])
    rate = _INTEGER_FLOP_PER_US if node.op_type in _INTEGER_PRODUCTS else _FLOP_PER_US
    return _CALL_US + max(_flops(kernels, index) / rate, nbytes / BYTES_PER_US)


def _flops(kernels: KernelGraph, index: int) -> float:
    node = kernels.nodes[index]
    results = [name for name in node.output if name]
    shape = kernels.tensors[results[0]].shape if results else None
    if shape is None:
        return 0.0
    weight = kernels.weights.get(_weight(node))
    if weight is not None:
        return 2.0 * prod(shape) * prod(weight.shape[1:])
    if node.op_type.endswith(("MatMul", "Gemm")) or node.op_type in _INTEGER_PRODUCTS:
        contracted = kernels.tensors[node.input[0]].shape if node.input[0] in kernels.tensors else None
        return 2.0 * prod(shape) * (contracted[-1] if contracted else 1)
    return float(prod(shape))


def _weight(node: onnx.NodeProto) -> str:
    if node.op_type == "QLinearConv":
        return str(node.input[3])
    return str(node.input[1]) if node.op_type.endswith("Conv") or node.op_type == "ConvInteger" else ""
