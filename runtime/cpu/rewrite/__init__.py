"""Rewrites of a model for CPUs, one file each: functions that edit a graph in place.

Inputs and outputs keep their names and shapes. New nodes and tensors are named after the tensor that they help to
compute, which assigns them to its operator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from iosched.models.editable_graph import EditableGraph
from iosched.runtime.cpu.rewrite.affine_chains import join_affine
from iosched.runtime.cpu.rewrite.align import align_channels
from iosched.runtime.cpu.rewrite.blocked import keep_blocked
from iosched.runtime.cpu.rewrite.dequantized_weights import dequantize_weights
from iosched.runtime.cpu.rewrite.products import transpose_row_weights
from iosched.runtime.cpu.rewrite.response_norm import decompose_response_norms
from iosched.runtime.cpu.rewrite.skip_norm import decompose_skip_norms
from iosched.runtime.cpu.rewrite.windows import absorb_windows

Rewrite = Callable[[EditableGraph], None]


def model_rewrites(block: int) -> tuple[Rewrite, ...]:
    """Rewrites of the model's graph, in order, before onnxruntime optimizes it.

    Args:
        block: channels in a block of onnxruntime's NCHWc layout; 1 if it has none.
    """
    return (
        decompose_response_norms, join_affine, absorb_windows, EditableGraph.drop_unread,
        partial(align_channels, block=block), EditableGraph.drop_unread,
    )  # fmt: skip


def kernel_rewrites(block: int) -> tuple[Rewrite, ...]:
    """Rewrites of the graph that onnxruntime optimized, in order; `block` as in `model_rewrites`."""
    return (dequantize_weights, partial(keep_blocked, block=block), decompose_skip_norms, transpose_row_weights)
