"""What a mutator asks the strategy that explores the variants."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeVar

from iosched.models.graph import Scalar

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
"""Makes choices: the index of the chosen candidate."""


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
