"""One operator for several of one input: its nodes and constants, and where in these those of the parts are.

Kernels are padded with zeros around their centres and stacked along the results, and so are the constants that scale
and shift channels behind them; the activation comes once, and a Split hands the parts on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from iosched.models.affine import epsilon_of
from iosched.models.chain import Chain
from iosched.models.node_attributes import integers, serialized, values

_SPLIT_INPUT_OPSET = 13  # sizes are an input since then, an attribute before
_NORMALIZATION = ("scale", "bias", "mean", "variance")


@dataclass(frozen=True)
class Origin:
    """Where a constant of a part lies: in the part's rows of constant `source` along `axis`, or in all of it."""

    source: str
    axis: int | None
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Stacked:
    """What stands for the parts.

    Attributes:
        nodes: in order, the last of them a Split.
        constants: the new ones.
        origins: for each part, where each of its constants lies, by name.
    """

    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, np.ndarray]
    origins: tuple[Mapping[str, Origin], ...]


def stacked(parts: Sequence[Chain], pads: Sequence[int], base: str, opset: int) -> Stacked:
    """The merged form of `parts`, which may be merged.

    Args:
        pads: of the merged convolution; nothing for products.
        base: names the result, and begins the name of every other new tensor.
        opset: of ONNX's own operators.
    """
    draft = _Draft(parts, base)
    if (relu := parts[0].relu) is not None:
        draft.follow(relu, [draft.last], f"{base}/relu")
    draft.follow_anchor(pads)
    for number, (like, own) in enumerate(_steps(parts)):
        draft.follow_step(f"{base}/step{number}", like, own)
    draft.follow_activation()
    draft.nodes[-1].output[0] = base
    draft.split(opset)
    for node in draft.nodes:
        node.name = node.output[0]
    return Stacked(tuple(draft.nodes), draft.constants, tuple(draft.origins))


