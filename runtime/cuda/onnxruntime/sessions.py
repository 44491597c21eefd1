"""Operators without a kernel: onnxruntime runs them between captured graphs, by default on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from itertools import starmap
from typing import Any, Protocol, runtime_checkable

import numpy as np
import onnx

from iosched.models.graph import Operator, TensorSpec
from iosched.models.node_attributes import has_subgraphs
from iosched.models.wiring import captures
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.kernel import SessionKernel
from iosched.runtime.plan import View
from iosched.runtime.session import DERIVED, are_of_numpy, load_onnxruntime, open_session, run_on_any_types, running

_NAMED = 3


class SessionDevice(StrEnum):
    """Where onnxruntime runs an operator, for messages."""

    PROVIDER = "in onnxruntime's CUDA provider"
    PARTLY = "in onnxruntime's CUDA provider and partly on the CPU"
    CPU = "in onnxruntime on the CPU"
    NO_PROVIDER = "in onnxruntime on the CPU (the CUDA provider does not load: see `iosched devices`)"


@dataclass(frozen=True)
class Tensor:
    """A row-major tensor of the model's type in GPU memory."""

    address: int
    view: View


@runtime_checkable
class SessionRun(Protocol):
    """An operator bound to its tensors."""

    @property
    def runs_on(self) -> SessionDevice:
        """Where the operator runs."""
        ...

    def __call__(self, stream: Any) -> None:
        """Runs in the order of `stream`.

        Raises:
            ExecutionError: onnxruntime fails.
        """
        ...


class Sessions(Protocol):
    """Opens operators in onnxruntime."""

    def open(self, kernel: SessionKernel, reads: Sequence[Tensor], writes: Sequence[Tensor], stream: Any) -> SessionRun:
        """Binds `kernel` to these tensors, to run in the order of `stream` only.

        Raises:
            InvalidModelError: onnxruntime rejects the operator.
            DeviceError: onnxruntime is not installed.
        """
        ...


@dataclass(frozen=True, eq=False)
class HostSessions:
    """onnxruntime on the CPU, on copies of the tensors."""

    driver: Driver
    runs_on: SessionDevice = SessionDevice.CPU

    def open(self, kernel: SessionKernel, reads: Sequence[Tensor], writes: Sequence[Tensor], stream: Any) -> SessionRun:
        """See `Sessions`."""
        del stream
        return _HostRun(
            self.driver, kernel, tuple(map(_Copied.of, reads)), tuple(map(_Copied.of, writes)), self.runs_on
        )


@dataclass(frozen=True, eq=False)
class _Copied:
    address: int
    array: np.ndarray

    @classmethod
    def of(cls, tensor: Tensor) -> _Copied:
        return cls(tensor.address, np.empty(tensor.view.shape or (), tensor.view.dtype))


@dataclass(frozen=True, eq=False)
class _HostRun:
    driver: Driver
    kernel: SessionKernel
    reads: tuple[_Copied, ...]
    writes: tuple[_Copied, ...]
    runs_on: SessionDevice

    def __call__(self, stream: Any) -> None:
        for each in self.reads:
            self.driver.download(each.address, each.array, stream)
        self.kernel.interpret([each.array for each in self.reads], [each.array for each in self.writes])
        for each in self.writes:
            self.driver.upload(each.address, each.array, stream)


def described(operators: Mapping[str, tuple[str, ...]], devices: Mapping[str, SessionDevice]) -> str:
    """Operators by ONNX types and place: "Det 'd', 'e' in onnxruntime on the CPU"."""
    found: dict[SessionDevice, dict[str, list[str]]] = {}
    for name, kinds in operators.items():
        found.setdefault(devices[name], {}).setdefault("+".join(kinds), []).append(name)
    return "; ".join(f"{', '.join(starmap(_named, by_kind.items()))} {runs_on}" for runs_on, by_kind in found.items())


