"""The computation graph: operators and tensors as frozen values, with no protobuf inside.

Developer notes:
    * Nothing here may import onnx; the search and the lowering are tested without it.
    * Names are tensor names. An operator is named by its first output, so a schedule survives any renaming of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

Scalar = int | float | str
AttributeValue = Scalar | tuple[Scalar, ...]

_ITEM_NBYTES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2,
    "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip


def nbytes_of(dtype: str, shape: tuple[int, ...], unknown: int = 0) -> int:
    """Size in bytes of a tensor; `unknown` for types whose elements have no known size."""
    item = _ITEM_NBYTES.get(dtype)
    return unknown if item is None else prod(shape) * item


@dataclass(frozen=True)
class TensorSpec:
    """Type and shape of one tensor.

    `dtype` is a numpy name ("float32"), or ONNX's text for what numpy cannot name ("string", "seq(tensor(float))").
    `shape` is None where it is known only at run time (data-dependent sizes, sequences).
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def nbytes(self) -> int:
        """Size in bytes; 0 where type or shape is not known before the run."""
        return 0 if self.shape is None else nbytes_of(self.dtype, self.shape)

    @property
    def is_static(self) -> bool:
        """Whether the tensor can be placed in an arena before the run."""
        return self.shape is not None and self.dtype in _ITEM_NBYTES


@dataclass(frozen=True)
class Operator:
    """The schedule unit: one ONNX node, or several fused into one.

    Attributes:
        name: the operator's first output tensor.
        type: an ONNX op type ("Conv", "MaxPool", "Concat"), a fused type ("ReluSepConv"), or, for
            an operator outside ONNX's own domain, "domain::Type".
        nodes: the ONNX nodes that the operator covers, each by its first output, in topological order.
        inputs: the computed or fed tensors that the operator reads (no weights), in order of first use, each once.
        outputs: tensors that others read, or that the graph returns; `outputs[0] == name`.
        attributes: what changes the result or the latency beside the shapes, sorted by key. Convolutions, whatever is
            fused with them, carry kernel_shape, strides, pads, dilations, group, in_channels, out_channels and
            activation ("" for none) as normalised values; other operators carry their ONNX attributes, and products
            with a matrix of weights its rows and columns as in_features and out_features. Sums folded into an operator
            show as "terms": for each operand of the consumer, how many values are summed. What leaves an operator
            in whole numbers shows as "quantized": their type.
        weights: the constants that the operator reads, in order of first use.
        flops: multiply and add counted as two.
        nbytes: activations and weights read and written, each once; those of tensors in whole numbers, where nodes that
            quantize and dequantize stand between operators.
        node_types: the ONNX types of `nodes`, in their order; no part of labels and digests.
        merges: whether it may be merged with operators of its kind, where `merge_rule` finds nothing against it.
    """

    name: str
    type: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    weights: tuple[TensorSpec, ...] = ()
    flops: int = 0
    nbytes: int = 0
    node_types: tuple[str, ...] = ()
    merges: bool = True

    def attribute(self, key: str, default: AttributeValue | None = None) -> AttributeValue | None:
        """The attribute `key`, or `default` where the operator has none of that name."""
        return dict(self.attributes).get(key, default)

    def integer(self, key: str, default: int = 0) -> int:
        """The attribute `key` where it is one integer, else `default`."""
        value = self.attribute(key)
        return value if isinstance(value, int) else default

    def integers(self, key: str) -> tuple[int, ...]:
        """The attribute `key` where it is a list of integers, else ()."""
        value = self.attribute(key)
        return tuple(item for item in value if isinstance(item, int)) if isinstance(value, tuple) else ()


@dataclass(frozen=True)
class ComputationGraph:
    """A DAG of operators in topological order; an edge is a tensor.

    Invariants, checked on construction: names are unique, every input of an operator is a graph input or the output
    of an earlier operator, every graph output is produced by an operator or is a graph input.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    operators: tuple[Operator, ...]
    tensors: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        known = {spec.name for spec in self.inputs}
        for operator in self.operators:
            if not operator.outputs or operator.outputs[0] != operator.name:
                raise ValueError(f"operator {operator.name!r} is not named by its first output")
            if missing := [name for name in operator.inputs if name not in known]:
                raise ValueError(f"operator {operator.name!r} reads {missing[0]!r} before it is computed")
            if twice := known.intersection(operator.outputs):
                raise ValueError(f"tensor {min(twice)!r} is computed twice")
            known.update(operator.outputs)
        if missing := [name for name in self.outputs if name not in known]:
            raise ValueError(f"graph output {missing[0]!r} is computed by no operator")

    @cached_property
    def by_name(self) -> Mapping[str, Operator]:
        """Operators by name."""
        return {operator.name: operator for operator in self.operators}

    @cached_property
    def producer(self) -> Mapping[str, str]:
        """For every computed tensor, the name of the operator that computes it."""
        return {tensor: operator.name for operator in self.operators for tensor in operator.outputs}

    @cached_property
    def tensor(self) -> Mapping[str, TensorSpec]:
        """Every known tensor by name, graph inputs included."""
        return {spec.name: spec for spec in (*self.inputs, *self.tensors)}

    @cached_property
    def predecessors(self) -> Mapping[str, tuple[str, ...]]:
        """For every operator, the operators whose outputs it reads, each once."""
        producer = self.producer
        return {
            operator.name: tuple(dict.fromkeys(producer[name] for name in operator.inputs if name in producer))
            for operator in self.operators
        }

    @cached_property
    def successors(self) -> Mapping[str, tuple[str, ...]]:
        """For every operator, the operators that read its outputs, each once, in topological order."""
        found: dict[str, list[str]] = {operator.name: [] for operator in self.operators}
        for name, before in self.predecessors.items():
            for predecessor in before:
                found[predecessor].append(name)
        return {name: tuple(after) for name, after in found.items()}


BatchShape = tuple[int | str, ...]
"""The shape of an input; a text stands for the batch size."""


@dataclass(frozen=True)
class DynamicBatchSpec:
    """Type and shape of one tensor whose batch is left open.

    `dtype` is as in `TensorSpec`. In `shape` a text stands for the batch size; it is None where it is known only at
    run time.
    """

    name: str
    dtype: str
    shape: BatchShape | None


def at_batch(inputs: Mapping[str, BatchShape], batch_size: int) -> dict[str, tuple[int, ...]]:
    """The shapes of all inputs at one batch size."""
    return {name: tuple(batch_size if isinstance(dim, str) else dim for dim in shape) for name, shape in inputs.items()}


_BEGINNINGS = ("QLinear", "Quantize", "Dequantize", "DynamicQuantize")
_OTHERS = frozenset({"QGemm", "QAttention", "ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits"})


def quantized_operators(graph: ComputationGraph) -> tuple[str, ...]:
    """Names of the operators with a node that quantizes, dequantizes, or computes in whole numbers; O(nodes)."""
    return tuple(
        operator.name
        for operator in graph.operators
        if any(kind.startswith(_BEGINNINGS) or kind in _OTHERS for kind in operator.node_types)
    )
