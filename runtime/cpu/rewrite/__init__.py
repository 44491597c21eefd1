"""Rewrites of a model for CPUs, one file each. Each is a function that edits a graph in place.

Inputs and outputs keep their names and shapes. New nodes and tensors are named after the tensor that they help to
compute, by which they belong to its operator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from iosched.models.editable_graph import EditableGraph
from iosched.runtime.cpu.rewrite.affine_chains import join_affine
from iosched.runtime.cpu.rewrite.align import align_channels
from iosched.runtime.cpu.rewrite.blocked import keep_blocked
from iosched.runtime.cpu.rewrite.dequantized_weights import dequantize_weights
from iosched.runtime.cpu.rewrite.products import lay_out_by_results
from iosched.runtime.cpu.rewrite.response_norm import spell_out_response_norms
from iosched.runtime.cpu.rewrite.skip_norm import spell_out_skip_norms
from iosched.runtime.cpu.rewrite.windows import take_in_windows

Rewrite = Callable[[EditableGraph], None]


def model_rewrites(block: int) -> tuple[Rewrite, ...]:
    """Those of the model's graph, before onnxruntime optimizes it, in this order.

    Args:
        block: channels in a block of onnxruntime's NCHWc layout; 1 where there is no such layout.
    """
    return (
        spell_out_response_norms, join_affine, take_in_windows, EditableGraph.drop_unread,
        partial(align_channels, block=block), EditableGraph.drop_unread,
    )  # fmt: skip


def kernel_rewrites(block: int) -> tuple[Rewrite, ...]:
    """Those of the graph that onnxruntime optimized, in this order.

    Args:
        block: as of `model_rewrites`.
    """
    return (dequantize_weights, partial(keep_blocked, block=block), spell_out_skip_norms, lay_out_by_results)
