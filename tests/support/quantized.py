"""Models in whole numbers, made of real ones by onnxruntime's own quantizer."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import version_converter

_OPSET = 17
_TYPES = {"int8": "QInt8", "uint8": "QUInt8"}


class _Noise:
    """Two inputs of standard normal numbers."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        random = np.random.default_rng(0)
        shapes = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in proto.graph.input
        }
        drawn = [{name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()} for _ in range(2)]
        self._left = iter(drawn)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def quantized(
    proto: onnx.ModelProto,
    *,
    activations: str = "uint8",
    weights: str = "int8",
    per_channel: bool = True,
    with_pairs: bool = True,
) -> onnx.ModelProto:
    """`proto`, whose shapes are fixed, in whole numbers, quantized as in onnxruntime's guide.

    Args:
        proto: a model in floats.
        activations: the type of computed tensors, int8 or uint8.
        weights: the type of weights.
        per_channel: whether each channel of a weight has a scale of its own.
        with_pairs: QuantizeLinear and DequantizeLinear around the model's operators; or else QLinearConv and its kin.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    with _prepared(proto) as (prepared, result):
        quantize_static(
            prepared,
            result,
            _Noise(prepared),
            quant_format=QuantFormat.QDQ if with_pairs else QuantFormat.QOperator,
            per_channel=per_channel,
            activation_type=QuantType[_TYPES[activations]],
            weight_type=QuantType[_TYPES[weights]],
        )
        return onnx.load(result)


def quantized_in_the_run(proto: onnx.ModelProto) -> onnx.ModelProto:
    """`proto` with weights in whole numbers; computed tensors are quantized when they are read, by their own range."""
    from onnxruntime.quantization import quantize_dynamic

    with _prepared(proto) as (prepared, result):
        quantize_dynamic(prepared, result)
        return onnx.load(result)


@contextmanager
def _prepared(proto: onnx.ModelProto) -> Iterator[tuple[onnx.ModelProto, Path]]:
    """The model with batch normalization folded into convolutions, in an opset that knows scales for each channel.

    Also yields the path to which the result is to be written.
    """
    import onnxruntime

    given = onnx.ModelProto()
    given.CopyFrom(proto)
    given.ir_version = max(given.ir_version, 8)
    if given.opset_import[0].version < _OPSET:
        given = version_converter.convert_version(given, _OPSET)
    known = {tensor.name for tensor in given.graph.initializer}
    inputs = [value for value in given.graph.input if value.name not in known]
    del given.graph.input[:]
    given.graph.input.extend(inputs)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    logging.getLogger().setLevel(logging.ERROR)  # it would say that the model was not prepared, which it is
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder, "prepared.onnx"))
        onnxruntime.InferenceSession(given.SerializeToString(), options, providers=["CPUExecutionProvider"])
        yield onnx.load(options.optimized_model_filepath), Path(folder, "quantized.onnx")
