"""How the executor calls the kernels of a model: as operators without sessions, or as sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import closing

import onnx

from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.native import NativeExecutor, NativeKernel
from iosched.scheduler.baselines import sequential


def kernel_calls(model: Model) -> Mapping[str, Mapping[str, int]]:
    """Kernels of the sequential schedule on all cores, "invoked" and in "sessions", by operator, the most first.

    Raises:
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: onnxruntime is not installed.
    """
    invoked: Counter[str] = Counter()
    sessions: Counter[str] = Counter()
    with closing(CpuBackend(model)) as backend:
        executor = backend.compile(sequential(backend.graph)).executor if backend.is_supported() else None
        for kernel in executor.kernels if isinstance(executor, NativeExecutor) else ():
            calls = sessions if kernel.invoked is None else invoked
            calls[operators_of(kernel)] += 1
    return {"invoked": dict(invoked.most_common()), "sessions": dict(sessions.most_common())}


def operators_of(kernel: NativeKernel) -> str:
    """The operators that a kernel runs, with their domains, joined by "+"."""
    if kernel.invoked is not None:
        return kernel.invoked.operator
    nodes = onnx.ModelProto.FromString(kernel.program.model).graph.node
    return "+".join(f"{node.domain}.{node.op_type}".lstrip(".") for node in nodes)
