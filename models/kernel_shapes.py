"""Shapes of results as onnxruntime's kernels compute them, where shape inference finds others.

onnxruntime infers shapes as onnx does, and its kernels take no notice. They differ for pools that round up before
operator set 22, for pools that pad to the SAME size and have dilations, for transposed convolutions that pad so and
have output_padding, and for images resized by factors that have no exact float.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import onnx
from onnx.helper import make_node, np_dtype_to_tensor_dtype

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import integer, integers, numbers, padding, text
from iosched.models.wiring import writes

Shape = tuple[int, ...]
Weights = Mapping[str, np.ndarray]
Inferred = TypeVar("Inferred")


def inferred_as_run(
    graph: EditableGraph,
    infer: Callable[[EditableGraph], Inferred],
    specs: Callable[[Inferred], Mapping[str, TensorSpec]],
) -> tuple[EditableGraph, Inferred]:
    """What is inferred of a graph in which constants stand for nodes whose results have other shapes than inferred.

    Args:
        graph: is not changed.
        infer: infers the shapes of a graph.
        specs: the tensors in what `infer` returns.

    Returns:
        The graph with the constants, which is `graph` itself where there are none, and what is inferred of it.

    Complexity: one inference more than such nodes follow one another.
    """
    made, known = graph, dict[str, TensorSpec]()
    while True:
        inferred = infer(made)
        found = _misjudged(graph, specs(inferred))
        if found.items() <= known.items():
            return made, inferred
        known.update(found)
        made = _with_constants(graph, known)


def may_be_misjudged(node: onnx.NodeProto) -> bool:
    """Whether the kernel may compute a result of another shape than is inferred, whatever it reads."""
    if node.op_type in ("Resize", "Upsample"):
        return True
    return node.op_type in _RULES and bool(integer(node, "ceil_mode") or text(node, "auto_pad").startswith("SAME"))


def _misjudged(graph: EditableGraph, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """The results that kernels compute in other shapes than `specs` says, as they compute them."""
    found: dict[str, TensorSpec] = {}
    for node in graph.nodes:
        source = specs.get(node.input[0]) if may_be_misjudged(node) else None
        if source is None or source.shape is None or len(source.shape) < 3:
            continue
        shape = _RULES[node.op_type](node, source.shape, graph.weights)
        results = [specs[name] for name in writes(node) if name in specs]
        wrong = [spec for spec in results if shape is not None and spec.dtype and spec.shape != shape]
        found.update((spec.name, TensorSpec(spec.name, spec.dtype, shape)) for spec in wrong)
    return found


def _with_constants(graph: EditableGraph, known: Mapping[str, TensorSpec]) -> EditableGraph:
    made = graph.copy()
    for values in (made.declared, made.outputs):
        values.update({name: onnx.ValueInfoProto(name=name) for name in known.keys() & values.keys()})
    for node in graph.nodes:
        if results := [known[name] for name in writes(node) if name in known]:
            made.replace(node_name(node), *(_constant(made, spec) for spec in results))
    return made


def _constant(graph: EditableGraph, spec: TensorSpec) -> onnx.NodeProto:
    shape = graph.add_fresh_weight(f"{spec.name}/shape", np.array(spec.shape, np.int64))
    value = onnx.TensorProto(data_type=np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), dims=[1])
    value.raw_data = bytes(np.dtype(spec.dtype).itemsize)
    return make_node("ConstantOfShape", [shape], [spec.name], value=value)


def _pool(node: onnx.NodeProto, source: Shape, _: Weights) -> Shape | None:
    is_last = node.op_type == "NhwcMaxPool" or bool(integer(node, "channels_last"))
    sizes, kernel = source[1:-1] if is_last else source[2:], integers(node, "kernel_shape")
    if len(kernel) != len(sizes):
        return None
    ones = (1,) * len(kernel)
    pads = padding(node, sizes, kernel)
    window = zip(kernel, integers(node, "strides", ones), integers(node, "dilations", ones), strict=True)
    results = tuple(
        _pooled(size, begin, begin + end, *each, rounds_up=bool(integer(node, "ceil_mode")))
        for size, begin, end, each in zip(sizes, pads, pads[len(kernel) :], window, strict=False)
    )
    return (source[0], *results, source[-1]) if is_last else (*source[:2], *results)


def _pooled(size: int, begin: int, pads: int, kernel: int, stride: int, dilation: int, *, rounds_up: bool) -> int:
    room = size + pads - dilation * (kernel - 1) - 1
    if not rounds_up:
        return room // stride + 1
    last = -(-room // stride)
    return last if last * stride >= size + begin else last + 1  # the last window begins before the padding behind


def _transposed(node: onnx.NodeProto, source: Shape, weights: Weights) -> Shape | None:
    filters = weights.get(node.input[1])
    is_same = text(node, "auto_pad") in ("SAME_UPPER", "SAME_LOWER")
    if filters is None or not is_same or integers(node, "output_shape"):
        return None
    strides = integers(node, "strides", (1,) * (len(source) - 2))
    results = filters.shape[1] * integer(node, "group", 1)
    return (source[0], results, *(size * stride for size, stride in zip(source[2:], strides, strict=True)))


def _resized(node: onnx.NodeProto, source: Shape, weights: Weights) -> Shape | None:
    named = node.input[2:3] if len(node.input) > 2 else node.input[1:2]
    given = weights.get(named[0]) if named else None
    factors = numbers(node, "scales") if given is None else tuple(given.reshape(-1))
    axes = [axis % len(source) for axis in integers(node, "axes", range(len(source)))]
    if len(factors) != len(axes) or text(node, "coordinate_transformation_mode") == "tf_crop_and_resize":
        return None
    by_axis = dict(zip(axes, factors, strict=True))
    return tuple(int(np.float32(size) * np.float32(by_axis.get(axis, 1))) for axis, size in enumerate(source))


_RULES: Mapping[str, Callable[[onnx.NodeProto, Shape, Weights], Shape | None]] = {
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool", "NhwcMaxPool", "QLinearAveragePool"), _pool),
    "ConvTranspose": _transposed,
    **dict.fromkeys(("Resize", "Upsample"), _resized),
}