def _named(kind: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{kind} {', '.join(map(repr, names[:_NAMED]))}{more}"


_Run = Callable[[Sequence[str], Mapping[str, np.ndarray]], Sequence[Any]]


@dataclass(frozen=True)
class Session:  # keys of the profile database contain the repr of kernels
    """Kernel: a small model for onnxruntime.

    Attributes:
        model: serialized; inputs and outputs are the reads and writes, in order.
        operators: its ONNX types, for messages.
    """

    model: bytes
    operators: tuple[str, ...]

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """Runs on the CPU; floats stored in another type are converted."""
        run, inputs, outputs = _opened(self.model)
        feeds = {name: np.asarray(array, dtype, order="C") for (name, dtype), array in zip(inputs, reads, strict=True)}
        with running():
            results = run(outputs, feeds)
        for target, result in zip(writes, results, strict=True):
            target[...] = result


@cache
def _opened(model: bytes) -> tuple[_Run, list[tuple[str, np.dtype]], list[str]]:
    options = load_onnxruntime().SessionOptions()
    options.log_severity_level = 4
    session = open_session(model, options, called=DERIVED)
    graph = onnx.load_from_string(model).graph
    dtypes = {value.name: _dtype(value) for value in (*graph.input, *graph.output)}
    kinds = ("string" if dtype.hasobject else dtype.name for dtype in dtypes.values())
    run = session.run if are_of_numpy(kinds) else partial(run_on_any_types, session)
    return run, [(value.name, dtypes[value.name]) for value in graph.input], [value.name for value in graph.output]


def _dtype(value: onnx.ValueInfoProto) -> np.dtype:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def session_kernel(
    builder: Builder, operator: Operator, nodes: Sequence[onnx.NodeProto]
) -> tuple[Session, tuple[str, ...], tuple[str, ...]]:
    """Kernel, reads and writes that run all nodes of `operator` in onnxruntime.

    Tensors have the model's own types, conversions are added later. Operators that differ only in names share a kernel,
    and so a session and a latency.
    """
    specs = builder.model.graph.tensor
    names = _names(operator, nodes)
    graph = onnx.helper.make_graph(
        [_anonymous(node, names) for node in nodes],
        "operator",
        [_value(specs[name], names[name]) for name in operator.inputs],
        [_value(specs[name], names[name]) for name in operator.outputs],
        _constants(builder.model.weights, nodes, names),
    )
    source = builder.model.proto
    proto = onnx.helper.make_model(graph, opset_imports=source.opset_import, ir_version=source.ir_version)
    proto.functions.extend(source.functions)
    kernel = Session(proto.SerializeToString(), tuple(node.op_type for node in nodes))
    return kernel, operator.inputs, operator.outputs


def _names(operator: Operator, nodes: Sequence[onnx.NodeProto]) -> dict[str, str]:
    """Numbers instead of names, unless a subgraph captures names."""
    names = dict.fromkeys([*operator.inputs, *operator.outputs])
    names |= dict.fromkeys(name for node in nodes for name in (*node.input, *node.output, *captures(node)) if name)
    if any(map(has_subgraphs, nodes)):
        return {name: name for name in names}
    return {name: f"t{number}" for number, name in enumerate(names)}


def _constants(
    weights: Mapping[str, np.ndarray], nodes: Sequence[onnx.NodeProto], names: Mapping[str, str]
) -> list[onnx.TensorProto]:
    used = dict.fromkeys(name for node in nodes for name in (*node.input, *captures(node)) if name in weights)
    return [onnx.numpy_helper.from_array(np.asarray(weights[name], order="C"), names[name]) for name in used]


def _anonymous(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    copied = onnx.NodeProto(op_type=node.op_type, domain=node.domain, overload=node.overload)
    copied.input.extend(names.get(name, "") for name in node.input)
    copied.output.extend(names.get(name, "") for name in node.output)
    copied.attribute.extend(node.attribute)
    return copied


def _value(spec: TensorSpec, name: str) -> onnx.ValueInfoProto:
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return onnx.helper.make_tensor_value_info(name, element, spec.shape)
