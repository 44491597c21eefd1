"""The functions that open peers, by name. A new peer has a module, its name in `names.py`, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from iosched.models.model import Model
from iosched.profiler.measuring.in_turn import Candidate
from iosched.profiler.peers.onnxruntime import open_best, open_on_gpu, open_parallel
from iosched.profiler.peers.openvino import open_openvino
from iosched.profiler.peers.place import GpuPlace
from iosched.profiler.peers.requests import open_sessions, open_streams
from iosched.profiler.peers.torch import open_torch
from iosched.runtime.inputs import Arrays

CPU_OPENERS: Mapping[str, Callable[[Model, int, Arrays], Candidate]] = {
    "onnxruntime": open_best,
    "onnxruntime-parallel": open_parallel,
    "openvino": open_openvino,
    "onnxruntime-sessions": open_sessions,
    "openvino-streams": open_streams,
}
"""By name, functions that open a peer for a model on a number of threads, to be timed on given inputs."""

GPU_OPENERS: Mapping[str, Callable[[GpuPlace], Candidate]] = {
    "onnxruntime-cuda": open_on_gpu,
    **{way: partial(open_torch, way) for way in ("torch", "torch-cudagraph", "torch-compile")},
}
"""By name, functions that open a peer at a place on a GPU."""
