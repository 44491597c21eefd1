"""Which operators of a graph compute with whole numbers of a few bits that stand for others, or make such numbers."""

from __future__ import annotations

from iosched.models.graph import ComputationGraph

_BEGINNINGS = ("QLinear", "Quantize", "Dequantize", "DynamicQuantize")
_OTHERS = frozenset({"QGemm", "QAttention", "ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits"})


def in_whole_numbers(graph: ComputationGraph) -> tuple[str, ...]:
    """Names of the operators with a node that quantizes, dequantizes, or computes in whole numbers; O(nodes)."""
    return tuple(
        operator.name
        for operator in graph.operators
        if any(kind.startswith(_BEGINNINGS) or kind in _OTHERS for kind in operator.node_types)
    )
