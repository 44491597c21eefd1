"""What a mutator changes a graph with: primitives, each checked and recorded, and choices."""

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
from iosched.models.mutation.graph import GraphView, Node
from iosched.models.mutation.record import MAX_RECORDED_NBYTES, Choice, Entry, Primitive, Weight

Shape = tuple[int, ...]

Weights = Mapping[int, Shape | np.ndarray]
"""Constants by the place among a node's inputs: of a shape, whose values are inherited or seeded, or with values."""

Candidate = TypeVar("Candidate", bound=Scalar)
"""What is chosen is of the type of the candidates."""

_PLAIN = re.compile(r"[\w.+-]+")
_LONGEST = 200  # characters of the candidates in a name


@dataclass(frozen=True)
class Question:
    """A choice that is to be made.

    Attributes:
        name: where it is asked, for what, and between what: "inception[block1]/paths{2,3,4,5}". Questions of one name
            have the same candidates, and no two of one variant have the same name.
        candidates: one of them is to be chosen.
    """

    name: str
    candidates: tuple[Scalar, ...]


Answer = Callable[[Question], int]
"""Makes choices: the index of the chosen candidate. An `AnswerError` that it raises is no fault of the mutator's."""


class AnswerError(UsageError):
    """The strategy cannot choose."""


@dataclass(eq=False)
class Edit:
    """One call of a mutator: the graph as it is now, and what may be done to it.

    Attributes:
        draft: the graph, and where its weights come from.
        path: begins the names of the questions.
        answer: makes the choices.
        asked: how often each question was asked in this variant.
        entries: what was done so far.
    """

    draft: Draft
    path: str
    answer: Answer
    asked: Counter[str] = field(default_factory=Counter)
    entries: list[Entry] = field(default_factory=list)

    @property
    def graph(self) -> GraphView:
        """The graph as it is now."""
        return self.draft.view

    def create(
        self,
        type: str,  # noqa: A002, the word of ONNX
        inputs: Sequence[str],
        *,
        name: str,
        attributes: Mapping[str, AttributeValue] | None = None,
        weights: Weights | None = None,
        outputs: int = 1,
    ) -> Node:
        """Add a node; the values of its weights are seeded by their names.

        Args:
            type: an operator of ONNX's own domain.
            inputs: the tensors that it reads, from place 0 on; those of the base's weights, too.
            name: of its first output; a number is put behind it where a tensor has that name.
            attributes: by name.
            weights: the new constants that it reads besides.
            outputs: how many it has; the others are called "NAME/1" and so on.

        Raises:
            UsageError: there is no such operator or input, or something else about the node is not as it must be.
        """
        graph = self.draft.graph
        names = [unused(graph, name) if graph.has(name) else name]
        for index in range(1, outputs):
            names.append(unused(graph, f"{names[0]}/{index}", names))
        constants = self._constants(weights or {}, inputs)
        self._apply(record.Create(type, tuple(inputs), tuple(names), _plain(attributes), constants))
        return self.graph.node(names[0])

    def delete(self, node: Node | str) -> None:
        """Take a node away. Whatever reads it has to be connected to something else before the mutator returns.

        Raises:
            UsageError: there is no such node.
        """
        self._apply(record.Delete(_name(node)))

    def connect(self, source: str, node: Node | str, place: int) -> None:
        """Let input `place` of a node read the tensor `source`.

        Raises:
            UsageError: one of them is not there, or the node would read what is computed from itself.
        """
        self._apply(record.Connect(source, _name(node), int(place)))

    def connect_output(self, source: str, output: str) -> None:
        """Let the graph return the tensor `source` as its output `output`, which keeps its name.

        Raises:
            UsageError: one of them is not there.
        """
        self._apply(record.Return(source, output))

    def redirect(self, old: str, new: str, but: Collection[Node | str] = ()) -> None:
        """Let all that reads tensor `old` read `new`, outputs of the graph included, except the nodes `but`.

        Raises:
            UsageError: there is no tensor `new`, or a graph inside a node reads `old`.
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
        type: str | None = None,  # noqa: A002, the word of ONNX
        *,
        attributes: Mapping[str, AttributeValue | None] | None = None,
        weights: Weights | None = None,
        inputs: Sequence[str] | None = None,
    ) -> Node:
        """Let a node compute its output in another way; whatever reads it is not changed.

        A weight of the node's old shape stays what it is, a smaller one is its first channels and the middle of its
        kernel, and any other is seeded.

        Args:
            node: to be replaced.
            type: another operator, which takes over no attributes and no weights; by default the same.
            attributes: to be changed; None takes one away.
            weights: other constants, by their places.
            inputs: all that it reads; by default what it reads now, of another operator no constants.

        Raises:
            UsageError: something about the node is not as it must be.
        """
        old = self.graph.node(_name(node))
        kind = type or old.type
        if inputs is None:
            inputs = [name for name in old.inputs if kind == old.type or self.graph.is_computed(name)]
        constants = self._constants(weights or {}, inputs)
        self._apply(record.Replace(old.name, kind, tuple(inputs), _plain(attributes), constants))
        return self.graph.node(old.name)

    def refit(self, tensor: str) -> None:
        """Give what lies behind `tensor` weights for the channels that it has now, as far as they reach.

        Convolutions and products get weights for what they read; depthwise convolutions, normalizations and constants
        that are spread over a tensor pass the number of channels on, as do Reshapes where one size alone can change.
        Sums whose operands have become unlike are left as they are.

        Raises:
            UsageError: there is no such tensor.
            InvalidModelError: shapes do not fit together where this cannot help.
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
        """One of `candidates`, which the strategy chooses; with a single one there is nothing to ask.

        Raises:
            UsageError: there are no candidates, two are equal, or the strategy chose none of them.
        """
        return chosen(self.path, candidates, what, self.answer, self.asked, self.entries)

    def _apply(self, primitive: Primitive) -> None:
        self.draft = applied(self.draft, primitive)
        self.entries.append(primitive)

    def _constants(self, weights: Weights, inputs: Sequence[str]) -> dict[int, Weight]:
        """Weights of the first float type among the inputs that they are read beside."""
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
    """Attributes as they can be recorded: no types of numpy, and flags as whole numbers."""
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
    """One of the candidates, which is noted in `entries`; see `Edit.choose`."""
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
    """The name of the question for `what` at `path`, which was asked `asked_before` times in this variant already."""
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
    """What a node has to get.

    Attributes:
        weights: instead of those that do not fit, by their places: shapes, or values.
        attributes: those that go with them.
        ends: whether its weights alone say how many channels it computes, so that nothing behind it is concerned.
    """

    weights: Weights = field(default_factory=dict)
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    ends: bool = False


