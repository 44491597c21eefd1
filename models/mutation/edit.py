"""What a mutator changes a graph with: primitives, each checked and recorded, and choices."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf
from typing import Any, TypeVar

import numpy as np

from iosched.models.errors import UsageError
from iosched.models.graph import AttributeValue, Scalar
from iosched.models.mutation import record
from iosched.models.mutation.draft import Draft, applied, unused
from iosched.models.mutation.graph import GraphView, Node
from iosched.models.mutation.record import MAX_GIVEN_NBYTES, Choice, Entry, Primitive, Weight
from iosched.models.mutation.refit import needs

Weights = Mapping[int, tuple[int, ...] | np.ndarray]
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
                raise UsageError(f"a graph inside node {node.name!r} reads {old!r}; it cannot be given {new!r} instead")
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
            found = needs(self.graph, node)
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
    if value.nbytes > MAX_GIVEN_NBYTES:
        size = f"a constant of {value.nbytes:,} bytes is too large to be recorded ({MAX_GIVEN_NBYTES:,} are the most)"
        raise UsageError(f"{size}.\nGive its shape; its values are seeded.")
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
        raise UsageError(f"{where}: candidates must be one or more, and no two equal: {offered}")
    known = bool, int, float, str
    if strange := [one for one in offered if type(one) not in known or one in (inf, -inf) or one != one]:
        raise UsageError(f"{where}: candidates must be numbers and texts, which {strange[0]!r} is not")
    first = question_name(path, what, offered, 0)
    name = question_name(path, what, offered, asked[first])
    asked[first] += 1
    index = 0 if len(offered) == 1 else int(answer(Question(name, offered)))
    if not 0 <= index < len(offered):
        raise UsageError(f"{name}: the strategy chose number {index} of {len(offered)} candidates")
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
