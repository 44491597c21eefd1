"""Stages that run as one onnxruntime session over all cores: one node stands for all of their nodes.

What is computed inside such a session is onnxruntime's own affair: it gets no place in the plan's buffers, and a Concat
or Reshape inside is a call like others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from iosched.models.wiring import reads, writes
from iosched.runtime.cpu.kernel_graph import AsOne, KernelGraph


def session_nodes(
    kernels: KernelGraph, nodes: Mapping[str, tuple[int, ...]], units: Sequence[str], count: int
) -> AsOne | None:
    """One node in place of those of `units` (`KernelGraph.inside`).

    Args:
        nodes: for each unit its nodes.
        units: of one stage.
        count: how many nodes the graph has when the new one is added.

    Returns:
        None where nothing that the units compute is used.
    """
    own = sorted(index for unit in units for index in nodes[unit])
    members = _members(kernels, own)
    computed = dict.fromkeys(name for node in members for name in writes(node))
    outputs = [name for name in computed if _leaves(kernels, name, set(own))]
    if not outputs:
        return None
    inputs = dict.fromkeys(name for node in members for name in reads(node) if name not in computed)
    name = f"session:{outputs[-1]}"
    stand_in = onnx.NodeProto(name=name, op_type="Session", domain="iosched", input=inputs, output=outputs)
    return AsOne((stand_in,), (count,), frozenset(own), inside={name: members})


def _members(kernels: KernelGraph, own: Sequence[int]) -> tuple[onnx.NodeProto, ...]:
    """The nodes of a session; those that are shared out between rows as they were, where all of them are in it."""
    nodes = [kernels.nodes[index] for index in own]
    shared = [node for node in nodes if node.output[0] in kernels.rows.made]
    if not shared or len(shared) < len(kernels.rows.made):
        return tuple(nodes)
    return (*kernels.rows.whole, *(node for node in nodes if node.output[0] not in kernels.rows.made))


def _leaves(kernels: KernelGraph, name: str, inside: set[int]) -> bool:
    return name in kernels.outputs or not inside.issuperset(kernels.readers.get(name, ()))
