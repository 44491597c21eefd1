"""Families of operators and their colours, which all pictures of a schedule share.

Colours were chosen so that any two families can be told apart with normal sight, protanopia, deuteranopia and
tritanopia, every box stands out from its ground, and the words in it from the box (`tests/cli/pictures`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_INK, _WHITE = "#0b0f14", "#ffffff"


@dataclass(frozen=True)
class Paint:
    """Colours of a box: of its inside, of the words on it, and of its edge, which is that of the inside if empty."""

    fill: str
    ink: str
    edge: str = ""


@dataclass(frozen=True)
class Family:
    """Operators that do the same kind of work.

    Attributes:
        name: for people.
        light, dark: its colours on a white ground, and on a dark one.
        types: the ONNX and fused types that belong to it.
    """

    name: str
    light: Paint
    dark: Paint
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
    "conv": Family("convolution", Paint("#2486e5", _INK), Paint("#6283f3", _INK), frozenset(_CONVOLUTION.split())),
    "product": Family(
        "product, attention, recurrence",
        Paint("#63218d", _WHITE),
        Paint("#a64199", _WHITE),
        frozenset(_PRODUCT.split()),
    ),
    "pool": Family(
        "pooling, reduction", Paint("#105821", _WHITE), Paint("#556f34", _WHITE), frozenset(_POOLING.split())
    ),
    "sum": Family("arithmetic", Paint("#c58508", _INK), Paint("#ef7d1a", _INK), frozenset(_ARITHMETIC.split())),
    "act": Family("activation", Paint("#7f6e2a", _WHITE), Paint("#ebc812", _INK), frozenset(_ACTIVATION.split())),
    "norm": Family(
        "normalization", Paint("#006d84", _WHITE), Paint("#57e4d6", _INK), frozenset(_NORMALIZATION.split())
    ),
    "move": Family("data movement", Paint("#8b8c9b", _INK), Paint("#9e9fa2", _INK), frozenset(_MOVEMENT.split())),
    "other": Family("other, or not known", Paint("#d8dbe1", _INK, "#6a7280"), Paint("#2b323c", _WHITE, "#7b8492")),
}
"""By a short name, in the order of a legend; the last one takes all types that no other has."""

_FAMILY_OF = {kind: key for key, family in FAMILIES.items() for kind in family.types}


def family_of(kind: str) -> str:
    """The short name of the family of an operator type; of a type outside ONNX's own domain, that of its namesake."""
    return _FAMILY_OF.get(kind.rpartition("::")[2], "other")
