"""Several models on one command line: `a=FILE`, or FILE, whose stem is then the model's name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iosched.cli.options import Binding
from iosched.cli.output import note
from iosched.cli.source import STDIN, ZOO, input_file, read_model
from iosched.models.errors import InvalidModelError, UsageError

if TYPE_CHECKING:
    from iosched.models.model import Model


@dataclass(frozen=True)
class Named:
    """A model as the command line names it.

    Attributes:
        name: the model's name.
        source: a path, `-`, or `zoo:NAME`.
    """

    name: str
    source: str


def parse_named(texts: Sequence[str]) -> tuple[Named, ...]:
    """The models of `a=FILE` and FILE.

    Raises:
        UsageError: two have one name, or one has none.
    """
    found = tuple(map(_named, texts))
    first: dict[str, str] = {}
    for each in found:
        if each.name in first:
            raise UsageError(
                f"{first[each.name]} and {each.source} would both be called {each.name!r}.\n"
                f"Give one of them another name: OTHER={each.source}"
            )
        first[each.name] = each.source
    return found


def _named(text: str) -> Named:
    name, equals, source = text.partition("=")
    if equals and name and source and "/" not in name and not Path(text).is_file():
        if any("\ud800" <= character <= "\udfff" for character in name):  # what is no UTF-8 on the command line
            raise UsageError(f"{name!r} is no name for a model: it is not UTF-8")
        return Named(name, source)
    if text == STDIN:
        raise UsageError("a model from standard input needs a name: NAME=-")
    return Named(name_of(text), text)


def name_of(text: str) -> str:
    """The name of a model where none is given: that of the network in the zoo, or the file's stem."""
    if text.startswith(ZOO):
        return text.removeprefix(ZOO)
    return Path(text).name.removesuffix(".onnx").removesuffix(".iosched")


def read_models(named: Sequence[Named], binding: Binding, *, skips_broken: bool) -> dict[str, Model]:
    """Loads the models, each bound to its shapes.

    `--input-shape a/NAME=...` is of model a alone, and NAME without a model of all that have such an input.

    Args:
        skips_broken: whether a file that is no model that can be run is left out, with a line on stderr.

    Raises:
        UsageError: a shape is of no input, or no model is left.
        InvalidModelError: a file is not a model that can be run.
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
            note(f"Left out {each.name!r}: {error}")
            continue
        unused -= shapes.keys()
    if not found:
        raise UsageError("no model is left to put together")
    if unused:
        raise UsageError(f"--input-shape {min(unused)}: no model has an input or a dynamic dimension of that name")
    return found


def files_of(named: Sequence[Named]) -> list[Path | None]:
    """The files that are read; see `input_file`."""
    return [input_file(each.source) for each in named]


def _shapes(model: Named, named: Sequence[Named], binding: Binding) -> Mapping[str, tuple[int, ...]]:
    """The shapes of one model's inputs, by the model's own names."""
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
    """The names of a file's inputs and of their dynamic dimensions; none of standard input, which can be read once."""
    from iosched.models.shapes.binding import input_dims, symbols_of
    from iosched.models.source import read_proto

    path = input_file(source)
    if path is not None:
        graph = read_proto(path).graph
        yield from (value.name for value in graph.input)
        yield from symbols_of(input_dims(graph.input))


def _owner(name: str, named: Sequence[Named]) -> str | None:
    """The model whose input it is alone."""
    owner, slash, _ = name.partition("/")
    return owner if slash and owner in {each.name for each in named} else None


def _check_shapes(named: Sequence[Named], binding: Binding) -> None:
    if any(each.source == STDIN for each in named):
        bare = [name for name in binding.input_shapes if _owner(name, named) is None]
        if bare:
            raise UsageError(f"--input-shape {bare[0]}: name its model, since one is standard input: a/{bare[0]}")
