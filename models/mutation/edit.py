"""The edits and choices of a mutator: primitives, each checked and recorded."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf, prod
from typing import Any, TypeVar

import numpy as np

from iosched.models.errors import UsageError
from iosched.models.graph import AttributeValue, Scalar
from iosched.models.mutation import record
from iosched.models.mutation.draft import Draft, applied, unused
from iosched.models.mutation.graph_view import GraphView, Node
from iosched.models.mutation.record import MAX_RECORDED_NBYTES, Choice, Entry, Primitive, Weight

Shape = tuple[int, ...]

Weights = Mapping[int, Shape | np.ndarray]
"""Constants by input place: shapes, whose values are inherited or seeded, or arrays."""

Candidate = TypeVar("Candidate", bound=Scalar)
"""The type of the candidates."""

_PLAIN = re.compile(r"[\w.+-]+")
_LONGEST = 200  # characters of candidates in a name


@dataclass(frozen=True)
class Question:
    """A choice to be made.

    Attributes:
        name: the place, the purpose and the candidates: "inception[block1]/paths{2,3,4,5}". Unique in a variant;
            questions of one name have equal candidates.
        candidates: the values to choose from.
    """

    name: str
    candidates: tuple[Scalar, ...]


Answer = Callable[[Question], int]
"""Returns the index of the chosen candidate; an `AnswerError` does not blame the mutator."""


class AnswerError(UsageError):
    """The strategy cannot choose."""


@dataclass(eq=False)
class Edit:
    """One call of a mutator: the current graph, and the allowed changes.

    Attributes:
        draft: the graph and the origins of its weights.
        path: the prefix of questions.
        answer: makes the choices.
        asked: how often each question was asked in this variant.
        entries: the changes and choices so far.
    """

    draft: Draft
    path: str
    answer: Answer
    asked: Counter[str] = field(default_factory=Counter)
    entries: list[Entry] = field(default_factory=list)

    @property
    def graph(self) -> GraphView:
        """The current graph."""
        return self.draft.view

    def create(
        self,
        type: str,  # noqa: A002, ONNX's term
        inputs: Sequence[str],
        *,
        name: str,
        attributes: Mapping[str, AttributeValue] | None = None,
        weights: Weights | None = None,
        outputs: int = 1,
    ) -> Node:
        """Add a node; its weights are seeded by name.

        Args:
            type: a standard operator.
            inputs: the tensors that it reads, from place 0 on, including weights of the base.
            name: of its first output; numbered if it exists.
            attributes: by name.
            weights: new constants, by place.
            outputs: their number; the others are named "NAME/1" and so on.

        Raises:
            UsageError: the operator or an input does not exist, or the node is invalid.
        """
        graph = self.draft.graph
        names = [unused(graph, name) if graph.has(name) else name]
        for index in range(1, outputs):
            names.append(unused(graph, f"{names[0]}/{index}", names))
        constants = self._constants(weights or {}, inputs)
        self._apply(record.Create(type, tuple(inputs), tuple(names), _plain(attributes), constants))
        return self.graph.node(names[0])

    def delete(self, node: Node | str) -> None:
        """Delete a node of the graph; connect its consumers to other tensors before the mutator returns."""
        self._apply(record.Delete(_name(node)))

    def connect(self, source: str, node: Node | str, place: int) -> None:
        """Set input `place` of a node to the tensor `source`.

        Raises:
            UsageError: one of them does not exist, or a cycle would arise.
        """
        self._apply(record.Connect(source, _name(node), int(place)))

    def connect_output(self, source: str, output: str) -> None:
        """Let the graph output `output`, which keeps its name, return the tensor `source`."""
        self._apply(record.Return(source, output))

    def redirect(self, old: str, new: str, but: Collection[Node | str] = ()) -> None:
        """Let all consumers of tensor `old`, graph outputs included, read `new`, except the nodes `but`.

        Raises:
            UsageError: `new` does not exist, or a subgraph reads `old`.
        """
        spared = set(map(_name, but))
        for node in self.graph.consumers(old):
            if node.name in spared:
                continue
            if old not in node.inputs:
                raise UsageError(f"a subgraph of node {node.name!r} reads {old!r}, and cannot read {new!r} instead")
            for place, tensor in enumerate(node.inputs):
                if tensor == old:
                    self.connect(new, node, place)
        for output, source in self.graph.outputs.items():
            if source == old:
                self.connect_output(new, output)

    def replace(
        self,
        node: Node | str,
        type: str | None = None,  # noqa: A002, ONNX's term
        *,
        attributes: Mapping[str, AttributeValue | None] | None = None,
        weights: Weights | None = None,
        inputs: Sequence[str] | None = None,
    ) -> Node:
        """Replace a node's operator, attributes, weights or inputs; its output keeps its consumers.

        A weight of the old shape is kept; a smaller one is cut from it (first channels, middle of the kernel); others
        are seeded.

        Args:
            node: to be replaced.
            type: another operator, which inherits no attributes or weights; by default the same.
            attributes: to be changed; None removes one.
            weights: new constants, by place.
            inputs: all that it reads; by default the present ones, for another operator without constants.

        Raises:
            UsageError: the node is invalid.
        """
        old = self.graph.node(_name(node))
        kind = type or old.type
        if inputs is None:
            inputs = [name for name in old.inputs if kind == old.type or self.graph.is_computed(name)]
        constants = self._constants(weights or {}, inputs)
        self._apply(record.Replace(old.name, kind, tuple(inputs), _plain(attributes), constants))
        return self.graph.node(old.name)

    def refit(self, tensor: str) -> None:
        """Adapt weights after `tensor` to its present number of channels.

        Convolutions and products get new weights; depthwise convolutions, normalizations, broadcast constants, and
        Reshapes in which only one size can change, pass the number of channels on. Sums of unequal operands stay.

        Raises:
            UsageError: there is no such tensor.
            InvalidModelError: shapes do not fit at a node that cannot be adapted.
        """
        self.graph.shape(tensor)
        waiting = {node.name for node in self.graph.consumers(tensor)}
        for name in [node.name for node in self.graph.nodes]:
            if name not in waiting:
                continue
            node = self.graph.node(name)
            found = _needs(self.graph, node)
            if found.weights or found.attributes:
                self.replace(node, attributes=found.attributes, weights=found.weights)
            for output in () if found.ends else node.outputs:
                waiting.update(reader.name for reader in self.graph.consumers(output))

    def choose(self, candidates: Sequence[Candidate], what: str) -> Candidate:
        """One of `candidates`, chosen by the strategy; a single one is not a question.

        Raises:
            UsageError: candidates are missing or equal, or the strategy chose none.
        """
        return chosen(self.path, candidates, what, self.answer, self.asked, self.entries)

    def _apply(self, primitive: Primitive) -> None:
        self.draft = applied(self.draft, primitive)
        self.entries.append(primitive)

    def _constants(self, weights: Weights, inputs: Sequence[str]) -> dict[int, Weight]:
        specs = [self.graph.spec(name) for name in inputs if name and self.graph.has(name)]
        floats = [spec.dtype for spec in specs if spec is not None and "float" in spec.dtype]
        dtype = next(iter(floats), "float32")
        return {int(place): _weight(value, dtype) for place, value in weights.items()}


def _weight(value: tuple[int, ...] | np.ndarray, dtype: str) -> Weight:
    if not isinstance(value, np.ndarray):
        return Weight(tuple(int(size) for size in value), dtype)
    if value.nbytes > MAX_RECORDED_NBYTES:
        size = (
            f"a constant of {value.nbytes:,} bytes is too large to be recorded (the limit is {MAX_RECORDED_NBYTES:,})"
        )
        raise UsageError(f"{size}.\nPass its shape; its values are seeded.")
    return Weight.of(value)


def _plain(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: _plain_value(value) for key, value in (attributes or {}).items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(_plain_value(item) for item in value)
    if isinstance(value, np.generic):
        return _plain_value(value.item())
    return int(value) if isinstance(value, bool) else value


def _name(node: Node | str) -> str:
    return node if isinstance(node, str) else node.name


def chosen(
    path: str, candidates: Sequence[Candidate], what: str, answer: Answer, asked: Counter[str], entries: list[Entry]
) -> Candidate:
    """One of the candidates, recorded in `entries`; see `Edit.choose`."""
    offered, where = tuple(candidates), f"{path}/{what}"
    if not offered or len(set(offered)) < len(offered):
        raise UsageError(f"{where}: candidates must be distinct, and at least one: {offered}")
    known = bool, int, float, str
    if strange := [one for one in offered if type(one) not in known or one in (inf, -inf) or one != one]:
        raise UsageError(f"{where}: candidates must be finite numbers or strings, not {strange[0]!r}")
    first = question_name(path, what, offered, 0)
    name = question_name(path, what, offered, asked[first])
    asked[first] += 1
    index = 0 if len(offered) == 1 else int(answer(Question(name, offered)))
    if not 0 <= index < len(offered):
        raise UsageError(f"{name}: the strategy chose index {index} of {len(offered)} candidates")
    entries.append(Choice(name, offered, index))
    return offered[index]


def question_name(path: str, what: str, candidates: Sequence[Scalar], asked_before: int) -> str:
    """The name of a question, which was asked `asked_before` times in this variant."""
    again = f"#{asked_before + 1}" if asked_before else ""
    return f"{path}/{what}{again}{{{_listed(candidates)}}}"


def _listed(candidates: Sequence[Scalar]) -> str:
    text = ",".join(_shown(candidate) for candidate in candidates)
    if len(text) <= _LONGEST:
        return text
    return f"{_shown(candidates[0])},...,{len(candidates)}:{sha256(text.encode()).hexdigest()[:12]}"


def _shown(candidate: Scalar) -> str:
    return candidate if isinstance(candidate, str) and _PLAIN.fullmatch(candidate) else json.dumps(candidate)


@dataclass(frozen=True)
class _Needs:
    """Required changes of a node.

    Attributes:
        weights: by place, for those that do not fit: shapes, or values.
        attributes: to be changed with them.
        ends: whether its weights alone determine its output channels, so that consumers are unaffected.
    """

    weights: Weights = field(default_factory=dict)
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    ends: bool = False


def _needs(graph: GraphView, node: Node) -> _Needs:
    """The changes that fit the weights of `node` to its inputs; none if shapes are unknown. O(1)."""
    rule, read = _RULES.get(node.type), [graph.spec(name) for name in node.inputs if name]
    if rule is None or any(spec is None or spec.shape is None for spec in read):
        return _Needs()
    return rule(graph, node)


def _conv(graph: GraphView, node: Node) -> _Needs:
    channels, kernel = graph.shape(node.inputs[0])[1], graph.shape(node.inputs[1])
    group = node.attributes.get("group", 1)
    if not isinstance(group, int) or node.inputs[1] not in graph.weights:
        return _Needs(ends=True)
    if kernel[1] == 1 and group > 1:  # depthwise keeps its multiplier
        results = channels * (kernel[0] // group)
        wanted = {1: (results, *kernel[1:]), **({2: (results,)} if len(node.inputs) > 2 else {})}
        return _Needs(_unlike(graph, node, wanted), {} if group == channels else {"group": channels})
    return _Needs(_unlike(graph, node, {1: (kernel[0], channels // group, *kernel[2:])}), ends=True)


def _normalization(graph: GraphView, node: Node) -> _Needs:
    channels = graph.shape(node.inputs[0])[1]
    return _Needs(_unlike(graph, node, dict.fromkeys(range(1, len(node.inputs)), (channels,))))


def _gemm(graph: GraphView, node: Node) -> _Needs:
    data, matrix = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])
    inner = data[0] if node.attributes.get("transA") else data[1]
    wanted = (matrix[0], inner) if node.attributes.get("transB") else (inner, matrix[1])
    return _Needs(_unlike(graph, node, {1: wanted}), ends=True)


def _matmul(graph: GraphView, node: Node) -> _Needs:
    data, matrix = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])
    if node.inputs[1] not in graph.weights or len(matrix) < 2:
        return _Needs(ends=node.inputs[1] in graph.weights)
    return _Needs(_unlike(graph, node, {1: (*matrix[:-2], data[-1], matrix[-1])}), ends=True)


def _element_by_element(graph: GraphView, node: Node) -> _Needs:
    """Broadcast constants: an axis of a size other than 1 gets the other operand's size."""
    places = [place for place, name in enumerate(node.inputs) if name in graph.weights]
    others = [graph.shape(name) for name in node.inputs if name not in graph.weights]
    if len(others) != 1:
        return _Needs()
    (whole,), wanted = others, {}
    for place in places:
        shape = graph.shape(node.inputs[place])
        if len(shape) <= len(whole):
            last = whole[len(whole) - len(shape) :]
            wanted[place] = tuple(1 if own == 1 else size for own, size in zip(shape, last, strict=True))
    return _Needs(_unlike(graph, node, wanted))


