"""Merged operators on the kernel graph: one convolution or product in place of several that read the same tensor.

Kernels are padded with zeros around their centres and stacked along the results; this is exact under the rule of
`models.merge_rule`, which the caller has checked. A Split hands the parts on: at batch 1 it costs nothing for channels.
What onnxruntime left behind the convolutions comes once, before the Split, where it is the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import onnx

from iosched.models.fusion.queries import ACTIVATIONS
from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import assign, integers, padding, plain_values
from iosched.runtime.cpu.kernel_graph import AsOne, KernelGraph
from iosched.runtime.cpu.stacked_weights import is_centrable, stacked_bias, stacked_weight

_CONVOLUTIONS, _PRODUCTS = ("Conv", "FusedConv"), ("FusedGemm", "Gemm", "MatMul")
_SIZED = ("auto_pad", "kernel_shape", "pads")
_ELEMENTWISE = ACTIVATIONS | {"Mul", "QuickGelu"}


@dataclass(frozen=True)
class _Unit:
    """The nodes of one operator: those that prepare its input, the convolution or product, and what follows."""

    before: tuple[int, ...]
    anchor: int
    after: tuple[int, ...]


def merge_nodes(
    kernels: KernelGraph, nodes: Mapping[str, tuple[int, ...]], units: Sequence[str], count: int
) -> AsOne | None:
    """One convolution (or product) and a Split in place of those of `units`.

    Args:
        nodes: for each unit its nodes.
        units: at least two units of one merge stage.
        count: how many nodes the graph has when the new ones are added.

    Returns:
        None where the optimized nodes do not allow it: onnxruntime fused one with something else, or a weight has an
        unknown layout.
    """
    found = [_unit(kernels, nodes[unit]) for unit in units]
    parts = [unit for unit in found if unit is not None]
    if len(parts) < len(units) or not _alike(kernels, parts):
        return None
    draft = _Draft(kernels, parts)
    if not draft.stack():
        return None
    lifted = draft.lift()
    draft.split(lifted)
    rest = [index for part in parts for index in part.after[lifted:]]
    own = (*parts[0].before, *range(count, count + len(draft.nodes)), *rest)
    return AsOne(tuple(draft.nodes), own, weights=draft.constants, tensors=draft.results)


def _unit(kernels: KernelGraph, nodes: Sequence[int]) -> _Unit | None:
    """The nodes of an operator by their roles; None where it is not one chain to and one cone from its anchor."""
    anchors = [index for index in nodes if kernels.nodes[index].op_type in (*_CONVOLUTIONS, *_PRODUCTS)]
    if len(anchors) != 1:
        return None
    place = list(nodes).index(anchors[0])
    unit = _Unit(tuple(nodes[:place]), anchors[0], tuple(nodes[place + 1 :]))
    chain = (*unit.before, unit.anchor)
    for before, index in pairwise(chain):
        results = [name for name in kernels.nodes[before].output if name]
        if list(kernels.reads[index]) != results or [kernels.readers[name] for name in results] != [(index,)]:
            return None
    made = set(kernels.nodes[unit.anchor].output)
    for index in unit.after:
        if not made.issuperset(kernels.reads[index]):
            return None
        made.update(kernels.nodes[index].output)
    return unit if len(kernels.reads[chain[0]]) == 1 else None


def _alike(kernels: KernelGraph, parts: Sequence[_Unit]) -> bool:
    """Whether the nodes differ in their weights, in kernel size and padding alone."""
    first = parts[0]
    return all(
        [_identity(kernels, index) for index in part.before] == [_identity(kernels, index) for index in first.before]
        and _source(kernels, part) == _source(kernels, first)
        and _settings(kernels.nodes[part.anchor]) == _settings(kernels.nodes[first.anchor])
        and _is_plain(kernels, kernels.nodes[part.anchor])
        for part in parts
    )


def _source(kernels: KernelGraph, part: _Unit) -> str:
    return kernels.reads[(*part.before, part.anchor)[0]][0]


def _identity(kernels: KernelGraph, index: int) -> object:
    """What a node of one input is, beside the names of its tensors."""
    node = kernels.nodes[index]
    constants = [kernels.weights[name] for name in node.input if name in kernels.weights]
    return _settings(node, ()), [(array.dtype.name, array.shape, array.tobytes()) for array in constants]


def _settings(node: onnx.NodeProto, free: Sequence[str] = _SIZED) -> object:
    attributes = {name: value for name, value in plain_values(node).items() if name not in free}
    return node.domain, node.op_type, attributes


def _is_plain(kernels: KernelGraph, node: onnx.NodeProto) -> bool:
    """Whether the anchor has constant weights and no sum, and its result a known size."""
    constants = [name for name in node.input[1:] if name]
    return (
        len(node.input) <= 3
        and bool(constants)
        and all(name in kernels.weights for name in constants)
        and all(kernels.tensors[name].is_static for name in (node.input[0], node.output[0]))
        and (node.op_type in _CONVOLUTIONS or kernels.weights[node.input[1]].ndim == 2)
    )


@dataclass(eq=False)
class _Draft:
    """Nodes that stand for those of several units, in order, and their constants and results."""

    kernels: KernelGraph
    parts: Sequence[_Unit]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    results: dict[str, TensorSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.anchors = [self.kernels.nodes[part.anchor] for part in self.parts]
        self.base = "merged:" + "+".join(node.output[0] for node in self.anchors)
        self.axis = 1 if self.anchors[0].op_type in _CONVOLUTIONS else -1
        # For each part, its tensors by the name of what holds them for all parts.
        self.own = [{node.output[0]: self.base} for node in self.anchors]

    def stack(self) -> bool:
        """Adds the convolution or product; False where a layout does not allow it."""
        kernels, first = self.kernels, self.anchors[0]
        weights = [kernels.weights[node.input[1]] for node in self.anchors]
        convolves = first.op_type in _CONVOLUTIONS
        if convolves and not all(is_centrable(kernels, node, weights) for node in self.anchors):
            return False
        self.constants[f"{self.base}/weight"] = stacked_weight(kernels, self.anchors)
        if convolves or any(len(node.input) > 2 and node.input[2] for node in self.anchors):
            self.constants[f"{self.base}/bias"] = stacked_bias(kernels, self.anchors)
        node = (
            _resized(kernels, first, np.max([weight.shape[2:] for weight in weights], axis=0)) if convolves else first
        )
        self._add(node, [first.input[0], *self.constants], self.base, [each.output[0] for each in self.anchors])
        return True

    def lift(self) -> int:
        """Adds, once for all parts, what is the same behind them; returns how many nodes of each part that stands for.

        What goes on must be one tensor: a node is lifted with all others that read what it reads.
        """
        done = 0
        steps: list[tuple[onnx.NodeProto, list[str], list[str]]] = []
        own = [dict(names) for names in self.own]
        for number in range(min(len(part.after) for part in self.parts)):
            nodes = [self.kernels.nodes[part.after[number]] for part in self.parts]
            step = self._lifted(nodes, own)
            if step is None:
                break
            output = f"{self.base}/{number}"
            for names, node in zip(own, nodes, strict=True):
                names[node.output[0]] = output
            steps.append((*step, [node.output[0] for node in nodes]))
            if self._ends(number, own):
                done = number + 1
        for number, (node, inputs, outputs) in enumerate(steps[:done]):
            self._add(node, inputs, f"{self.base}/{number}", outputs)
        return done

    def split(self, lifted: int) -> None:
        """Adds the Split, whose outputs are the parts' own tensors."""
        kernels = self.kernels
        if lifted:
            outputs = [kernels.nodes[part.after[lifted - 1]].output[0] for part in self.parts]
        else:
            outputs = [node.output[0] for node in self.anchors]
        sizes = [(kernels.tensors[name].shape or ())[self.axis] for name in outputs]
        source, name = self.nodes[-1].output[0], f"{self.base}/split"
        if kernels.opsets.get("", 1) < 13:  # sizes became an input in opset 13
            self.nodes.append(onnx.helper.make_node("Split", [source], outputs, name=name, axis=self.axis, split=sizes))
            return
        self.constants[f"{self.base}/sizes"] = np.array(sizes, np.int64)
        inputs = [source, f"{self.base}/sizes"]
        self.nodes.append(onnx.helper.make_node("Split", inputs, outputs, name=name, axis=self.axis))

    def _add(self, like: onnx.NodeProto, inputs: Sequence[str], output: str, parts: Sequence[str]) -> None:
        """A node as `like`, whose result holds the tensors `parts`."""
        node = onnx.NodeProto()
        node.CopyFrom(like)
        node.name = output
        node.input[:], node.output[:] = inputs, [output]
        shapes = [self.kernels.tensors[name].shape or () for name in parts]
        if node.op_type == "ReorderOutput":
            assign(node, channels=sum(shape[1] for shape in shapes))
        shape = list(shapes[0])
        shape[self.axis] = sum(each[self.axis] for each in shapes)
        self.results[output] = TensorSpec(output, self.kernels.tensors[parts[0]].dtype, tuple(shape))
        self.nodes.append(node)

    def _lifted(
        self, nodes: Sequence[onnx.NodeProto], own: Sequence[Mapping[str, str]]
    ) -> tuple[onnx.NodeProto, list[str]] | None:
        """The node and the inputs that stand for `nodes`, one of each part; None where they are not the same."""
        first, weights = nodes[0], self.kernels.weights
        free = ("channels",) if first.op_type == "ReorderOutput" else ()
        if any(_settings(node, free) != _settings(first, free) or not self._is_for_each(node) for node in nodes):
            return None
        inputs = [[names.get(name, name) for name in node.input] for names, node in zip(own, nodes, strict=True)]
        for names in zip(*inputs, strict=False):
            numbers = {weights[name].tobytes() for name in names if name in weights and weights[name].size == 1}
            if len(set(names)) > 1 and not (all(name in weights for name in names) and len(numbers) == 1):
                return None
        constants = [name for name in inputs[0] if name in weights]
        same = len({len(names) for names in inputs}) == 1 and all(weights[name].size == 1 for name in constants)
        return (first, inputs[0]) if same else None

    def _is_for_each(self, node: onnx.NodeProto) -> bool:
        """Whether the node does the same to every element, or takes channels in blocks that are all filled."""
        if node.op_type == "ReorderOutput":
            shapes = [self.kernels.tensors[name].shape or () for name in (node.input[0], node.output[0])]
            return bool(self.axis == 1) and shapes[0][1] == shapes[1][1]
        return node.op_type in _ELEMENTWISE and len(node.output) == 1

    def _ends(self, number: int, own: Sequence[Mapping[str, str]]) -> bool:
        """Whether, of what is lifted up to here, others read only the last."""
        kernels = self.kernels
        for part, names in zip(self.parts, own, strict=True):
            last, inside = kernels.nodes[part.after[number]].output[0], set(part.after[: number + 1])
            for name in names:
                if name != last and (name in kernels.outputs or not inside.issuperset(kernels.readers[name])):
                    return False
        return True


def _resized(kernels: KernelGraph, node: onnx.NodeProto, size: np.ndarray) -> onnx.NodeProto:
    """A copy of `node` for a kernel of `size`: as much padding more on every side as the kernel's reach grew there."""
    kernel = kernels.weights[node.input[1]].shape[2:]
    dilations = integers(node, "dilations", (1,) * len(kernel))
    pads = padding(node, (kernels.tensors[node.input[0]].shape or ())[2:], kernel)
    grown = [by * (int(want) - have) // 2 for by, want, have in zip(dilations, size, kernel, strict=True)]
    resized = onnx.NodeProto()
    resized.CopyFrom(node)
    larger = [int(extent) for extent in size]
    assign(resized, auto_pad=None, kernel_shape=larger, pads=[p + g for p, g in zip(pads, grown * 2, strict=True)])
    return resized
