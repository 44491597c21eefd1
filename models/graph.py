"""The computation graph: operators and tensors as frozen values, without protobuf.

Developer notes:
    * This module must not import onnx.
    * An operator is named by its first output, so schedules survive the renaming of nodes.
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
    """Size in bytes of a tensor; `unknown` for types without a fixed element size."""
    item = _ITEM_NBYTES.get(dtype)
    return unknown if item is None else prod(shape) * item


@dataclass(frozen=True)
class TensorSpec:
    """Type and shape of one tensor.

    `dtype` is a numpy name ("float32"), or ONNX's text for other types ("string", "seq(tensor(float))").
    `shape` is None if it is known only at run time.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def nbytes(self) -> int:
        """Size in bytes; 0 if type or shape is unknown before the run."""
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
        type: an ONNX op type ("Conv"), a fused type ("ReluSepConv"), or "domain::Type" outside ONNX's own domain.
        nodes: the ONNX nodes in topological order, by first output.
        inputs: the computed or fed tensors read (no weights), in order of first use.
        outputs: tensors that others read, or that the graph returns; `outputs[0] == name`.
        attributes: what determines result or latency besides shapes, sorted by key. Convolutions have normalized
            kernel_shape, strides, pads, dilations, group, in_channels, out_channels and activation ("" for none);
            others their ONNX attributes; products with a weight matrix also in_features and out_features. "terms"
            counts the summed values of each operand if sums are folded in; "quantized" is the integer type of the
            result.
        weights: the constants read, in order of first use.
        flops: multiply and add counted as two.
        nbytes: activations and weights read and written, each once; in integers between quantized operators.
        node_types: the ONNX types of `nodes`; not part of labels and digests.
        merges: whether it may be merged if `merging.rule` allows it.
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
        """The attribute `key`, or `default`."""
        return dict(self.attributes).get(key, default)

    def integer(self, key: str, default: int = 0) -> int:
        """The attribute `key` if it is an integer, else `default`."""
        value = self.attribute(key)
        return value if isinstance(value, int) else default

    def integers(self, key: str) -> tuple[int, ...]:
        """The attribute `key` if it is a list of integers, else ()."""
        value = self.attribute(key)
        return tuple(item for item in value if isinstance(item, int)) if isinstance(value, tuple) else ()


@dataclass(frozen=True)
class ComputationGraph:
    """A DAG of operators in topological order; an edge is a tensor.

    Checked on construction: names are unique; operators read graph inputs or outputs of earlier operators; graph
    outputs exist.
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
        """The name of the operator that computes each tensor."""
        return {tensor: operator.name for operator in self.operators for tensor in operator.outputs}

    @cached_property
    def tensor(self) -> Mapping[str, TensorSpec]:
        """Every known tensor by name, graph inputs included."""
        return {spec.name: spec for spec in (*self.inputs, *self.tensors)}

    @cached_property
    def predecessors(self) -> Mapping[str, tuple[str, ...]]:
        """The operators whose outputs each operator reads, each once."""
        producer = self.producer
        return {
            operator.name: tuple(dict.fromkeys(producer[name] for name in operator.inputs if name in producer))
            for operator in self.operators
        }

    @cached_property
    def successors(self) -> Mapping[str, tuple[str, ...]]:
        """The operators that read each operator's outputs, each once, in topological order."""
        found: dict[str, list[str]] = {operator.name: [] for operator in self.operators}
        for name, before in self.predecessors.items():
            for predecessor in before:
                found[predecessor].append(name)
        return {name: tuple(after) for name, after in found.items()}


BatchShape = tuple[int | str, ...]
"""The shape of an input, with a text for the batch size."""


@dataclass(frozen=True)
class DynamicBatchSpec:
    """Type and shape of one tensor with a dynamic batch.

    `dtype` is as in `TensorSpec`. In `shape`, a text is the batch size; None if it is known only at run time.
    """

    name: str
    dtype: str
    shape: BatchShape | None


def at_batch(inputs: Mapping[str, BatchShape], batch_size: int) -> dict[str, tuple[int, ...]]:
    """The shapes of all inputs at one batch size."""
    return {name: tuple(batch_size if isinstance(dim, str) else dim for dim in shape) for name, shape in inputs.items()}


_QUANTIZED_PREFIXES = ("QLinear", "Quantize", "Dequantize", "DynamicQuantize")
_QUANTIZED_TYPES = frozenset(
    {"QGemm", "QAttention", "ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits"}
)


def quantized_operators(graph: ComputationGraph) -> tuple[str, ...]:
    """Names of operators with a node that quantizes, dequantizes, or computes in integers; O(nodes)."""
    return tuple(
        operator.name
        for operator in graph.operators
        if any(kind.startswith(_QUANTIZED_PREFIXES) or kind in _QUANTIZED_TYPES for kind in operator.node_types)
    )
