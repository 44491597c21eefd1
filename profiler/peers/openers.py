"""The functions that open peers on a CPU. A new one has a module, its name in `names.py`, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iosched.models.model import Model
from iosched.profiler.peers.onnxruntime import open_best, open_parallel
from iosched.profiler.peers.openvino import open_openvino
from iosched.profiler.peers.requests import open_sessions, open_streams
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays

CPU_OPENERS: Mapping[str, Callable[[Model, int, Arrays], Candidate]] = {
    "onnxruntime": open_best,
    "onnxruntime-parallel": open_parallel,
    "openvino": open_openvino,
    "onnxruntime-sessions": open_sessions,
    "openvino-streams": open_streams,
}
"""By name, functions that open a peer for a model on a number of threads, to be timed on given inputs."""
