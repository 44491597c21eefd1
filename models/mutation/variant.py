"""Makes variants of a base model, by mutators and the choices of a strategy, or from a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.errors import InvalidModelError, IoschedError, UsageError
from iosched.models.graph import Scalar
from iosched.models.load import edited_model
from iosched.models.metadata import is_ours, write_metadata
from iosched.models.model import Model
from iosched.models.mutation.draft import Draft, applied, check_whole, unused
from iosched.models.mutation.edit import Answer, AnswerError, Edit, chosen
from iosched.models.mutation.graph_view import GraphView, view_of
from iosched.models.mutation.mutator import Mutator
from iosched.models.mutation.record import MUTATION_KEY, Choice, Entry, Instance, Primitive, Record
from iosched.models.node_attributes import copied, serialized
from iosched.models.wiring import captures, is_standard, writes

_SPACE = "space"
"""The prefix of questions outside mutators."""

_SHOWN_CHOICES = 12
_Message = TypeVar("_Message", onnx.ModelProto, onnx.NodeProto)


@dataclass(frozen=True, eq=False)
class Variant:
    """A model that mutators made from another one.

    Attributes:
        base: the original model.
        model: the variant.
        record: its changes, for `replay`.
    """

    base: Model
    model: Model
    record: Record

    @property
    def choices(self) -> Mapping[str, Scalar]:
        """The chosen candidates by question."""
        return self.record.choices

    @cached_property
    def unmodified(self) -> frozenset[str]:
        """Names of nodes equal to the base's in operator, inputs, weights, types and shapes. O(nodes)."""
        before, after = view_of(self.base), view_of(self.model)
        same = (node for node in after.editable.nodes if _is_same(node, before, after))
        return frozenset(map(node_name, same))


def variant_of(
    base: Model | Sequence[Model], mutators: Sequence[Mutator], answer: Answer, max_mutations: int | None = None
) -> Variant:
    """Apply mutators to a base model.

    Without `max_mutations`, each is applied once, in order, wherever it matches the result of those before. Otherwise
    up to that many single mutations follow, with mutator and place chosen among the current matches.

    Args:
        base: the model, which is not changed; or several with different names, of which one is chosen.
        mutators: in order.
        answer: makes the choices.
        max_mutations: the most mutations.

    Raises:
        UsageError: a mutator fails or makes an invalid change.
        InvalidModelError: its result is inconsistent. Both name the mutator, its targets and the choices.
    """
    bases, asked, entries = [base] if isinstance(base, Model) else base, Counter[str](), list[Entry]()
    all_names = [each.name for each in bases]
    name = chosen(_SPACE, all_names, "base", answer, asked, entries) if len(bases) > 1 else bases[0].name
    base = next(each for each in bases if each.name == name)
    making = Edit(Draft(view_of(base), base.digest), _SPACE, answer, asked, entries)
    if max_mutations is None:
        for mutator in mutators:
            for names in matched(mutator, making.graph):
                _mutate(making, mutator, names)
    else:
        _evolve(making, mutators, max_mutations)
    draft = making.draft
    record = Record(base.name, base.digest, tuple(entries), draft.seeded, draft.sliced)
    try:
        return Variant(base, _assembled(base, draft, record), record)
    except InvalidModelError as error:
        named = ", ".join(repr(mutator.name) for mutator in mutators)
        raise InvalidModelError(f"mutators {named} together{_after_choices(entries)}: {error}") from error


def _mutate(making: Edit, mutator: Mutator, names: tuple[str, ...], number: int = 1) -> None:
    """Apply a mutator to one match, unless an earlier one removed a node; `number` counts applications."""
    if not (names and all(map(making.graph.has_node, names))):
        return
    targets = tuple(map(making.graph.node, names))
    edit = Edit(making.draft, f"{_numbered(mutator.name, number)}[{names[0]}]", making.answer, making.asked)
    edit.entries.append(Instance(mutator.name, names))
    try:
        mutator.mutate(targets, edit)
        if edit.draft is not making.draft:
            _delete_dead(edit)
            check_whole(edit.graph)
    except AnswerError:
        raise
    except Exception as error:
        kind = InvalidModelError if isinstance(error, InvalidModelError) else UsageError
        where = ", ".join(map(repr, names))
        raise kind(f"mutator {mutator.name!r} at {where}{_after_choices(edit.entries)}: {_what(error)}") from error
    making.draft = edit.draft
    making.entries.extend(edit.entries)


def _evolve(making: Edit, mutators: Sequence[Mutator], most: int) -> None:
    applied = Counter[str]()
    for step in range(1, 1 + making.choose(range(most + 1), "mutations")):
        making.path = _numbered(_SPACE, step)
        matches = {each.name: filter(None, matched(each, making.graph)) for each in mutators}
        places = {name: {names[0]: names for names in found} for name, found in matches.items()}
        known = {each.name: each for each in mutators if places[each.name]}
        if not known:
            return
        name = making.choose([*known], "mutator")
        place = making.choose([*places[name]], "place")
        applied[name] += 1
        _mutate(making, known[name], places[name][place], applied[name])


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}#{number}"


