"""Styles of operators and latencies in all pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iosched.cli.common.text import latency_text, shape_text
from iosched.models.graph import ComputationGraph
from iosched.models.structure import OperatorForm, Structure
from iosched.scheduler.schedule import Stage
from iosched.scheduler.strategies import STAGE_RULES


@dataclass(frozen=True)
class Style:
    """Appearance of an operator.

    Attributes:
        type: the operator's type.
        label: the text in its box.
        models: the models that it belongs to, if the file has several.
        shape: of its first output, as `1x64x56x56`; empty if unknown.
        flops: None if unknown.
    """

    type: str
    label: str
    models: str = ""
    shape: str = ""
    flops: int | None = None

    @property
    def family(self) -> str:
        """Key of its operator family."""
        return family_of(self.type)

    @property
    def kind(self) -> str:
        """The key of its colour: the models, or the family if there is one model."""
        return self.models or FAMILIES[self.family].name


def styles_of(graph: ComputationGraph, models: Mapping[str, str] = {}) -> dict[str, Style]:
    """Styles by operator name.

    Args:
        models: the models of each operator, if the file has several.
    """
    shape_of = {spec.name: spec.shape for spec in graph.tensors}
    return {
        each.name: Style(
            each.type,
            _label(each.type, each.integers("kernel_shape")),
            models.get(each.name, ""),
            "" if (shape := shape_of.get(each.name)) is None else shape_text(shape),
            each.flops,
        )
        for each in graph.operators
    }


def styles_by_structure(structure: Structure | None) -> dict[str, Style]:
    """Styles from the structure in a schedule file; empty without one."""
    if structure is None:
        return {}
    by_form = list(map(_style_of_form, structure.forms))
    return {
        each.name: by_form[number] for each, number in zip(structure.operators, structure.form_numbers, strict=True)
    }


def _style_of_form(form: OperatorForm) -> Style:
    kernels = (dict(node.attributes).get("kernel_shape") for node in form.nodes)
    kernel = next((found for found in kernels if found), "")
    shape = form.outputs[0].rpartition(" ")[2] if form.outputs else ""
    return Style(form.type, _label(form.type, tuple(map(int, re.findall(r"[0-9]{1,9}", kernel)))), shape=shape)


def shown(stage: Stage, group: Sequence[str]) -> Sequence[str]:
    """Boxes of a group: its operators; of a long session the first, a count and the last."""
    if not STAGE_RULES[stage.strategy].is_in_order or len(group) <= _MOST_OF_A_SESSION:
        return group
    return (group[0], f"{len(group) - 2} more", group[-1])


_MOST_OF_A_SESSION = 4
_SHORT = {"AveragePool": "AvgPool", "GlobalAveragePool": "GlobalAvgPool"}


def _label(kind: str, kernel: Sequence[int]) -> str:
    kind = _SHORT.get(kind, kind)
    if kernel:
        return f"{kind} {'×'.join(map(str, kernel))}"  # noqa: RUF001 - a multiplication sign is meant
    return kind


def style_of(name: str, styles: Mapping[str, Style]) -> Style:
    """Style of an operator; without one, the last part of its name."""
    return styles.get(name) or Style("", name.rsplit("/", 1)[-1])


def latency_label(latency_us: float | None) -> str:
    """A latency in pictures, with two decimals of a millisecond."""
    return latency_text(latency_us, unknown="latency unknown", digits=2)


_INK, _WHITE = "#0b0f14", "#ffffff"


@dataclass(frozen=True)
class BoxColours:
    """Colours of a box's inside, text and edge (as the inside, if empty)."""

    fill: str
    ink: str
    edge: str = ""


@dataclass(frozen=True)
class Family:
    """Operators with the same kind of work.

    Attributes:
        name: for legends.
        light, dark: colours on a white and a dark background.
        types: ONNX types and fused types.
    """

    name: str
    light: BoxColours
    dark: BoxColours
    types: frozenset[str] = frozenset()


