"""The bundled networks in PyTorch, which need no other package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from iosched import Model
from iosched.models.node_attributes import values
from iosched.profiler.baselines.torch_runs import TorchRun, open_way
from iosched.runtime.cuda.kernel import Precision
from iosched.scheduler.precision import PrecisionName


class Network(nn.Module):
    """An ONNX graph of the operators that the bundled networks have, node by node."""

    def __init__(self, model: Model) -> None:
        """Registers the weights as parameters.

        Raises:
            ValueError: an operator is not one of those.
        """
        super().__init__()
        nodes = list(model.proto.graph.node)
        self.inputs = [spec.name for spec in model.graph.inputs]
        self.outputs = list(model.graph.outputs)
        unknown = {node.op_type for node in nodes} - set(OPERATORS)
        if unknown:
            raise ValueError(f"no PyTorch counterpart of {', '.join(sorted(unknown))}")
        used = {name for node in nodes for name in node.input}
        self.names = {name: f"w{index}" for index, name in enumerate(sorted(used & set(model.weights)))}
        for name, attribute in self.names.items():
            tensor = torch.from_numpy(np.array(model.weights[name]))
            self.register_buffer(attribute, tensor)
        # Plain values: compilers of `forward` cannot read protobuf.
        self.steps = [(node.op_type, values(node), tuple(node.input), node.output[0]) for node in nodes]

    def forward(self, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = dict(zip(self.inputs, arrays, strict=True))
        values.update({name: getattr(self, attribute) for name, attribute in self.names.items()})
        for kind, attributes, operands, result in self.steps:
            values[result] = OPERATORS[kind](attributes, *(values[name] if name else None for name in operands))
        return tuple(values[name] for name in self.outputs)


def _conv(a: Mapping[str, Any], x: Any, w: Any, b: Any = None) -> Any:
    rank = w.ndim - 2
    pads = list(a.get("pads", [0] * 2 * rank))
    padding = pads[:rank]
    if pads[:rank] != pads[rank:]:
        x, padding = functional.pad(x, _torch_pads(pads)), [0] * rank
    return functional.conv2d(
        x, w, b, a.get("strides", [1] * rank), padding, a.get("dilations", [1] * rank), a.get("group", 1)
    )


def _torch_pads(pads: list[int]) -> list[int]:
    rank = len(pads) // 2
    return [pads[side * rank + axis] for axis in reversed(range(rank)) for side in (0, 1)]


def _max_pool(a: Mapping[str, Any], x: Any) -> Any:
    pads = list(a.get("pads", [0, 0, 0, 0]))
    if pads[:2] != pads[2:]:
        x, pads = functional.pad(x, _torch_pads(pads), value=float("-inf")), [0, 0, 0, 0]
    return functional.max_pool2d(
        x, a["kernel_shape"], a.get("strides", [1, 1]), pads[:2], ceil_mode=bool(a.get("ceil_mode", 0))
    )


def _average_pool(a: Mapping[str, Any], x: Any) -> Any:
    pads = list(a.get("pads", [0, 0, 0, 0]))
    counts = bool(a.get("count_include_pad", 0))
    strides, ceil = a.get("strides", [1, 1]), bool(a.get("ceil_mode", 0))
    if pads[:2] == pads[2:]:
        return functional.avg_pool2d(x, a["kernel_shape"], strides, pads[:2], ceil, counts)
    total = functional.avg_pool2d(functional.pad(x, _torch_pads(pads)), a["kernel_shape"], strides, 0, ceil)
    if counts:
        return total
    ones = torch.ones_like(x[:1, :1])
    return total / functional.avg_pool2d(functional.pad(ones, _torch_pads(pads)), a["kernel_shape"], strides, 0, ceil)


def _batch_norm(a: Mapping[str, Any], x: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Any:
    return functional.batch_norm(x, mean, variance, scale, shift, False, 0.0, a.get("epsilon", 1e-5))


def _gemm(a: Mapping[str, Any], x: Any, w: Any, b: Any = None) -> Any:
    x = x.T if a.get("transA", 0) else x
    product = a.get("alpha", 1.0) * (x @ (w.T if a.get("transB", 0) else w))
    return product if b is None else product + a.get("beta", 1.0) * b


OPERATORS: dict[str, Callable[..., Any]] = {
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda a, x: x.mean((2, 3), keepdim=True),
    "BatchNormalization": _batch_norm,
    "Relu": lambda a, x: functional.relu(x),
    "Add": lambda a, x, y: x + y,
    "Sum": lambda a, *terms: sum(terms[1:], start=terms[0]),
    "Concat": lambda a, *terms: torch.cat(terms, a["axis"]),
    "Flatten": lambda a, x: x.flatten(a.get("axis", 1)),
    "Gemm": _gemm,
}


@dataclass(frozen=True, eq=False)
class Opened:
    """A network after warm-up."""

    network: Network
    run: TorchRun

    def time(self, repeats: int) -> tuple[float, ...]:
        """See `TorchRun.time`."""
        return self.run.time(repeats)

    def outputs(self) -> dict[str, np.ndarray]:
        """By the names of the model's outputs."""
        return dict(zip(self.network.outputs, self.run.outputs(), strict=True))


def opened(way: str, model: Model, inputs: Mapping[str, np.ndarray], precision: PrecisionName) -> Opened:
    """The model in PyTorch; `way` is a key of `torch_runs.WAYS`.

    Raises:
        ValueError: PyTorch has no counterpart of an operator.
        DeviceError: PyTorch cannot run the network this way.
    """
    network = Network(model)
    return Opened(network, open_way(way, network, [inputs[name] for name in network.inputs], Precision(precision)))