def margins(own: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """The zeros on either side of a kernel inside a larger one, on every axis."""
    return [(large - small) // 2 for large, small in zip(kernel, own, strict=True)]


def _steps(parts: Sequence[Chain]) -> list[tuple[onnx.NodeProto, list[onnx.NodeProto | None]]]:
    """Every sequence of scales and shifts that a part has: each step, and the node that it is of each part or None."""
    found: dict[tuple[object, ...], list[tuple[onnx.NodeProto, list[onnx.NodeProto | None]]]] = {}
    kinds = [tuple(_kind(node) for node in part.linear) for part in parts]
    for part, kind in zip(parts, kinds, strict=True):
        found[kind] = [
            (like, [other.linear[number] if same == kind else None for other, same in zip(parts, kinds, strict=True)])
            for number, like in enumerate(part.linear)
        ]
    return [step for steps in found.values() for step in steps]


def _kind(node: onnx.NodeProto) -> object:
    return node.op_type, serialized(node)


@dataclass(eq=False)
class _Draft:
    """A merged operator under way."""

    parts: Sequence[Chain]
    base: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.origins: list[dict[str, Origin]] = [{} for _ in self.parts]
        self.first = self.parts[0]
        self.dtype = self.first.weight.dtype

    @property
    def last(self) -> str:
        """The tensor that comes next to be read."""
        return str(self.nodes[-1].output[0]) if self.nodes else self.first.source

    def follow(self, like: onnx.NodeProto, inputs: Sequence[str], output: str) -> None:
        """Adds a node as `like` that reads and writes other tensors."""
        node = helper.make_node(like.op_type, list(inputs), [output])
        node.attribute.extend(like.attribute)
        self.nodes.append(node)

    def follow_anchor(self, pads: Sequence[int]) -> None:
        """Adds the convolution or the product."""
        name, first = f"{self.base}/weight", self.first
        sizes = zip(*(part.weight.shape[2:] for part in self.parts), strict=True)
        kernel = tuple(max(size) for size in sizes)
        rows = [_padded(part.weight, kernel) for part in self.parts]
        self.constants[name] = np.concatenate(rows, axis=first.axis)
        for part, origins in zip(self.parts, self.origins, strict=True):
            origins[part.anchor.input[1]] = Origin(name, first.axis, part.weight.shape)
        inputs = [self.last, name]
        if any(part.bias for part in self.parts):
            inputs.append(self.stack(f"{self.base}/bias", [part.bias for part in self.parts], 0.0, 0))
        if first.is_convolution:
            ones = (1,) * len(kernel)
            stepped = {key: integers(first.anchor, key, ones) for key in ("dilations", "strides")}
            attributes: dict[str, object] = {"group": 1, "kernel_shape": kernel, "pads": list(pads), **stepped}
        else:
            attributes = values(first.anchor)
        node = helper.make_node(first.anchor.op_type, inputs, [f"{self.base}/linear"])
        node.attribute.extend(helper.make_attribute(*pair) for pair in sorted(attributes.items()))
        self.nodes.append(node)

    def follow_step(self, name: str, like: onnx.NodeProto, own: Sequence[onnx.NodeProto | None]) -> None:
        """Adds a scale or shift; parts that have none get one that does nothing."""
        if like.op_type == "BatchNormalization":
            neutral = (1.0, 0.0, 0.0, 1.0 - epsilon_of(like))
            constants = [
                self.stack(f"{name}/{role}", [node.input[place] if node else "" for node in own], value, 0)
                for place, (role, value) in enumerate(zip(_NORMALIZATION, neutral, strict=True), start=1)
            ]
        else:
            names = [
                next(item for item in node.input if item in part.weights) if node else ""
                for node, part in zip(own, self.parts, strict=True)
            ]
            behind = self.first.weight.ndim - 2 if self.first.is_convolution else 0
            constants = [self.stack(f"{name}/{like.op_type}", names, float(like.op_type == "Mul"), behind)]
        self.follow(like, [self.last, *constants], f"{name}/result")

    def stack(self, name: str, own: Sequence[str], neutral: float, behind: int) -> str:
        """A vector of a number for each result, with `behind` axes of one behind; `neutral` where a part has none."""
        rows = []
        for part, origins, constant in zip(self.parts, self.origins, own, strict=True):
            values = part.weights[constant] if constant else np.array(neutral, self.dtype)
            rows.append(np.broadcast_to(values.reshape(-1), (part.width,)))
            if constant:
                origins.setdefault(constant, Origin(name, 0, values.shape))
        self.constants[name] = np.concatenate(rows).reshape(-1, *(1,) * behind)
        return name

    def follow_activation(self) -> None:
        """Adds the activation, with the constants of the first part."""
        for number, node in enumerate(self.first.activation):
            for part, origins in zip(self.parts, self.origins, strict=True):
                pairs = zip(part.activation[number].input, node.input, strict=False)
                same = {own: Origin(name, None, part.weights[own].shape) for own, name in pairs if own in part.weights}
                origins.update({own: origin for own, origin in same.items() if own not in origins})
        before = self.last
        if len(self.first.activation) == 2:
            sigmoid, product = self.first.activation
            self.follow(sigmoid, [before], f"{self.base}/gate")
            self.follow(product, [before, self.last], self.base)
        else:
            for node in self.first.activation:
                self.follow(node, [before, *node.input[1:]], self.base)

    def split(self, opset: int) -> None:
        """Adds the Split that gives the parts' results their names."""
        sizes, outputs = [part.width for part in self.parts], [part.output for part in self.parts]
        axis = 1 if self.first.is_convolution else -1
        if opset < _SPLIT_INPUT_OPSET:
            self.nodes.append(helper.make_node("Split", [self.base], outputs, axis=axis, split=sizes))
            return
        self.constants[f"{self.base}/split"] = np.array(sizes, np.int64)
        self.nodes.append(helper.make_node("Split", [self.base, f"{self.base}/split"], outputs, axis=axis))


def _padded(weight: np.ndarray, kernel: Sequence[int]) -> np.ndarray:
    around = [(margin, margin) for margin in margins(weight.shape[2:], kernel)] if kernel else []
    return np.pad(weight, [(0, 0), (0, 0), *around])
