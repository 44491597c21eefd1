"""What a captured CUDA graph holds, counted by the driver: cuDNN adds kernels and copies that no task of ours names."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable
from typing import Any

KINDS = ("kernel", "copy", "fill", "host", "graph", "empty", "wait", "record")
"""Of `CUgraphNodeType`, by its numbers."""


def node_counts(graphs: Iterable[Any]) -> dict[str, int] | None:
    """Nodes of CuPy's graphs by kind, and edges between them; None where there is no driver to ask."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    found: Counter[str] = Counter()
    for graph in graphs:
        handle, count, edges = ctypes.c_void_p(graph.graph), ctypes.c_size_t(), ctypes.c_size_t()
        _check(cuda.cuGraphGetNodes(handle, None, ctypes.byref(count)))
        nodes = (ctypes.c_void_p * count.value)()
        _check(cuda.cuGraphGetNodes(handle, nodes, ctypes.byref(count)))
        found.update(_kind(cuda, node) for node in nodes)
        get_edges = cuda.cuGraphGetEdges_v2 if hasattr(cuda, "cuGraphGetEdges_v2") else None
        if get_edges is not None:
            _check(get_edges(handle, None, None, None, ctypes.byref(edges)))
            found["edges"] += edges.value
    return dict(sorted(found.items()))


def _kind(cuda: Any, node: int) -> str:
    kind = ctypes.c_int()
    _check(cuda.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
    return KINDS[kind.value] if kind.value < len(KINDS) else f"kind {kind.value}"


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA's driver answered {status}")