def _needs(graph: GraphView, node: Node) -> _Needs:
    """What `node` needs, so that its weights fit what it reads; nothing where shapes are not known. O(1)."""
    rule, read = _RULES.get(node.type), [graph.spec(name) for name in node.inputs if name]
    if rule is None or any(spec is None or spec.shape is None for spec in read):
        return _Needs()
    return rule(graph, node)


def _conv(graph: GraphView, node: Node) -> _Needs:
    channels, kernel = graph.shape(node.inputs[0])[1], graph.shape(node.inputs[1])
    group = node.attributes.get("group", 1)
    if not isinstance(group, int) or node.inputs[1] not in graph.weights:
        return _Needs(ends=True)
    if kernel[1] == 1 and group > 1:  # depthwise: as many results for each channel as before
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
    """Constants spread over the other operand: an axis that is neither 1 nor as long as that becomes as long."""
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
    """Another size for the one axis that can have one, if there is one alone; the batch stays."""
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
    """Those of the wanted weights that are constants of another shape now."""
    constant = {place: shape for place, shape in wanted.items() if node.inputs[place] in graph.weights}
    return {place: shape for place, shape in constant.items() if graph.shape(node.inputs[place]) != shape}


_RULES: Mapping[str, Callable[[GraphView, Node], _Needs]] = {
    **{"Conv": _conv, "Gemm": _gemm, "MatMul": _matmul, "Reshape": _reshape},
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), _normalization),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "PRelu"), _element_by_element),
}