def _reshape(graph: GraphView, node: Node) -> _Needs:
    """A new size for the only axis that can change; the batch stays."""
    data, target = graph.shape(node.inputs[0]), graph.weights.get(node.inputs[1])
    if target is None or target.ndim != 1 or target.size == 0 or min(target.tolist()) < 1:
        return _Needs()
    if prod(data) == prod(target.tolist()):
        return _Needs(ends=True)
    batch = 1 if data[:1] == (target[0],) and target.size > 1 else 0
    sizes = {axis: divmod(prod(data) * int(target[axis]), prod(target.tolist())) for axis in range(batch, target.size)}
    possible = {axis: size for axis, (size, rest) in sizes.items() if not rest}
    if len(possible) != 1:
        return _Needs()
    ((axis, size),) = possible.items()
    changed = target.copy()
    changed[axis] = size
    return _Needs({1: changed})


def _unlike(graph: GraphView, node: Node, wanted: Mapping[int, Shape]) -> Weights:
    constant = {place: shape for place, shape in wanted.items() if node.inputs[place] in graph.weights}
    return {place: shape for place, shape in constant.items() if graph.shape(node.inputs[place]) != shape}


_RULES: Mapping[str, Callable[[GraphView, Node], _Needs]] = {
    **{"Conv": _conv, "Gemm": _gemm, "MatMul": _matmul, "Reshape": _reshape},
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), _normalization),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "PRelu"), _element_by_element),
}
