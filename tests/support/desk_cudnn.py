"""Puts cuDNN's frontend on the desk: its graphs and plans are real, built for a described GPU; what a plan computes is
evaluated from the graph itself, on the addresses that it is given.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from desk_cuda import CudaStatusError, DeskCuda
from onnx.helper import make_node
from small_models import data, proto_of

from iosched.runtime.cuda.cudnn.cudnn_graph import GpuDescription

DEVICES = Path(__file__).parents[2] / "benchmarks" / "devices"


def described(name: str = "h100") -> GpuDescription:
    """The GPU that plans are built for."""
    return GpuDescription.from_json((DEVICES / f"{name}.json").read_text())


def missing() -> str | None:
    """Why cuDNN cannot build plans here; None where it can."""
    if find_spec("cudnn") is None:
        return "cuDNN's frontend is not installed"
    import cudnn

    try:
        cudnn.create_device_properties(described().properties)
    except (RuntimeError, AttributeError) as error:
        return f"cuDNN cannot be given a description of a GPU: {error}"
    return None


def install(monkeypatch: pytest.MonkeyPatch, desk: DeskCuda, name: str = "h100") -> list[Any]:
    """Handles and execution on the desk; returns the handles that will be made."""
    import cudnn

    device = described(name)
    handles: list[Any] = []
    serialized: dict[bytes, DeskGraph] = {}

    def create_handle() -> Any:
        handles.append(cudnn.Handle(0x1000 + len(handles), desk.get_device(), 0))
        return handles[-1]

    def set_stream(handle: Any, stream: int) -> None:
        assert isinstance(handle, cudnn.Handle)
        assert type(stream) is int
        assert_current(handle, stream)
        handle.stream = stream

    def assert_current(handle: Any, stream: int) -> None:
        assert handle in handles
        assert handle._ordinal == desk.get_device() == desk.device_of(stream), "another GPU than the current one"

    class DeskGraph(cudnn.pygraph):  # type: ignore[misc]
        """A graph for the described GPU instead of the one of the handle."""

        rounds = True
        """Whether tensor cores are allowed, which round the factors of float32 to tf32."""

        def __init__(self, *, handle: Any = None, **common: Any) -> None:
            if handle is not None:
                assert_current(handle, handle.stream)
                common["device_property"] = cudnn.create_device_properties(device.properties)
                common["sm_version"] = device.sm_version
            super().__init__(**common)

        def deselect_numeric_notes(self, notes: list[Any]) -> Any:
            self.rounds = cudnn.numerical_note.TENSOR_CORE not in notes
            return super().deselect_numeric_notes(notes)

        def serialize(self) -> Any:
            content = super().serialize()
            serialized[bytes(content)] = self
            return content

        def deserialize(self, handle: Any, content: Any) -> None:
            """Really loads; what the plan computes is known of those that this process has serialized."""
            assert_current(handle, handle.stream)
            if bytes(content) not in serialized:
                raise RuntimeError("what this plan computes is not known on the desk")
            super().deserialize(content)
            self.loaded_nodes, self.rounds = serialized[bytes(content)]._nodes, serialized[bytes(content)].rounds
            try:
                _warm_up(desk, handle.stream)
            except CudaStatusError as error:
                raise RuntimeError(f"CUDNN_STATUS_INTERNAL_ERROR ({error.status})") from None

        def execute_plan_at_index(self, tensors: Mapping[int, int], workspace: int, index: int, handle: Any) -> None:
            try:
                desk.check("cudnnBackendExecute")
            except CudaStatusError as error:
                raise RuntimeError(f"CUDNN_STATUS_EXECUTION_FAILED ({error.status})") from None
            assert_current(handle, handle.stream)
            pack, workspace_address = self._native_var_pack(self._uid_to_data(tensors), workspace)
            assert all(address % 16 == 0 for address in pack.values()), "an address that cuDNN refuses"
            loaded = self.__dict__.get("loaded_nodes")
            nodes = loaded or self._nodes
            nbytes = self.get_workspace_size() if loaded else self.get_workspace_size_plan_at_index(index)
            assert workspace_address or not nbytes, "no workspace"
            desk._check_range(workspace_address, nbytes)
            tensors_of = {tensor.uid: tensor for node in nodes for tensor in _tensors(node) if tensor.uid in pack}
            assert set(tensors_of) == set(pack), "tensors without an address, or addresses without a tensor"
            arrays = {uid: _array(pack[uid], tensor) for uid, tensor in tensors_of.items()}
            for uid, address in pack.items():
                desk._check_range(address, arrays[uid].itemsize)

            def run() -> None:
                with np.errstate(all="ignore"):
                    _evaluate(nodes, arrays, rounds=self.rounds)

            desk.launched.append("cudnn")
            if nbytes:  # a kernel of cuDNN's own, as for tables and slices
                desk.enqueue(handle.stream, lambda: ctypes.memset(workspace_address, 0xFF, nbytes))
            desk.enqueue(handle.stream, run)

    monkeypatch.setattr(cudnn, "create_handle", create_handle)
    monkeypatch.setattr(cudnn, "set_stream", set_stream)
    monkeypatch.setattr(cudnn, "destroy_handle", lambda handle: handles.remove(handle))
    monkeypatch.setattr(cudnn, "pygraph", DeskGraph)
    return handles


def _warm_up(desk: DeskCuda, stream: int) -> None:
    """The frontend's use of a plan that it has loaded: a capture on the handle's stream, then 1 MB for a moment."""
    for name in ("streamBeginCapture", "streamEndCapture", "malloc", "free"):
        desk.check(name)
    desk.stream_begin_capture(stream)
    desk.graph_destroy(desk.stream_end_capture(stream))
    desk.free(desk.malloc(1 << 20))


def _tensors(node: Any) -> list[Any]:
    return [*node.inputs.values(), *node.outputs.values()]


def _array(address: int, tensor: Any) -> np.ndarray:
    """The tensor at its address, with its strides in memory."""
    dtype = np.dtype("float16" if "HALF" in str(tensor.data_type) else "float32")
    reach = 1 + sum((n - 1) * stride for n, stride in zip(tensor.dim, tensor.stride, strict=True))
    data = (ctypes.c_uint8 * (reach * dtype.itemsize)).from_address(address)
    return np.ndarray(tensor.dim, dtype, data, 0, [stride * dtype.itemsize for stride in tensor.stride])


def _evaluate(nodes: list[Any], arrays: Mapping[int, np.ndarray], *, rounds: bool) -> None:
    known: dict[int, np.ndarray] = {}

    def value(tensor: Any) -> np.ndarray:
        found = known[id(tensor)] if id(tensor) in known else arrays[tensor.uid]
        return found.astype(np.float32)

    for node in nodes:
        inputs = [value(tensor) for tensor in node.inputs.values()]
        (output,) = node.outputs.values()
        if rounds and node.node_type.name in ("CONV_FPROP", "MATMUL"):
            inputs = [_as_tf32(each) for each in inputs]
        result = _COMPUTES[node.node_type.name](node.params, *inputs)
        known[id(output)] = result
        if output.uid in arrays and not output.is_virtual:
            arrays[output.uid][...] = result


def _as_tf32(factor: np.ndarray) -> np.ndarray:
    """Rounded to ten bits behind the leading one, as halves have anyway."""
    return np.asarray((factor.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32))


def _convolution(parameters: Mapping[str, Any], image: np.ndarray, weight: np.ndarray) -> np.ndarray:
    pads = (*parameters["pre_padding"], *parameters["post_padding"])
    steps = {f"{name}s": tuple(parameters[name]) for name in ("stride", "dilation")}
    session = _session(image.shape, weight.shape, pads=pads, **steps)
    found: np.ndarray = session.run(None, {"x": np.ascontiguousarray(image), "w": np.ascontiguousarray(weight)})[0]
    return found


@cache
def _session(image: tuple[int, ...], weight: tuple[int, ...], **attributes: Any) -> Any:
    import onnxruntime

    conv = make_node("Conv", ["x", "w"], ["y"], group=image[1] // weight[1], **attributes)
    return onnxruntime.InferenceSession(data(proto_of([conv], {"x": image, "w": weight}, ["y"])))


def _pointwise(parameters: Mapping[str, Any], x: np.ndarray, *others: np.ndarray) -> np.ndarray:
    mode = parameters["mode"]
    if mode in ("add", "bias"):
        return np.asarray(x + others[0])
    if mode == "relu":
        slope, upper = parameters.get("negative_slope") or 0.0, parameters.get("upper_clip")
        found = np.where(x > (parameters.get("lower_clip") or 0.0), x, slope * x)
        return np.asarray(found if upper is None else np.minimum(found, upper))
    return np.asarray(_FUNCTIONS[mode](x))


_FUNCTIONS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "softplus": lambda x: np.logaddexp(0, x),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "gelu_approx_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}

_COMPUTES = {
    "CONV_FPROP": _convolution,
    "POINTWISE": _pointwise,
    "MATMUL": lambda parameters, a, b: a @ b,
}
