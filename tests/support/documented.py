"""The formats of outputs in docs/json.md, read from its blocks, and the differences between an output and its format.

The notation is that of the page. `{"a", "b": int | null}` is an object with these keys, `{name: str}` one whose keys
are names, `[str]` a list. A key is followed by the kinds of its value, of which these words mean a type: int, float,
bool, str and null; all others mean anything. A key without a value has that of `## Shared keys`, if it is there.
A key with `?` after it, or with alternatives after `|`, is optional.
A word in capitals refers to an object, or to keys of one, defined elsewhere on the page: `NAME is` with a block or
code after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_TOKEN = re.compile(r'"[^"]*"|\.\.\.|…|[{}\[\],:|?]|[^\s{}\[\],:|"?]+')
_BLOCK = re.compile(r"(?P<name>[A-Z]{3,} is\n\n)?```text\n(?P<text>.*?)```", re.S)
_INLINE = re.compile(r"\b([A-Z]{3,}) (?:is|are) `([^`]+)`")
_ABOVE = re.compile(r"\b([A-Z]{3,}) are all keys above, except ((?:`\w+`(?:, | and )?)+)")
_ALSO = re.compile(r"(?:Results of|With `--cluster`,) ((?:`\w+`(?:, | and )?)+) also\s")
_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


@dataclass(frozen=True, eq=False)
class Key:
    """A key of an object. `name` is None if any key is allowed, and `values` are the kinds of values it may have."""

    name: str | None
    values: tuple[Kind, ...] = ()
    is_always: bool = True


Object = tuple[Key | str, ...]
"""By its keys; a word in capitals refers to keys defined elsewhere on the page."""
Kind = Object | list[Any] | str
"""One kind of value: an object, a list by the kinds in it, or a word of the page."""
Found = tuple[list[str], set[Key]]
"""Complaints about an output, and the keys that it has."""


@dataclass(eq=False)
class Page:
    """The page: the objects of each section, words in capitals, shared keys, and the keys that were seen."""

    objects: dict[str, list[Object]] = field(default_factory=dict)
    named: dict[str, list[Kind]] = field(default_factory=dict)
    shared: dict[str | None, Key] = field(default_factory=dict)
    seen: set[Key] = field(default_factory=set)

    def complaints(self, section: str, output: Any) -> list[str]:
        """The differences between an output of a command and the nearest object of its section."""
        complaints, seen = self._nearest(self.objects[section], output, section)
        self.seen |= seen
        return complaints

    def unseen(self) -> set[str]:
        """The places on the page of required keys that no output had."""
        shared = {str(name): key.values for name, key in self.shared.items()}
        places: dict[Key, str] = {}
        for section, kinds in {**self.objects, **self.named, **shared}.items():
            for place, key in self._all_keys(kinds, section):
                places.setdefault(key, place)
        return {place for key, place in places.items() if key not in self.seen}

    def _all_keys(self, kinds: Iterable[Kind], place: str) -> Iterator[tuple[str, Key]]:
        """The required keys of objects, nested ones included."""
        for kind in kinds:
            for key in kind if isinstance(kind, tuple) else ():
                if isinstance(key, Key) and key.is_always:
                    inner = f"{place}.{key.name or '*'}"
                    if key.name is not None:
                        yield inner, key
                    yield from self._all_keys(key.values, inner)
            if isinstance(kind, list):
                yield from self._all_keys(kind, f"{place}[]")

    def _nearest(self, kinds: Iterable[Kind], value: Any, place: str) -> Found:
        """The result for the kind with the fewest complaints."""
        resolved = [one for kind in kinds for one in self.named.get(str(kind), [kind])]
        found = (self._against(kind, value, place) for kind in resolved)
        return min(found, key=lambda one: len(one[0]), default=([], set()))

    def _against(self, kind: Kind, value: Any, place: str) -> Found:
        if isinstance(kind, tuple) and isinstance(value, dict):
            return self._as_object(kind, value, place)
        if isinstance(kind, list) and isinstance(value, list):
            return _together(self._nearest(kind, each, f"{place}[]") for each in value)
        is_right = isinstance(kind, str) and _is(kind, value)
        return [] if is_right else [f"{place}: {str(value)[:60]!r} is not what the page says"], set()

    def _as_object(self, kind: Object, value: Mapping[str, Any], place: str) -> Found:
        known = {key.name: key for key in self._keys_of(kind)}
        lost = [name for name, key in known.items() if name is not None and key.is_always and name not in value]
        found: list[Found] = [([f"{place}: {name!r} is not there"], set()) for name in lost]
        for name, each in value.items():
            key = known.get(name, known.get(None))
            if key is None:
                found.append(([f"{place}: {name!r} is not on the page"], set()))
                continue
            values = key.values or self.shared.get(name, key).values
            found += [([], {key}), self._nearest(values, each, f"{place}.{name}")]
        return _together(found)

    def _keys_of(self, kind: Object) -> Iterator[Key]:
        for key in kind:
            if isinstance(key, Key):
                yield key
            else:
                for named in self.named[key]:
                    assert isinstance(named, tuple)
                    yield from self._keys_of(named)


def _together(found: Iterable[Found]) -> Found:
    complaints, seen = list[str](), set[Key]()
    for lines, keys in found:
        complaints += lines
        seen |= keys
    return complaints, seen


def _is(word: str, value: Any) -> bool:
    if word.startswith('"'):
        return isinstance(value, str) and value == word[1:-1]
    if word == "null":
        return value is None
    if word in _TYPES:
        return isinstance(value, _TYPES[word]) and (word == "bool" or not isinstance(value, bool))
    return True


def read_page(text: str) -> Page:
    """The page of this text, whose sections begin with `## `."""
    page, also = Page(), list[tuple[Key, list[str]]]()
    for section in re.split(r"^## ", text, flags=re.M):
        title, _, body = section.partition("\n")
        plain = " ".join(body.split())
        for block in _BLOCK.finditer(body):
            objects = _Reader(block["text"]).objects()
            keys = [key for key in objects[0] if isinstance(key, Key)]
            lists = _ALSO.findall(" ".join(body[: block.start()].split()) + " ")
            if block["name"]:
                page.named[block["name"].split()[0]] = [*objects]
            elif block["text"].startswith("{"):
                page.objects.setdefault(title, []).extend(objects)
            elif lists:  # a key of objects of other sections
                also += [(replace(key, is_always=False), re.findall(r"`(\w+)`", lists[-1])) for key in keys]
            else:
                page.shared |= {key.name: key for key in keys}
        page.named |= {name: [*_Reader(inline).objects()] for name, inline in _INLINE.findall(plain)}
        for name, left_out in _ABOVE.findall(plain):
            above = page.objects[title][0]
            page.named[name] = [tuple(key for key in above if isinstance(key, str) or f"`{key.name}`" not in left_out)]
    for key, sections in also:
        for title in sections:
            page.objects[title] = [(*kind, key) for kind in page.objects[title]]
    return page


class _Reader:
    """Reads the notation, token by token."""

    def __init__(self, text: str) -> None:
        self._tokens: Sequence[str] = [*_TOKEN.findall(text), "}"]
        self._at = 0

    def objects(self) -> list[Object]:
        """The objects of a block, or one of the keys that it begins with."""
        if self._tokens[0] != "{":
            return [self._keys()]
        found = []
        while self._takes("{"):
            found.append(self._keys())
        return found

    def _takes(self, token: str) -> bool:
        is_next = self._tokens[self._at] == token
        self._at += is_next
        return is_next

    def _word(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _keys(self) -> Object:
        """The keys of an object up to its brace."""
        found: list[Key | str] = []
        while not self._takes("}"):
            names = [self._word()]
            while self._takes("|"):
                names.append(self._word())
            is_always = not self._takes("?") and len(names) == 1
            values = self._kinds() if self._takes(":") else ()
            is_named = not values and names[0].isupper() and not names[0].startswith('"')
            for name in names:
                found.append(name if is_named else Key(name[1:-1] if name.startswith('"') else None, values, is_always))
            self._takes(",")
        return tuple(found)

    def _kinds(self) -> tuple[Kind, ...]:
        found = [self._kind()]
        while self._takes("|"):
            found.append(self._kind())
        return tuple(found)

    def _kind(self) -> Kind:
        if self._takes("{"):
            return self._keys()
        if self._takes("["):
            items: list[Kind] = []
            while not self._takes("]"):
                items += self._kinds()
                self._takes(",")
            return items
        words = []
        while self._tokens[self._at] not in "{}[],:|?":
            words.append(self._word())
        assert words, f"nothing stands before {' '.join(self._tokens[self._at : self._at + 8])}"
        return " ".join(words)
