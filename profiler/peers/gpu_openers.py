"""The functions that open peers on an attached GPU. A new one has a module, its name in `names.py`, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from iosched.profiler.peers.onnxruntime_cuda import open_on_gpu
from iosched.profiler.peers.place import GpuPlace
from iosched.profiler.peers.torch import open_torch
from iosched.runtime.executor import Candidate

GPU_OPENERS: Mapping[str, Callable[[GpuPlace], Candidate]] = {
    "onnxruntime-cuda": open_on_gpu,
    **{way: partial(open_torch, way) for way in ("torch", "torch-cudagraph", "torch-compile")},
}
"""By name, functions that open a peer at a place on a GPU."""
