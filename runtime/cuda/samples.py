"""Small models that use every kernel, and one with three concurrent groups."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from math import prod, sqrt

import numpy as np
import onnx.parser
from onnx import numpy_helper

from iosched.models.load import load_model
from iosched.models.model import Model

_HEADER = '<ir_version: 8, opset_import: ["": 17]>'


def sample(text: str) -> Model:
    """The model of one of the texts below, with deterministic weights.

    Args:
        text: an ONNX text graph without a name; inputs whose names begin with "w" become weights.
    """
    proto = onnx.parser.parse_model(f"{_HEADER} sample {text}")
    weights = [info for info in proto.graph.input if info.name.startswith("w")]
    for info in weights:
        proto.graph.input.remove(info)
        shape = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        proto.graph.initializer.append(numpy_helper.from_array(_drawn(info.name, shape), info.name))
    return load_model(proto.SerializeToString(), name="sample")


def _drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Scaled so that products keep their magnitude; vectors are near one, as variances must be."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    if len(shape) > 1:
        return values / np.float32(sqrt(prod(shape[1:])))
    return 1 + np.abs(values) / 8


SAMPLES: Mapping[str, str] = {
    "AddN": "(float[2,24,13,11] x, float[2,24,13,11] v) => (float[] y) { y = Sum(x, v, x) }",
    # cuDNN never broadcasts both factors.
    "BatchedMatMul": "(float[2,1,40,36] x, float[1,3,36,44] v) => (float[] y) { y = MatMul(x, v) }",
    "Binary": "(float[2,24,13,11] x, float[24,1,1] v) => (float[] y) { y = Mul(x, v) }",
    "Copy": "(float[2,40,36] x) => (float[] y) { y = Transpose<perm=[0,2,1]>(x) }",
    "DenseRow": "(float[1,64] x, float[64,48] w, float[48] wb) => (float[] y) { p = MatMul(x, w) y = Add(p, wb) }",
    "Depthwise": """(float[2,24,13,11] x, float[24,1,3,3] w, float[24] wb) => (float[] y) {
        y = Conv<pads=[1,1,1,1], group=24>(x, w, wb) }""",
    "Lrn": "(float[2,24,13,11] x) => (float[] y) { y = LRN<size=5>(x) }",
    "Normalize": """(float[2,24,64] x, float[64] w, float[64] wb) => (float[] y) {
        y = LayerNormalization<axis=-1>(x, w, wb) }""",
    "Pad": """(float[2,24,13,11] x) => (float[] y) <int64[8] pads = {0, 0, 1, 2, 0, 0, 2, 1}> {
        y = Pad<mode="reflect">(x, pads) }""",
    "Pool": """(float[2,24,13,11] x, float[2,24,6,5] v) => (float[] y) {
        p = MaxPool<kernel_shape=[3,3], strides=[2,2]>(x) y = Add(p, v) }""",
    "Reduce": "(float[2,24,13,11] x) => (float[] y) { y = GlobalAveragePool(x) }",
    "Resize": """(float[2,24,13,11] x) => (float[] y) <float[4] scales = {1.0, 1.0, 2.0, 2.0}> {
        y = Resize<mode="linear">(x, , scales) }""",
    "ScaleShift": """(float[2,24,13,11] x, float[24] w, float[24] wb, float[24] wm, float[24] wv) => (float[] y) {
        y = BatchNormalization(x, w, wb, wm, wv) }""",
    "Separable": """(float[2,32,13,11] x, float[2,32,13,11] v, float[2,64,13,11] u, float[32,1,3,3] w,
        float[64,32,1,1] wp, float[64] wb) => (float[] y) {
        s = Add(x, v) r = Relu(s) d = Conv<pads=[1,1,1,1], group=32>(r, w) c = Conv(d, wp, wb) y = Add(c, u) }""",
    "Slice": """(float[2,24,13,11] x) => (float[] y)
        <int64[2] starts = {2, 10}, int64[2] ends = {12, 0}, int64[2] axes = {2, 3}, int64[2] steps = {1, -2}> {
        y = Slice(x, starts, ends, axes, steps) }""",
    "Softmax": "(float[6,500] x) => (float[] y) { y = Softmax<axis=-1>(x) }",
    "Unary": "(float[2,24,13,11] x) => (float[] y) { y = HardSwish(x) }",
    "Where": "(bool[2,24,13,11] x, float[2,24,13,11] v, float[2,24,13,11] u) => (float[] y) { y = Where(x, v, u) }",
}
"""A model for each CUDA C++ kernel class, which uses it at some precision."""

CUDNN_SAMPLES: Mapping[str, str] = {
    "Conv": """(float[2,24,13,11] x, float[2,32,13,11] v, float[32,24,3,3] w, float[32] wb) => (float[] y) {
        c = Conv<pads=[1,1,1,1]>(x, w, wb) s = Add(c, v) y = Relu(s) }""",
    "Dense": "(float[4,64] x, float[64,48] w, float[48] wb) => (float[] y) { p = MatMul(x, w) y = Add(p, wb) }",
    "MatMul": "(float[3,36,40] x, float[3,40,48] v) => (float[] y) { y = MatMul(x, v) }",
}
"""The same for cuDNN kernels."""

THREE_GROUPS = """(float[1,32,28,28] x) => (float[] y) {
    a = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(x) a2 = Sigmoid(a)
    b = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x) b2 = Tanh(b)
    c = Abs(x) c2 = Sqrt(c)
    s = Sum(a2, b2, c2) y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(s) }"""
"""Three concurrent chains of two CUDA C++ kernels, a kernel that joins them, and one more."""
