"""Empty nodes in captured graphs.

Events become edges, not nodes: m streams that wait for a stream that has waited for k others get k * m edges. With
an empty node between them, there are k + m.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from iosched.runtime.cuda.gpu.extras import LIBRARY

_ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
_SET = 1  # CU_STREAM_SET_CAPTURE_DEPENDENCIES


def add_empty_node(streams: Sequence[int]) -> None:
    """Puts an empty node after everything that the first stream's capture depends on, before all streams' later work.

    Does nothing outside of a capture, after fewer than two nodes, or with a driver before CUDA 11.3.
    """
    status, graph, node = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    before, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
    to = ctypes.byref
    try:
        library = ctypes.CDLL(LIBRARY)
        add, update = library.cuGraphAddEmptyNode, library.cuStreamUpdateCaptureDependencies
        info = library.cuStreamGetCaptureInfo_v2
    except (OSError, AttributeError):
        return
    refused = info(ctypes.c_void_p(streams[0]), to(status), None, to(graph), to(before), to(count))
    if refused or status.value != _ACTIVE or count.value < 2 or add(to(node), graph, before, count):
        return
    for stream in streams:
        update(ctypes.c_void_p(stream), to(node), ctypes.c_size_t(1), ctypes.c_uint(_SET))
