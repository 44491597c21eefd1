"""What docs/json.md says that commands print, read from its blocks, and how far an output is as it says.

The notation is that of the page. `{"a", "b": int | null}` is an object with these keys, `{name: str}` one whose keys
are names, `[str]` a list. Behind a key stands what its value may be, of which these words mean a type: int, float,
bool, str and null; all others mean anything. A key without a value has that of `## Shared keys`, if it is there.
A key with `?` behind it, or beside others with `|`, is not always there.
A word in capitals stands for an object, or for keys of one, that the page says elsewhere: `NAME is` with a block or
code after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(r'"[^"]*"|\.\.\.|…|[{}\[\],:|?]|[^\s{}\[\],:|"?]+')
_BLOCK = re.compile(r"(?P<name>[A-Z]{3,} is\n\n)?```text\n(?P<text>.*?)```", re.S)
_INLINE = re.compile(r"\b([A-Z]{3,}) (?:is|are) `([^`]+)`")
_ABOVE = re.compile(r"\b([A-Z]{3,}) are all keys above, except ((?:`\w+`(?:, | and )?)+)")
_ALSO = re.compile(r"(?:Results of|With `--cluster`,) ((?:`\w+`(?:, | and )?)+) also\s")
_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


@dataclass(frozen=True, eq=False)
class Key:
    """A key of an object. `name` is None where any key may stand, and `values` are the kinds of values it may have."""

    name: str | None
    values: tuple[Kind, ...] = ()
    is_always: bool = True


@dataclass(frozen=True, eq=False)
class Kind:
    """One kind of value: an object by its keys, a list by what is in it, or a word of the page."""

    keys: tuple[Key | str, ...] | None = None
    items: tuple[Kind, ...] | None = None
    word: str = ""


@dataclass(eq=False)
class Page:
    """The page: the objects of each section, words in capitals, shared keys, and the keys that were seen."""

    objects: dict[str, list[Kind]] = field(default_factory=dict)
    named: dict[str, list[Kind]] = field(default_factory=dict)
    shared: dict[str | None, Key] = field(default_factory=dict)
    seen: set[Key] = field(default_factory=set)

    def complaints(self, section: str, output: Any) -> list[str]:
        """In what an output of a command is not as an object of its section; empty where it is as one of them."""
        return self._best(tuple(self.objects[section]), output, section)

    def unseen(self) -> set[str]:
        """The keys that are said to be always there, of objects that no output had, by where the page has them."""
        known, found = set[Key](), set[str]()
        shared = {str(name): key.values for name, key in self.shared.items()}
        for section, kinds in {**self.objects, **self.named, **shared}.items():
            for place, key in self._all_keys(kinds, section):
                if key not in known and key not in self.seen:
                    found.add(place)
                known.add(key)
        return found

    def _all_keys(self, kinds: Sequence[Kind], place: str) -> Iterator[tuple[str, Key]]:
        """The keys that are always there where an object is, with those inside of them."""
        for kind in kinds:
            for key in kind.keys or ():
                if isinstance(key, Key) and key.is_always:
                    inner = f"{place}.{key.name or '*'}"
                    if key.name is not None:
                        yield inner, key
                    yield from self._all_keys(key.values, inner)
            yield from self._all_keys(kind.items or (), f"{place}[]")

    def _best(self, kinds: tuple[Kind, ...], value: Any, place: str) -> list[str]:
        """The complaints by the kind that is nearest; the keys of that one count as seen."""
        resolved = [one for kind in kinds for one in self.named.get(kind.word, [kind])]
        if not resolved:
            return []
        tried = [self._against(kind, value, place) for kind in resolved]
        complaints, seen = min(tried, key=lambda one: len(one[0]))
        self.seen |= seen
        return complaints

    def _against(self, kind: Kind, value: Any, place: str) -> tuple[list[str], set[Key]]:
        if kind.keys is not None:
            return self._as_object(kind, value, place) if isinstance(value, dict) else _wrong(value, place)
        if kind.items is not None:
            if not isinstance(value, list):
                return _wrong(value, place)
            found = [self._apart(kind.items, each, f"{place}[]") for each in value]
            return [line for lines, _ in found for line in lines], {key for _, keys in found for key in keys}
        return ([], set()) if _is(kind.word, value) else _wrong(value, place)

    def _apart(self, kinds: tuple[Kind, ...], value: Any, place: str) -> tuple[list[str], set[Key]]:
        apart = Page(self.objects, self.named, self.shared)
        return apart._best(kinds, value, place), apart.seen

    def _as_object(self, kind: Kind, value: Mapping[str, Any], place: str) -> tuple[list[str], set[Key]]:
        keys = list(self._keys_of(kind))
        known = {key.name: key for key in keys if key.name is not None}
        other = next((key for key in keys if key.name is None), None)
        lines = [
            f"{place}: {name!r} is not there" for name, key in known.items() if key.is_always and name not in value
        ]
        seen: set[Key] = set()
        for name, each in value.items():
            key = known.get(name, other)
            if key is None:
                lines.append(f"{place}: {name!r} is not on the page")
                continue
            values = key.values or self.shared.get(name, key).values
            more, found = self._apart(values, each, f"{place}.{name}")
            lines += more
            seen |= {key, *found}
        return lines, seen

    def _keys_of(self, kind: Kind) -> Iterator[Key]:
        for key in kind.keys or ():
            if isinstance(key, Key):
                yield key
                continue
            for named in self.named[key]:
                yield from self._keys_of(named)


def read_page(text: str) -> Page:
    """The page of this text, whose sections begin with `## `."""
    page, also = Page(), list[tuple[Key, list[str]]]()
    for section in re.split(r"^## ", text, flags=re.M):
        title, _, body = section.partition("\n")
        plain = " ".join(body.split())
        for block in _BLOCK.finditer(body):
            kinds = _read(block["text"])
            keys = [key for key in kinds[0].keys or () if isinstance(key, Key)]
            lists = _ALSO.findall(" ".join(body[: block.start()].split()) + " ")
            if block["name"]:
                page.named[block["name"].split()[0]] = kinds
            elif block["text"].startswith("{"):
                page.objects.setdefault(title, []).extend(kinds)
            elif lists:  # a key of objects of other sections
                sections = re.findall(r"`(\w+)`", lists[-1])
                also += [(Key(key.name, key.values, is_always=False), sections) for key in keys]
            else:
                page.shared |= {key.name: key for key in keys}
        page.named |= {name: _read(inline) for name, inline in _INLINE.findall(plain)}
        for name, left_out in _ABOVE.findall(plain):
            above = page.objects[title][0].keys or ()
            kept = [key for key in above if isinstance(key, str) or f"`{key.name}`" not in left_out]
            page.named[name] = [Kind(keys=tuple(kept))]
    for key, sections in also:
        for title in sections:
            page.objects[title] = [Kind(keys=(*(kind.keys or ()), key)) for kind in page.objects[title]]
    return page


def _read(text: str) -> list[Kind]:
    """The objects of a block, or one of the keys that it begins with."""
    tokens = _TOKEN.findall(text)
    if tokens[0] != "{":
        keys, _ = _keys([*tokens, "}"], 0)
        return [Kind(keys=tuple(keys))]
    found, at = [], 0
    while at < len(tokens):
        kind, at = _kind(tokens, at)
        found.append(kind)
    return found


def _kinds(tokens: Sequence[str], at: int) -> tuple[tuple[Kind, ...], int]:
    kind, at = _kind(tokens, at)
    found = [kind]
    while tokens[at] == "|":
        kind, at = _kind(tokens, at + 1)
        found.append(kind)
    return tuple(found), at


def _kind(tokens: Sequence[str], at: int) -> tuple[Kind, int]:
    if tokens[at] == "{":
        keys, at = _keys(tokens, at + 1)
        return Kind(keys=tuple(keys)), at + 1
    if tokens[at] == "[":
        items: list[Kind] = []
        at += 1
        while tokens[at] != "]":
            kinds, at = _kinds(tokens, at)
            items += kinds
            at += tokens[at] == ","
        return Kind(items=tuple(items)), at + 1
    words = []
    while tokens[at] not in ("{", "}", "[", "]", ",", ":", "|", "?"):
        words.append(tokens[at])
        at += 1
    assert words, f"nothing stands before {' '.join(tokens[at : at + 8])}"
    return Kind(word=" ".join(words)), at


def _keys(tokens: Sequence[str], at: int) -> tuple[list[Key | str], int]:
    """The keys of an object up to its brace. A word in capitals is kept as it is."""
    found: list[Key | str] = []
    while tokens[at] != "}":
        names, is_always = [tokens[at]], True
        at += 1
        while tokens[at] == "|":
            names.append(tokens[at + 1])
            at, is_always = at + 2, False
        if tokens[at] == "?":
            at, is_always = at + 1, False
        values: tuple[Kind, ...] = ()
        if tokens[at] == ":":
            values, at = _kinds(tokens, at + 1)
        is_named = not values and names[0].isupper() and not names[0].startswith('"')
        for name in names:
            found.append(name if is_named else Key(name[1:-1] if name.startswith('"') else None, values, is_always))
        at += tokens[at] == ","
    return found, at


def _is(word: str, value: Any) -> bool:
    if word.startswith('"'):
        return isinstance(value, str) and value == word[1:-1]
    if word == "null":
        return value is None
    if word in _TYPES:
        return isinstance(value, _TYPES[word]) and (word == "bool" or not isinstance(value, bool))
    return True


def _wrong(value: Any, place: str) -> tuple[list[str], set[Key]]:
    return [f"{place}: {str(value)[:60]!r} is not what the page says"], set()
