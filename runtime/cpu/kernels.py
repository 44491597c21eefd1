"""Kernels of the CPU executors: sub-models for onnxruntime, operators that run without a session, and copies.

A session adds defaults that a node omits and rejects invalid nodes. Without one, versions, attributes and types are
explicit, and only operators for which that is enough are allowed. The others keep sessions: some pack weights there
(MatMul, Gemm, recurrent and integer operators), others would be silently wrong (operators with any number of operands,
such as Concat and Sum).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import onnx

from iosched.models.node_attributes import completed
from iosched.runtime.plan import View

_LARGEST_NBYTES = 128 << 20
"""Larger operators take milliseconds, so a session costs nothing, and a proof needs three times their memory."""

_FIRST_RESIZE = 11
"""Without a session, an earlier Resize reads inputs that it does not have, and crashes."""

NONE = -1
"""The source of an omitted input."""

_ELEMENTWISE = frozenset({
    "Abs", "Add", "Ceil", "Celu", "Clip", "Div", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu",
    "Log", "Mul", "Neg", "Not", "PRelu", "Pow", "Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt",
    "Sub", "Tanh", "ThresholdedRelu",
})  # fmt: skip
_WINDOWS = frozenset({"AveragePool", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})
_NORMALIZATIONS = frozenset({
    "BatchNormalization", "InstanceNormalization", "LRN", "LayerNormalization", "LogSoftmax", "Softmax",
})  # fmt: skip
_SHAPED_BY_CONSTANTS = frozenset({
    "Expand", "Pad", "ReduceMax", "ReduceMean", "ReduceSum", "Reshape", "Resize", "Slice", "Split", "Squeeze",
    "Unsqueeze",
})  # fmt: skip
"""Operators whose further inputs decide the size of the result."""

_MOVES = frozenset({"Cast", "DepthToSpace", "Flatten", "Gather", "SpaceToDepth", "Transpose", "Where"})

_ALLOWED: Mapping[str, frozenset[str]] = {
    "": _ELEMENTWISE | _WINDOWS | _NORMALIZATIONS | _SHAPED_BY_CONSTANTS | _MOVES,
    "com.microsoft": frozenset({"FusedConv", "Gelu", "QuickGelu"}),
    "com.microsoft.nchwc": _WINDOWS | {"ReorderInput", "ReorderOutput", "Upsample"},
}
_FLOAT_ONLY = _WINDOWS | {"FusedConv"}
_CHANNELS_LAST = onnx.helper.make_attribute("channels_last", 0)
"""ONNX does not define it; layout conversions require it."""

_ATTRIBUTE_TYPES = (
    *(onnx.AttributeProto.INT, onnx.AttributeProto.INTS, onnx.AttributeProto.FLOAT, onnx.AttributeProto.FLOATS),
    *(onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS),
)


@dataclass(frozen=True, eq=False)
class InvokedNode:
    """One node on constants and on views of fixed types and shapes.

    Attributes:
        attributes: all of them, including defaults.
        version: operator set that introduced this version of the operator.
        constraints: element type of each type parameter.
        sources: for each input, the index of a view, `NONE`, or a constant as -2 - index.
        constants: C-contiguous, not copied.
        reads: types and shapes of the computed inputs.
        writes: types and shapes of the outputs.
    """

    op_type: str
    domain: str
    attributes: tuple[onnx.AttributeProto, ...]
    version: int
    constraints: Mapping[str, int]
    sources: tuple[int, ...]
    constants: tuple[np.ndarray, ...]
    reads: tuple[View, ...]
    writes: tuple[View, ...]

    @property
    def operator(self) -> str:
        """The operator's name, with its domain unless it is ONNX's."""
        return f"{self.domain}.{self.op_type}" if self.domain else self.op_type

    @cached_property
    def signature(self) -> bytes:
        """A digest of everything except the values that the node computes with; equal for nodes that run alike."""
        parts = (
            *(self.operator, self.version, sorted(self.constraints.items()), self.sources),
            sorted(each.SerializeToString(deterministic=True) for each in self.attributes),
            [(array.dtype.name, array.shape, self._decisive(array)) for array in self.constants],
            [(view.dtype, view.shape) for view in (*self.reads, *self.writes)],
        )
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()

    def _decisive(self, array: np.ndarray) -> bytes:
        """A digest of a constant whose values affect the computation or the shape of the result."""
        if array.dtype.kind == "f" and array.size > 1 and self.op_type not in _SHAPED_BY_CONSTANTS:
            return b""
        return hashlib.blake2b(array.tobytes(), digest_size=16).digest()


def is_invocable(node: onnx.NodeProto) -> bool:
    """Whether this operator may run without a session; `invoked_node` checks the rest."""
    return node.op_type in _ALLOWED.get(node.domain, frozenset()) or _is_sum_of_two(node)


def _is_sum_of_two(node: onnx.NodeProto) -> bool:
    return node.op_type == "Sum" and not node.domain and len(node.input) == 2


def invoked_node(
    node: onnx.NodeProto,
    opsets: Mapping[str, int],
    reads: Mapping[str, View],
    writes: Mapping[str, View],
    constants: Mapping[str, np.ndarray],
) -> InvokedNode | None:
    """Describe `node` for a call without session; None if impossible.

    Args:
        opsets: version of each operator set.
        reads: view of each computed input, in the order of a task's reads.
        writes: view of each output, likewise.
        constants: all other inputs.
    """
    outputs = [name for name in node.output if name]
    if not is_invocable(node) or outputs != list(writes) or len(outputs) != len(node.output):
        return None
    views = (*reads.values(), *writes.values())
    if not reads or not all(map(_is_fixed, views)) or sum(view.nbytes for view in views) > _LARGEST_NBYTES:
        return None
    if node.op_type in _FLOAT_ONLY and any(view.dtype != "float32" for view in reads.values()):
        return None
    if node.op_type in _SHAPED_BY_CONSTANTS and any(name in reads for name in node.input[1:]):
        return None
    op_type = "Add" if _is_sum_of_two(node) else node.op_type
    schema = _schema(op_type, opsets.get("", 1))
    if schema and op_type == "Resize" and schema.since_version < _FIRST_RESIZE:
        return None
    attributes = completed(node, _defaults(op_type, schema))
    if any(each.type not in _ATTRIBUTE_TYPES or each.ref_attr_name for each in attributes):
        return None
    own = None if node.domain else schema
    places = {name: place for place, name in enumerate(reads)}
    places |= {name: -2 - place for place, name in enumerate(constants)}
    return InvokedNode(
        op_type=op_type,
        domain=node.domain,
        attributes=attributes,
        version=own.since_version if own else 1,  # onnxruntime looks up kernels by exactly this version
        constraints=_constraints(node, own, reads, writes, constants),
        sources=tuple(places[name] if name else NONE for name in node.input),
        constants=tuple(constants.values()),
        reads=tuple(reads.values()),
        writes=tuple(writes.values()),
    )


def _is_fixed(view: View) -> bool:
    return view.shape is not None and view.nbytes > 0 and view.dtype in ELEMENT_TYPE


@cache
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    return onnx.defs.get_schema(op_type, opset, "") if onnx.defs.has(op_type, opset, "") else None


def _defaults(op_type: str, schema: onnx.defs.OpSchema | None) -> list[onnx.AttributeProto]:
    """Default attributes. onnxruntime's own operators use the defaults of ONNX's operators of the same name."""
    if op_type in ("ReorderInput", "ReorderOutput"):
        return [_CHANNELS_LAST]
    found = [each.default_value for each in schema.attributes.values()] if schema else []
    return [each for each in found if each.type != onnx.AttributeProto.UNDEFINED]


def _constraints(
    node: onnx.NodeProto,
    schema: onnx.defs.OpSchema | None,
    reads: Mapping[str, View],
    writes: Mapping[str, View],
    constants: Mapping[str, np.ndarray],
) -> dict[str, int]:
    """Element type of every type parameter: without them, onnxruntime takes the first kernel of any type."""
    dtypes = {name: view.dtype for views in (reads, writes) for name, view in views.items()}
    dtypes |= {name: array.dtype.name for name, array in constants.items()}
    if schema is None:
        return {"T": ELEMENT_TYPE[dtypes[node.input[0]]]}
    parameters = {each.type_param_str for each in schema.type_constraints}
    found: dict[str, int] = {}
    for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
        found |= _types(names, [each.type_str for each in formals], dtypes, parameters)
    return found


def _types(
    names: Sequence[str], type_strings: Sequence[str], dtypes: Mapping[str, str], parameters: set[str]
) -> dict[str, int]:
    pairs = zip(names, type_strings, strict=False)
    return {text: ELEMENT_TYPE[dtypes[name]] for name, text in pairs if name and text in parameters}


# Codes of ONNX's TensorProto.DataType, which onnxruntime uses too; names as in TensorSpec.
ELEMENT_TYPE: Mapping[str, int] = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "complex64": 14,
    "complex128": 15,
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
}
DTYPE_NAME: Mapping[int, str] = {code: name for name, code in ELEMENT_TYPE.items()}


# The "location" of an initializer without data. onnxruntime requires that it exists. With any other value, a native
# session works too, but temporarily copies every weight.
EXTERNAL_LOCATION = "."


@dataclass(frozen=True, eq=False)
class Program:
    """One kernel that onnxruntime runs in its own session.

    Attributes:
        write: writes `model`.
        inputs: names of the graph inputs, in the order of a task's `reads`.
        outputs: names of the graph outputs, in the order of a task's `writes`.
        weights: C-contiguous arrays of the initializers that `model` holds without data (`data_location` EXTERNAL,
            `location` EXTERNAL_LOCATION); all sessions share them without copies. Small initializers and strings may
            be in `model`.
        cores: cores over which onnxruntime divides each operator; if several, the cores of all lanes, then idle.
        invoked: the program's only node, if it can run without a session.
    """

    write: Callable[[], bytes]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[tuple[str, np.ndarray], ...] = ()
    cores: int = 1
    invoked: InvokedNode | None = None

    @cached_property
    def model(self) -> bytes:
        """Serialized ONNX, loaded without optimizations: onnxruntime has already optimized it."""
        return self.write()


@dataclass(frozen=True)
class Copy:
    """Copies the bytes of the task's only read to its only write."""


Kernel = Program | Copy