_CONVOLUTION = """Conv ReluConv ReluSepConv SepConv ConvTranspose ConvInteger QLinearConv DeformConv CausalConvWithState
    FusedConv NhwcConv"""
_PRODUCT = """Gemm MatMul MatMulInteger QLinearMatMul QGemm FusedMatMul FusedGemm MatMulNBits Einsum Attention
    MultiHeadAttention GroupQueryAttention LinearAttention LSTM GRU RNN DFT STFT Det"""
_POOLING = """MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool QLinearAveragePool
    QLinearGlobalAveragePool MaxRoiPool RoiAlign MaxUnpool ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare ArgMax ArgMin CumSum CumProd TopK NonMaxSuppression"""
_ARITHMETIC = """Add Sum Sub Mul Div Mod Max Min Mean Pow Abs Neg Sign Ceil Floor Round Reciprocal Sqrt Exp Log Sin Cos
    Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh And Or Xor Not Equal Greater GreaterOrEqual Less LessOrEqual Where
    BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor IsInf IsNaN QLinearAdd QLinearMul RotaryEmbedding"""
_ACTIVATION = """Relu LeakyRelu PRelu ThresholdedRelu Elu Celu Selu Gelu FastGelu BiasGelu QuickGelu Mish Swish SwiGLU
    HardSwish HardSigmoid Sigmoid Softplus Softsign Tanh Erf Clip Shrink Softmax LogSoftmax Hardmax QLinearSigmoid
    QLinearSoftmax"""
_NORMALIZATION = """BatchNormalization InstanceNormalization LayerNormalization GroupNormalization RMSNormalization
    LpNormalization MeanVarianceNormalization LRN SkipLayerNormalization SimplifiedLayerNormalization Dropout"""
_MOVEMENT = """Concat Split Slice Gather GatherElements GatherND ScatterElements ScatterND Reshape Flatten Transpose
    Squeeze Unsqueeze Expand Tile Pad Identity Cast CastLike BitCast Resize Upsample DepthToSpace SpaceToDepth
    GridSample Shape Size ConstantOfShape OneHot Range Trilu Compress NonZero Unique ReverseSequence Col2Im
    CenterCropPad TensorScatter QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConcat"""

FAMILIES: Mapping[str, Family] = {
    "conv": Family(
        "convolution", BoxColours("#2486e5", _INK), BoxColours("#6283f3", _INK), frozenset(_CONVOLUTION.split())
    ),
    "product": Family(
        "product, attention, recurrence",
        BoxColours("#63218d", _WHITE),
        BoxColours("#a64199", _WHITE),
        frozenset(_PRODUCT.split()),
    ),
    "pool": Family(
        "pooling, reduction", BoxColours("#105821", _WHITE), BoxColours("#556f34", _WHITE), frozenset(_POOLING.split())
    ),
    "sum": Family(
        "arithmetic", BoxColours("#c58508", _INK), BoxColours("#ef7d1a", _INK), frozenset(_ARITHMETIC.split())
    ),
    "act": Family(
        "activation", BoxColours("#7f6e2a", _WHITE), BoxColours("#ebc812", _INK), frozenset(_ACTIVATION.split())
    ),
    "norm": Family(
        "normalization", BoxColours("#006d84", _WHITE), BoxColours("#57e4d6", _INK), frozenset(_NORMALIZATION.split())
    ),
    "move": Family(
        "data movement", BoxColours("#8b8c9b", _INK), BoxColours("#9e9fa2", _INK), frozenset(_MOVEMENT.split())
    ),
    "other": Family(
        "other or unknown", BoxColours("#d8dbe1", _INK, "#6a7280"), BoxColours("#2b323c", _WHITE, "#7b8492")
    ),
}
"""By key, in the order of a legend; the last one takes all other types."""

_FAMILY_OF = {kind: key for key, family in FAMILIES.items() for kind in family.types}


def family_of(kind: str) -> str:
    """Key of the family of an operator type, without its domain."""
    return _FAMILY_OF.get(kind.rpartition("::")[2], "other")
