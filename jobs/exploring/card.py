"""What a study is about, as its file says it: it goes on only with the same."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta

from iosched.jobs.exploring.objectives import Constraint, Objective, names_in, parse_constraints, parse_objectives
from iosched.models.errors import UsageError
from iosched.models.prepared import prepare

CARD_KEY = "iosched"
VERSION = 1

_FORMAT = "iosched.study"
_ABOUT = ("base model", "space", "objectives", "constraints", "seed")
_Text = Annotated[str, Meta(max_length=1000)]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    version: int
    base: _Text
    name: _Text
    space: _Text
    objectives: tuple[_Text, ...]
    constraints: tuple[_Text, ...]
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]


prepare(_File)


@dataclass(frozen=True)
class Card:
    """What a study is about.

    Attributes:
        base: the digest of the base model.
        name: what the base model is called.
        space: what the space is called.
        objectives: what is minimised or maximised.
        constraints: the bounds that variants have to keep to.
        seed: what all choices come from, together with the numbers of trials.
    """

    base: str
    name: str
    space: str
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    seed: int

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The values that have to be found of each variant."""
        return names_in(self.objectives, self.constraints)

    def plain(self) -> object:
        """The card as JSON has it."""
        texts = (tuple(map(str, self.objectives)), tuple(map(repr_of, self.constraints)))
        return msgspec.to_builtins(_File(_FORMAT, VERSION, self.base, self.name, self.space, *texts, self.seed))

    def check_same(self, asked: Card, place: str) -> None:
        """Accepts to go on with this study as `asked`.

        Raises:
            UsageError: it is about something else; says what.
        """
        own, other = (dict(zip(_ABOUT, card._told(), strict=True)) for card in (self, asked))
        if unlike := next((what for what in _ABOUT if own[what] != other[what]), None):
            raise UsageError(
                f"{place} is a study of {self.name} in {self.space} with other {unlike}: {own[unlike][:200]}, not "
                f"{other[unlike][:200]}\nGive the same, or another --storage."
            )

    def _told(self) -> tuple[str, ...]:
        listed = (",".join(map(str, asked)) or "none" for asked in (self.objectives, self.constraints))
        return self.base, self.space, *listed, str(self.seed)


def card_of(plain: object, place: str) -> Card:
    """The card in a study's file, which may come from strangers.

    Raises:
        UsageError: it is none, or of a version that is not known here.
    """
    version = plain.get("version") if isinstance(plain, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise UsageError(f"{place} is a study of version {version}; this iosched reads version {VERSION}")
    try:
        file = msgspec.convert(plain, _File, strict=True)
        if file.format != _FORMAT or not file.objectives:
            raise UsageError(f"its format is {file.format[:40]!r}")
        objectives, constraints = parse_objectives(file.objectives), parse_constraints(file.constraints)
    except (msgspec.ValidationError, UsageError) as error:
        raise UsageError(f"{place} is no study of iosched's: {error}") from None
    return Card(file.base, file.name, file.space, objectives, constraints, file.seed)


def repr_of(constraint: Constraint) -> str:
    """The constraint as text that says its bound to the last bit."""
    return f"{constraint.name}{constraint.relation}{constraint.bound!r}"
