"""Single nodes as operators without sessions, and as the programs that do the same in one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from iosched.runtime.cpu.kernels import ELEMENT_TYPE, InvokedNode, Program, invoked_node
from iosched.runtime.cpu.native import NativeRuntime
from iosched.runtime.cpu.native_kernels import RuntimeHandle, operator
from iosched.runtime.cpu.proofs import Candidate
from iosched.runtime.plan import View

OPSETS = {"": 17, "com.microsoft": 1, "com.microsoft.nchwc": 1}

Shapes = Mapping[str, tuple[int, ...]]


def floats(shapes: Shapes) -> dict[str, View]:
    return {name: View(name, "float32", shape, 0, 4 * int(np.prod(shape))) for name, shape in shapes.items()}


def program_of(
    node: onnx.NodeProto, reads: Mapping[str, View], writes: Mapping[str, View], constants: Mapping[str, np.ndarray]
) -> Program:
    values = [
        [onnx.helper.make_tensor_value_info(name, ELEMENT_TYPE[view.dtype], view.shape) for name, view in views.items()]
        for views in (reads, writes)
    ]
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    opsets = [onnx.helper.make_opsetid(*each) for each in OPSETS.items()]
    graph = onnx.helper.make_graph([node], "one", *values, weights)
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return Program(model.SerializeToString, tuple(reads), tuple(writes))


def invoked(
    node: onnx.NodeProto, reads: Mapping[str, View], writes: Mapping[str, View], constants: Mapping[str, np.ndarray]
) -> InvokedNode:
    found = invoked_node(node, OPSETS, reads, writes, constants)
    assert found is not None
    return found


def lent(runtime: NativeRuntime) -> RuntimeHandle:
    return RuntimeHandle(runtime.library, runtime.handle.pointer)


def candidate(runtime: NativeRuntime, program: Program, node: InvokedNode) -> Candidate:
    return Candidate(program, node, operator(lent(runtime), node))
