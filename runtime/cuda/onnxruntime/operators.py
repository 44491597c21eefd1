"""Operators that no kernel does: onnxruntime runs them, between the captured parts of the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import onnx

from iosched.models.graph import Operator, TensorSpec
from iosched.models.node_attributes import has_subgraphs
from iosched.models.wiring import captures
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.session import DERIVED, are_of_numpy, load_onnxruntime, open_session, run_on_any_types, running

_Run = Callable[[Sequence[str], Mapping[str, np.ndarray]], Sequence[Any]]


@dataclass(frozen=True)
class Session:
    """Runs a small model in onnxruntime.

    Attributes:
        model: serialized; its graph inputs and outputs are the reads and writes, in order.
        operators: ONNX types in it, for people.
    """

    model: bytes
    operators: tuple[str, ...]

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """One run on the CPU; tensors stored in another type of float than the model's are converted."""
        run, inputs, outputs = _opened(self.model)
        feeds = {name: np.asarray(array, dtype, order="C") for (name, dtype), array in zip(inputs, reads, strict=True)}
        with running():
            results = run(outputs, feeds)
        for target, result in zip(writes, results, strict=True):
            target[...] = result


@cache
def _opened(model: bytes) -> tuple[_Run, list[tuple[str, np.dtype]], list[str]]:
    """What runs the model on arrays, its inputs with their types, and its outputs."""
    options = load_onnxruntime().SessionOptions()
    options.log_severity_level = 4
    session = open_session(model, options, called=DERIVED)
    graph = onnx.load_from_string(model).graph
    dtypes = {value.name: _dtype(value) for value in (*graph.input, *graph.output)}
    kinds = ("string" if dtype.hasobject else dtype.name for dtype in dtypes.values())
    run = session.run if are_of_numpy(kinds) else partial(run_on_any_types, session)
    return run, [(value.name, dtypes[value.name]) for value in graph.input], [value.name for value in graph.output]


def _dtype(value: onnx.ValueInfoProto) -> np.dtype:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def session_kernel(
    builder: Builder, operator: Operator, nodes: Sequence[onnx.NodeProto]
) -> tuple[Session, tuple[str, ...], tuple[str, ...]]:
    """The call that runs all nodes of `operator` in onnxruntime: kernel, reads, writes.

    Its tensors are the model's own types; where the device stores them otherwise, they are converted on the way.
    Operators that differ by names alone have one kernel, and so one session of onnxruntime and one latency.
    """
    specs = builder.model.graph.tensor
    names = _names(operator, nodes)
    graph = onnx.helper.make_graph(
        [_plain(node, names) for node in nodes],
        "operator",
        [_value(specs[name], names[name]) for name in operator.inputs],
        [_value(specs[name], names[name]) for name in operator.outputs],
        _constants(builder.model.weights, nodes, names),
    )
    source = builder.model.proto
    proto = onnx.helper.make_model(graph, opset_imports=source.opset_import, ir_version=source.ir_version)
    proto.functions.extend(source.functions)
    kernel = Session(proto.SerializeToString(), tuple(node.op_type for node in nodes))
    return kernel, operator.inputs, operator.outputs


def _names(operator: Operator, nodes: Sequence[onnx.NodeProto]) -> dict[str, str]:
    """Numbers instead of names; the names themselves where a subgraph sees them."""
    names = dict.fromkeys([*operator.inputs, *operator.outputs])
    names |= dict.fromkeys(name for node in nodes for name in (*node.input, *node.output, *captures(node)) if name)
    if any(map(has_subgraphs, nodes)):
        return {name: name for name in names}
    return {name: f"t{number}" for number, name in enumerate(names)}


def _constants(
    weights: Mapping[str, np.ndarray], nodes: Sequence[onnx.NodeProto], names: Mapping[str, str]
) -> list[onnx.TensorProto]:
    used = dict.fromkeys(name for node in nodes for name in (*node.input, *captures(node)) if name in weights)
    return [onnx.numpy_helper.from_array(np.asarray(weights[name], order="C"), names[name]) for name in used]


def _plain(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """The node without its name and documentation, over other names of tensors."""
    copied = onnx.NodeProto(op_type=node.op_type, domain=node.domain, overload=node.overload)
    copied.input.extend(names.get(name, "") for name in node.input)
    copied.output.extend(names.get(name, "") for name in node.output)
    copied.attribute.extend(node.attribute)
    return copied


def _value(spec: TensorSpec, name: str) -> onnx.ValueInfoProto:
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return onnx.helper.make_tensor_value_info(name, element, spec.shape)
