"""Parts side by side in one model, each with inputs of its own, so that a device can be asked for each of them.

A part is to run as it does amid its model. There a convolution most often reads what another layer has computed in the
layout of its kernels, and hands on its results likewise. So images come from a convolution and a pooling of one by one,
and results are pooled in the same way; no part contains these. What has fewer channels than a kernel takes at once is
fed as it is: so are the images that a model gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from iosched.models.composition.renaming import renamed
from iosched.models.enlarging.part import Groups, Part
from iosched.models.graph import TensorSpec
from iosched.models.load import assembled_model
from iosched.models.model import Model

_KERNEL = [1, 1]


def trial(parts: Mapping[str, Part], block: int) -> Model:
    """A model of all parts; the tensors of each have its name and a slash before theirs.

    Args:
        parts: by name; there is at least one, and all are of one model.
        block: how many channels kernels take at once.

    Raises:
        InvalidModelError: a part is none that can be run.
    """
    first = next(iter(parts.values()))
    draft = _Draft(block)
    for name, part in parts.items():
        draft.add(name, part)
    opsets = [helper.make_opsetid(domain, version) for domain, version in first.opsets.items()]
    proto = onnx.ModelProto(ir_version=first.ir_version, opset_import=opsets)
    proto.graph.CopyFrom(helper.make_graph(draft.nodes, "trial", draft.inputs, draft.outputs))
    return assembled_model("trial", proto, draft.weights)


def groups_in_trial(name: str, groups: Groups) -> Groups:
    """What the operators of the part called `name` are called in the trial."""
    return tuple(tuple(f"{name}/{operator}" for operator in group) for group in groups)


@dataclass(eq=False)
class _Draft:
    """The model while it is made."""

    block: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, name: str, part: Part) -> None:
        def called(own: str) -> str:
            return f"{name}/{own}"

        for spec in part.inputs:
            self._feed(called(spec.name), spec)
        self.nodes.extend(_renamed(part, called))
        self.weights.update({called(own): array for own, array in part.weights.items()})
        for spec in part.outputs:
            result = called(spec.name)
            if self._is_image(spec):
                self.nodes.append(_pooling(result, f"{result}/read"))
                result = f"{result}/read"
            self.outputs.append(helper.make_empty_tensor_value_info(result))

    def _feed(self, name: str, spec: TensorSpec) -> None:
        if not self._is_image(spec):
            self.inputs.append(_value(name, spec, spec.shape or ()))
            return
        images, channels, *size = spec.shape or ()
        fed, weight, made = f"{name}/fed", f"{name}/weight", f"{name}/made"
        self.inputs.append(_value(fed, spec, (images, self.block, *size)))
        self.weights[weight] = np.full((channels, self.block, 1, 1), 1 / self.block, spec.dtype)
        self.nodes.append(helper.make_node("Conv", [fed, weight], [made], kernel_shape=_KERNEL))
        self.nodes.append(_pooling(made, name))

    def _is_image(self, spec: TensorSpec) -> bool:
        shape = spec.shape or ()
        return spec.dtype == "float32" and len(shape) == 4 and shape[1] >= self.block and min(shape) > 0


def _renamed(part: Part, called: Callable[[str], str]) -> Iterator[onnx.NodeProto]:
    for node in part.nodes:
        made = renamed(node, called)
        made.name = called(node.name)
        yield made


def _pooling(source: str, result: str) -> onnx.NodeProto:
    """Changes nothing, and keeps the layout of what it reads."""
    return helper.make_node("MaxPool", [source], [result], kernel_shape=_KERNEL)


def _value(name: str, spec: TensorSpec, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), shape)
