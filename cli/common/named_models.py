"""Several models on one command line: NAME=FILE, or FILE with its stem as the name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from iosched.cli.common.options import Binding
from iosched.cli.common.output import note
from iosched.cli.common.source import STDIN, ZOO, input_file, read_model
from iosched.models.errors import InvalidModelError, UsageError

if TYPE_CHECKING:
    from iosched.models.model import Model


@dataclass(frozen=True)
class NamedModel:
    """A model on the command line: its name, and a path, `-` or `zoo:NAME`."""

    name: str
    source: str


def parse_named(texts: Sequence[str]) -> tuple[NamedModel, ...]:
    """Parse NAME=FILE and FILE.

    Raises:
        UsageError: two models have the same name, or one has none.
    """
    found = tuple(map(_named, texts))
    first: dict[str, str] = {}
    for each in found:
        if each.name in first:
            raise UsageError(
                f"{first[each.name]} and {each.source} would both be named {each.name!r}.\n"
                f"Give one of them another name: OTHER={each.source}"
            )
        first[each.name] = each.source
    return found


def parse_numbered(texts: Sequence[str]) -> tuple[NamedModel, ...]:
    """Parse NAME=FILE and FILE; a name that is taken gets a number, as in `a-2`."""
    found: dict[str, NamedModel] = {}
    for each in map(_named, texts):
        numbered = (f"{each.name}-{number}" for number in count(2))
        name = next(name for name in chain([each.name], numbered) if name not in found)
        found[name] = NamedModel(name, each.source)
    return tuple(found.values())


def _named(text: str) -> NamedModel:
    name, equals, source = text.partition("=")
    if equals and name and source and "/" not in name and not Path(text).is_file():
        if any("\ud800" <= character <= "\udfff" for character in name):  # not UTF-8 on the command line
            raise UsageError(f"model name {name!r} is not UTF-8: choose another")
        return NamedModel(name, source)
    if text == STDIN:
        raise UsageError("a model from standard input needs a name: NAME=-")
    return NamedModel(name_of(text), text)


def name_of(text: str) -> str:
    """Default name of a model: the network in the zoo, or the stem of the file."""
    if text.startswith(ZOO):
        return text.removeprefix(ZOO)
    return Path(text).name.removesuffix(".onnx").removesuffix(".plan").removesuffix(".iosched")


def read_models(named: Sequence[NamedModel], binding: Binding, *, skips_broken: bool) -> dict[str, Model]:
    """Load the models, bound to their shapes.

    `--input-shape a/NAME=...` applies to model a, NAME without a model to all that have this input.

    Args:
        skips_broken: skip invalid models with a note instead of raising.

    Raises:
        UsageError: a shape fits no input, or no model remains.
        InvalidModelError: a model cannot be run.
    """
    _check_shapes(named, binding)
    found: dict[str, Model] = {}
    unused = {name for name in binding.input_shapes if _owner(name, named) is None}
    for each in named:
        try:
            shapes = _shapes(each, named, binding)
            found[each.name] = read_model(each.source, Binding(binding.batch_size, shapes), name=each.name)
        except InvalidModelError as error:
            if not skips_broken:
                raise InvalidModelError(f"model {each.name!r}: {error}") from error
            note(f"Skipped {each.name!r}: {error}")
            continue
        unused -= shapes.keys()
    if not found:
        raise UsageError("no valid model is left")
    if unused:
        raise UsageError(f"--input-shape {min(unused)}: no model has an input or a dynamic dimension of that name")
    return found


def files_of(named: Sequence[NamedModel]) -> list[Path | None]:
    """Files that are read; see `input_file`."""
    return [input_file(each.source) for each in named]


def _shapes(model: NamedModel, named: Sequence[NamedModel], binding: Binding) -> Mapping[str, tuple[int, ...]]:
    """Shapes of one model's inputs, by the model's own names."""
    shared = {name: shape for name, shape in binding.input_shapes.items() if _owner(name, named) is None}
    own = set(_bindable(model.source)) if shared else set()
    found = {name: shape for name, shape in shared.items() if name in own}
    found.update(
        (name.partition("/")[2], shape)
        for name, shape in binding.input_shapes.items()
        if _owner(name, named) == model.name
    )
    return found


def _bindable(source: str) -> Iterator[str]:
    """Names of inputs and dynamic dimensions; empty for standard input, which can be read only once."""
    from iosched.models.shapes.binding import input_dims, symbols_of
    from iosched.models.source import read_proto

    path = input_file(source)
    if path is not None:
        graph = read_proto(path).graph
        yield from (value.name for value in graph.input)
        yield from symbols_of(input_dims(graph.input))


def _owner(name: str, named: Sequence[NamedModel]) -> str | None:
    """The model that the input `MODEL/NAME` belongs to, or None."""
    owner, slash, _ = name.partition("/")
    return owner if slash and owner in {each.name for each in named} else None


def _check_shapes(named: Sequence[NamedModel], binding: Binding) -> None:
    if any(each.source == STDIN for each in named):
        bare = [name for name in binding.input_shapes if _owner(name, named) is None]
        if bare:
            raise UsageError(
                f"--input-shape {bare[0]}: name its model, because one model is standard input: a/{bare[0]}"
            )