def replay(base: Model, record: Record) -> Model:
    """The model of a record, equal to the last bit to the recorded one; no mutator runs.

    Raises:
        UsageError: the record belongs to another base model.
        InvalidModelError: the record is broken.
    """
    if record.base != base.digest:
        models = f"{record.name!r} with digest {record.base[:12]}..., not {base.name!r} with {base.digest[:12]}..."
        way_out = "Pass the model from which it was recorded, with its weights."
        raise UsageError(f"the record belongs to another base model: {models}\n{way_out}")
    draft = Draft(view_of(base), base.digest)
    for index, entry in enumerate(record.entries):
        if isinstance(entry, Primitive):
            try:
                draft = applied(draft, entry)
            except IoschedError as error:
                raise InvalidModelError(f"the mutation record is broken at entry {index}: {error}") from error
    try:
        check_whole(draft.view)
    except InvalidModelError as error:
        raise InvalidModelError(f"the mutation record is broken: {error}") from error
    return _assembled(base, draft, replace(record, name=base.name, seeded=draft.seeded, sliced=draft.sliced))


def matched(mutator: Mutator, graph: GraphView) -> list[tuple[str, ...]]:
    """The names of the nodes of each match; raises `UsageError` if the mutator fails."""
    try:
        return [tuple(node.name for node in targets) for targets in mutator.match(graph)]
    except Exception as error:
        raise UsageError(f"mutator {mutator.name!r} failed to match: {_what(error)}") from error


def _after_choices(entries: Sequence[Entry]) -> str:
    chosen = [f"{entry.question} = {entry.candidates[entry.index]}" for entry in entries if isinstance(entry, Choice)]
    earlier = ["..."] if len(chosen) > _SHOWN_CHOICES else []
    return f" after {', '.join([*earlier, *chosen[-_SHOWN_CHOICES:]])}" if chosen else ""


def _what(error: Exception) -> str:
    return str(error) if isinstance(error, IoschedError) else f"{type(error).__name__}: {error}"


def _delete_dead(edit: Edit) -> None:
    dead = [""]
    while dead:
        graph = edit.graph.editable
        unread = graph.unread.difference(edit.graph.outputs.values())
        nodes = filter(None, map(graph.producer, unread))
        dead = sorted({node_name(node) for node in nodes if unread.issuperset(writes(node))})
        for name in dead:
            edit.delete(name)


def _is_same(new: onnx.NodeProto, before: GraphView, after: GraphView) -> bool:
    if not before.has_node(node_name(new)):
        return False
    old = before.editable.node(node_name(new))
    return (
        (old.op_type, old.domain, old.input, old.output) == (new.op_type, new.domain, new.input, new.output)
        and serialized(old) == serialized(new)
        and all(_is_same_tensor(tensor, before, after) for tensor in (*new.input, *captures(new), *writes(new)))
    )


def _is_same_tensor(name: str, before: GraphView, after: GraphView) -> bool:
    return (name in before.weights) == (name in after.weights) and before.spec(name) == after.spec(name)


def _assembled(base: Model, draft: Draft, record: Record) -> Model:
    """The model of a draft of `base`, with its record in the metadata instead of iosched's other entries."""
    graph = draft.graph.copy()
    graph.frame = _without_our_metadata(graph.frame)
    graph.frame.metadata_props.add(key=MUTATION_KEY, value=record.to_json())
    for node in graph.nodes:
        graph.replace(node_name(node), _without_our_metadata(node))
    sources = _with_free_names(graph, draft.view.outputs)
    _declare(graph, sources)
    for output, source in sources.items():
        if source != output:
            graph.append(onnx.helper.make_node("Identity", [source], [output]))
    return edited_model(base.name, graph)


def _declare(graph: EditableGraph, sources: Mapping[str, str]) -> None:
    """Declare the outputs' present types, and otherwise only types that onnx cannot infer."""
    known = graph.declared
    opaque = [tensor for node in graph.nodes if not is_standard(node) for tensor in writes(node)]
    typed = {name: value for name, value in known.items() if value.type.WhichOneof("value")}
    graph.declared = {name: typed[name] for name in opaque if name in typed}
    for name, declared in graph.outputs.items():
        kind = known.get(sources[name], declared).type
        graph.outputs[name] = onnx.ValueInfoProto(name=name, type=kind)


def _with_free_names(graph: EditableGraph, sources: Mapping[str, str]) -> Mapping[str, str]:
    """The source of each output, after renaming inner tensors with the name of a redirected output."""
    taken = [output for output, source in sources.items() if source != output and graph.has(output)]
    for output in taken:
        why = f"graph output {output!r} cannot be another tensor"
        if output in graph.inputs:
            raise InvalidModelError(f"{why}: it is an input of the graph")
        if holder := next((node_name(node) for node in graph.nodes if output in captures(node)), None):
            raise InvalidModelError(f"{why}: a subgraph of node {holder!r} reads {output!r}")
    for output in taken:
        inner = unused(graph, f"{output}/inner")
        graph.rename(output, inner)
        sources = {name: inner if source == output else source for name, source in sources.items()}
    return sources


def _without_our_metadata(message: _Message) -> _Message:
    made = copied(message)
    write_metadata(made, {}, drops=is_ours)
    return made
