"""The graph that schedules are lowered onto: what onnxruntime optimized for this machine, and what was noted of it.

Cuts between its nodes are bit-exact and carry no layout conversion.
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
    """Another way to compute what a convolution does: some of the channels it reads for each core, and then the sum.

    Attributes:
        nodes: the parts, each of which writes a tensor of its own.
        edges: the channels at which the parts begin, and the last one ends.
        then: elementwise nodes, the last of which writes the result of the convolution.
    """

    nodes: tuple[NodeProto, ...]
    edges: tuple[int, ...]
    then: tuple[NodeProto, ...]


@dataclass(frozen=True, eq=False)
class SharedRows:
    """A run of nodes that cores compute by rows of the image (`shared_rows.py`).

    Attributes:
        lane_of: for results of nodes that one core runs whole, which of the cores.
        whole: the nodes of the run as they were.
        made: results of all nodes that stand for them.
    """

    lane_of: Mapping[str, int] = field(default_factory=dict)
    whole: tuple[NodeProto, ...] = ()
    made: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class KernelGraph:
    """An optimized graph as stages are lowered: its nodes by their numbers, each one call of one onnxruntime kernel.

    Attributes:
        graph: the weights and tensors; its nodes are not edited any more. The type of all tensors is "" where
            onnxruntime does not read back what it wrote, as with some loops.
        nodes: the nodes in topological order. Behind them may stand nodes for several, whose own places may be empty.
        channel_block: channels in a block of the NCHWc layout on this machine, see `block_of`.
        parts: for results of convolutions that may be computed in parts, the parts. Their tensors are among `tensors`.
        rows: the nodes that are shared out between rows, where there are any.
        inside: for nodes that stand for others, by name, those others; their own places among `nodes` are empty.
    """

    graph: EditableGraph
    nodes: tuple[NodeProto, ...]
    channel_block: int
    parts: Mapping[str, SummedParts] = field(default_factory=dict)
    rows: SharedRows = SharedRows()
    inside: Mapping[str, tuple[NodeProto, ...]] = field(default_factory=dict)

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """Constants by name, most of them backed by one read-only mapping that all sub-sessions share."""
        return self.graph.weights

    @property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """Type and shape of every graph input and computed tensor; shape None where only the run knows it."""
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
        """Operator set versions by domain; that of ONNX's own is ""."""
        return {entry.domain: entry.version for entry in self.graph.frame.opset_import}

    @property
    def ir_version(self) -> int:
        """Of the optimized model."""
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

    def result(self, index: int) -> str:
        """The first tensor that a node computes."""
        return str(self.nodes[index].output[0])


_FLOP_PER_US = 50_000  # 50 GFLOP/s and 8 GB/s: a current server core, dense convolutions
_WHOLE_FLOP_PER_US = 150_000  # of whole numbers, with VNNI
_WHOLE_PRODUCTS = frozenset({
    "QLinearConv", "ConvInteger", "QLinearMatMul", "QGemm", "MatMulInteger", "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
})  # fmt: skip
BYTES_PER_US = 8_000
_CALL_US = 4.0  # one onnxruntime Run


def node_work_us(kernels: KernelGraph, index: int) -> float:
    """Guessed microseconds of node `index` on one core."""
    node = kernels.nodes[index]
    touched = [*kernels.reads[index], *(name for name in node.output if name)]
    nbytes = sum(kernels.tensors[name].nbytes for name in touched)
    nbytes += sum(kernels.weights[name].nbytes for name in kernels.constants[index])
    rate = _WHOLE_FLOP_PER_US if node.op_type in _WHOLE_PRODUCTS else _FLOP_PER_US
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
    if node.op_type.endswith(("MatMul", "Gemm")) or node.op_type in _WHOLE_PRODUCTS:
        contracted = kernels.tensors[node.input[0]].shape if node.input[0] in kernels.tensors else None
        return 2.0 * prod(shape) * (contracted[-1] if contracted else 1)
    return float(prod(shape))


def _weight(node: onnx.NodeProto) -> str:
    """What a convolution reads as its weight; "" where the node is none."""
    if node.op_type == "QLinearConv":
        return str(node.input[3])
    return str(node.input[1]) if node.op_type.endswith("Conv") or node.op_type == "ConvInteger" else ""
