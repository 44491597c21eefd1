"""Makes variants of a base model: by mutators and the choices of a strategy, or again from a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from iosched.models.errors import InvalidModelError, IoschedError, UsageError
from iosched.models.graph import Scalar
from iosched.models.model import Model
from iosched.models.mutation.assembly import assembled
from iosched.models.mutation.draft import Draft, applied, check_whole
from iosched.models.mutation.edit import Answer, Edit
from iosched.models.mutation.graph import GraphView, Node, view_of
from iosched.models.mutation.mutator import Mutator, Targets
from iosched.models.mutation.record import Choice, Entry, Instance, Primitive, Record
from iosched.models.node_attributes import serialized
from iosched.models.wiring import captures, writes

_SHOWN_CHOICES = 12


@dataclass(frozen=True, eq=False)
class Variant:
    """A model that mutators made of another one.

    Attributes:
        base: the model that it was made of.
        model: what was made.
        record: how; `replay` makes the same model of it.
    """

    base: Model
    model: Model
    record: Record

    @property
    def choices(self) -> Mapping[str, Scalar]:
        """What was chosen, by the questions' names."""
        return self.record.choices

    @cached_property
    def unmodified(self) -> frozenset[str]:
        """The nodes that are the base's, by name: same operator, inputs, weights, types and shapes. O(nodes)."""
        before, after = view_of(self.base), view_of(self.model)
        return frozenset(name for name in after.protos if name in before.protos and _is_same(name, before, after))


def variant_of(base: Model, mutators: Sequence[Mutator], answer: Answer) -> Variant:
    """Apply mutators one after the other, each wherever it matches what those before it made.

    Args:
        base: the model; it is not changed.
        mutators: in the order in which they are applied.
        answer: makes the choices.

    Raises:
        UsageError: a mutator does what cannot be done, or fails.
        InvalidModelError: what it makes does not fit together. Either names the mutator, its targets and the choices.
    """
    draft, entries, asked = _draft_of(base), list[Entry](), Counter[str]()
    for mutator in mutators:
        for names in matched(mutator, draft.graph):
            targets = _present(draft.graph, names)
            if targets:
                edit = Edit(draft, f"{mutator.name}[{targets[0].name}]", answer, asked)
                edit.entries.append(Instance(mutator.name, names))
                _mutate(mutator, targets, edit)
                draft = edit.draft
                entries.extend(edit.entries)
    record = Record(base.name, base.digest, tuple(entries), draft.seeded, draft.sliced)
    try:
        return Variant(base, assembled(base, draft, record), record)
    except InvalidModelError as error:
        all_names = ", ".join(repr(mutator.name) for mutator in mutators)
        raise InvalidModelError(f"mutators {all_names} together{_after(entries)}: {error}") from error


def replay(base: Model, record: Record) -> Model:
    """The model that a record tells of: the same to the last bit as the one that it was recorded of.

    Only the record's primitives are looked at; no mutator runs.

    Raises:
        UsageError: the record is of another base model.
        InvalidModelError: the record is broken.
    """
    if record.base != base.digest:
        raise UsageError(
            f"the record is of another base model: of {record.name!r} with digest {record.base[:12]}..., while "
            f"{base.name!r} has {base.digest[:12]}...\nGive the model that it was recorded of, with its weights."
        )
    draft = _draft_of(base)
    for index, entry in enumerate(record.entries):
        if isinstance(entry, Primitive):
            try:
                draft = applied(draft, entry)
            except IoschedError as error:
                raise InvalidModelError(f"the mutation record is broken at entry {index}: {error}") from error
    try:
        check_whole(draft.graph)
    except InvalidModelError as error:
        raise InvalidModelError(f"the mutation record is broken: {error}") from error
    again = Record(base.name, base.digest, record.entries, draft.seeded, draft.sliced)
    return assembled(base, draft, again)


def _draft_of(base: Model) -> Draft:
    return Draft(view_of(base), base.digest)


def matched(mutator: Mutator, graph: GraphView) -> list[tuple[str, ...]]:
    """The names of the nodes of each match.

    Raises:
        UsageError: the mutator fails.
    """
    try:
        return [tuple(node.name for node in targets) for targets in mutator.match(graph)]
    except Exception as error:
        raise UsageError(f"mutator {mutator.name!r} cannot tell where it matches: {_what(error)}") from error


def _mutate(mutator: Mutator, targets: Targets, edit: Edit) -> None:
    try:
        before = edit.graph
        mutator.mutate(targets, edit)
        if edit.graph is not before:
            _delete_dead(edit)
            check_whole(edit.graph)
    except Exception as error:
        kind = InvalidModelError if isinstance(error, InvalidModelError) else UsageError
        where = ", ".join(repr(node.name) for node in targets)
        raise kind(f"mutator {mutator.name!r} at {where}{_after(edit.entries)}: {_what(error)}") from error


def _after(entries: Sequence[Entry]) -> str:
    """The last choices among the entries."""
    chosen = [f"{entry.question} = {entry.candidates[entry.index]}" for entry in entries if isinstance(entry, Choice)]
    earlier = ["..."] if len(chosen) > _SHOWN_CHOICES else []
    return f" after {', '.join([*earlier, *chosen[-_SHOWN_CHOICES:]])}" if chosen else ""


def _what(error: Exception) -> str:
    return str(error) if isinstance(error, IoschedError) else f"{type(error).__name__}: {error}"


def _delete_dead(edit: Edit) -> None:
    """Delete the nodes from which no path leads to an output: the base has none either."""
    while dead := _unread_nodes(edit.graph):
        for name in dead:
            edit.delete(name)


def _unread_nodes(graph: GraphView) -> list[str]:
    """The nodes none of whose outputs is read or returned."""
    unread = graph.unread()
    names = sorted({graph.producers[tensor] for tensor in unread})
    return [name for name in names if unread.issuperset(writes(graph.protos[name]))]


def _present(graph: GraphView, names: Sequence[str]) -> tuple[Node, ...]:
    """The targets as they are now; none where an earlier instance took one of them away."""
    return tuple(map(graph.node, names)) if all(name in graph.protos for name in names) else ()


def _is_same(name: str, before: GraphView, after: GraphView) -> bool:
    old, new = before.protos[name], after.protos[name]
    return (
        (old.op_type, old.domain, old.input, old.output) == (new.op_type, new.domain, new.input, new.output)
        and serialized(old) == serialized(new)
        and all(_is_same_tensor(tensor, before, after) for tensor in (*new.input, *captures(new), *writes(new)))
    )


def _is_same_tensor(name: str, before: GraphView, after: GraphView) -> bool:
    return (name in before.weights) == (name in after.weights) and before.spec(name) == after.spec(name)
