"""A rough guess of a node's time on one core: good enough to balance lanes and to see what is too small to split.

Guesses never decide what is fastest, measurements do; but they must not change between runs, or one schedule would be
lowered in two ways.
"""

from __future__ import annotations

from math import prod

import onnx

from iosched.runtime.cpu.kernel_graph import KernelGraph

_FLOP_PER_US = 50_000  # 50 GFLOP/s and 8 GB/s: a current server core, dense convolutions
_WHOLE_FLOP_PER_US = 150_000  # of whole numbers, with VNNI
_WHOLE_PRODUCTS = frozenset({
    "QLinearConv", "ConvInteger", "QLinearMatMul", "QGemm", "MatMulInteger", "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
})  # fmt: skip
_BYTES_PER_US = 8_000
_CALL_US = 4.0  # one onnxruntime Run


def node_work_us(kernels: KernelGraph, index: int) -> float:
    """Guessed microseconds of node `index` on one core."""
    node = kernels.nodes[index]
    touched = [*kernels.reads[index], *(name for name in node.output if name)]
    nbytes = sum(kernels.tensors[name].nbytes for name in touched)
    nbytes += sum(kernels.weights[name].nbytes for name in kernels.constants[index])
    rate = _WHOLE_FLOP_PER_US if node.op_type in _WHOLE_PRODUCTS else _FLOP_PER_US
    return _CALL_US + max(_flops(kernels, index) / rate, nbytes / _BYTES_PER_US)


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
