"""Self-checks of the CPU, and statistics of how the executor calls kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import closing

import onnx

from iosched.models.errors import DeviceError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.zoo.light import light_model
from iosched.runtime.cores import cpu_count
from iosched.runtime.cpu import library
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.native import NativeExecutor, NativeKernel
from iosched.runtime.openvino import library as openvino
from iosched.runtime.openvino.openvino_model import OpenvinoModel
from iosched.runtime.reference import SelfCheck, agrees_with_onnxruntime
from iosched.scheduler.baselines import greedy, sequential

MODEL = "light_squeezenet"


def cpu_checks() -> tuple[SelfCheck, ...]:
    """The self-checks of a CPU."""
    return (
        SelfCheck("executor", "compiled", _is_compiled),
        SelfCheck("model", MODEL, _runs_model),
        SelfCheck("openvino", MODEL, _runs_on_openvino),
    )


def _is_compiled() -> str:
    if not library.available():
        raise DeviceError(f"models run on the slower Python executor: {library.missing()}")
    return "loads"


def _runs_model() -> str:
    network = load_model(light_model(MODEL).SerializeToString(), name=MODEL)
    with closing(CpuBackend(network, lanes=cpu_count())) as backend:
        with closing(backend.compile(greedy(backend.graph))) as model:
            agreement = agrees_with_onnxruntime(network, model.run)
        executor = "compiled" if backend.is_native else "Python"
        return f"{backend.lanes} cores, {executor} executor, {agreement}"


def _runs_on_openvino() -> str:
    version = openvino.installed_version()
    if version is None:
        return str(openvino.missing())
    network = load_model(light_model(MODEL).SerializeToString(), name=MODEL)
    with OpenvinoModel(network, cpu_count()) as model:
        return f"OpenVINO {version}, {cpu_count()} threads, {agrees_with_onnxruntime(network, model.run)}"


def kernel_calls(model: Model) -> Mapping[str, Mapping[str, int]]:
    """Kernels of the sequential schedule on all cores, "invoked" and in "sessions": counts by operator, descending."""
    invoked: Counter[str] = Counter()
    sessions: Counter[str] = Counter()
    with closing(CpuBackend(model)) as backend:
        executor = backend.compile(sequential(backend.graph)).executor if backend.is_supported() else None
        for kernel in executor.kernels if isinstance(executor, NativeExecutor) else ():
            calls = sessions if kernel.invoked is None else invoked
            calls[operators_of(kernel)] += 1
    return {"invoked": dict(invoked.most_common()), "sessions": dict(sessions.most_common())}


def operators_of(kernel: NativeKernel) -> str:
    """The operators of a kernel with their domains, joined by "+"."""
    if kernel.invoked is not None:
        return kernel.invoked.operator
    nodes = onnx.ModelProto.FromString(kernel.program.model).graph.node
    return "+".join(f"{node.domain}.{node.op_type}".lstrip(".") for node in nodes)
