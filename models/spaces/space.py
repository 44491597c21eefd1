"""Search spaces, built-in or defined by a Python file."""

from __future__ import annotations

import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType

import onnx

from iosched.models.errors import UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.mutation.graph_view import GraphView, view_of
from iosched.models.mutation.mutator import Mutator
from iosched.models.mutation.variant import matched
from iosched.models.source import StrPath

PIXELS = 64
"""The default image size of base models: small enough for many trials."""

MIN_PIXELS, MAX_PIXELS = 32, 1024

PREFIX = "builtin:"
_NAME = "space"
NAMES = ("mnasnet", "nasnet", "darts", "enas", "spos", "inception", "pelee")
"""Built-in spaces; each has a module of its name with a `SPACE`."""


@dataclass(frozen=True)
class Space:
    """A base model closed under mutators (Retiarii, OSDI'20, section 3).

    Attributes:
        name: for messages.
        mutators: applied in order, each to the result of those before.
        base: makes the base model for square images of this many pixels a side; None if the user passes a model.
        bases: instead of `base`, several such functions, chosen by name.
        max_mutations: the number of single mutations at chosen places; None to apply each mutator once, wherever it
            matches. See `variant_of`.
        size: the number of combinations of choices in the space's own base; None if unknown.
        pixels: the argument of `base`.
    """

    name: str
    mutators: tuple[Mutator, ...]
    base: Callable[[int], onnx.ModelProto] | None = None
    size: int | None = None
    pixels: int = PIXELS
    bases: tuple[Callable[[int], onnx.ModelProto], ...] = ()
    max_mutations: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError("a space needs a name")
        object.__setattr__(self, "mutators", tuple(self.mutators))
        object.__setattr__(self, "bases", tuple(self.bases))
        if fault := self._fault():
            raise UsageError(f"space {self.name!r}{fault}")

    def _fault(self) -> str | None:
        if not self.mutators:
            return " has no mutators"
        if strange := [type(each).__name__ for each in self.mutators if not _is_mutator(each)]:
            return f": {strange[0]} is not a mutator; it needs a `name`, `match(graph)` and `mutate(targets, edit)`"
        if twice := _repeated(mutator.name for mutator in self.mutators):
            return f": two mutators have the name {twice!r}; names must be unique"
        names = [getattr(each, "__name__", "") for each in self.bases]
        if self.bases and (self.base or "" in names or _repeated(names)):
            return ": `bases` must be functions with different names, and `base` must be None"
        if self.max_mutations is not None and not (isinstance(self.max_mutations, int) and self.max_mutations > 0):
            return ": `max_mutations` must be an integer of at least 1"
        return None

    def at(self, pixels: int) -> Space:
        """The same space with base models for images of `pixels` a side.

        Raises:
            UsageError: it has no base model, or the size is out of range.
        """
        if not self._builders:
            raise UsageError(f"space {self.name!r} has no base model, so its image size cannot be set")
        if not MIN_PIXELS <= pixels <= MAX_PIXELS:
            known = f"{MIN_PIXELS} to {MAX_PIXELS} pixels a side"
            raise UsageError(f"space {self.name!r} takes images of {known}, not {pixels}")
        return replace(self, pixels=pixels)

    def begun(self, base: Model | None) -> tuple[Model, ...]:
        """The models to vary: `base`, or for None those of the space.

        Raises:
            UsageError: there is none, or no mutator applies to it.
            InvalidModelError: the space's model cannot be run.
        """
        if base is None:
            return self.base_models()
        graph = view_of(base)
        if any(_finds(mutator, graph) for mutator in self.mutators):
            return (base,)
        own = ".\nOmit the model to use the space's own base model." if self._builders else ""
        raise UsageError(f"no mutator of space {self.name!r} applies to model {base.name!r}{own}")

    def base_model(self) -> Model:
        """The first of `base_models`."""
        return self.base_models()[0]

    def base_models(self) -> tuple[Model, ...]:
        """The space's base models; raises as `begun`."""
        if not self._builders:
            raise UsageError(f"space {self.name!r} has no base model; pass one")
        made = [(name, build(self.pixels).SerializeToString()) for name, build in self._builders.items()]
        return tuple(load_model(data, name=name) for name, data in made)

    @property
    def _builders(self) -> dict[str, Callable[[int], onnx.ModelProto]]:
        own = {} if self.base is None else {self.name: self.base}
        return own | {build.__name__: build for build in self.bases}


def _repeated(names: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _finds(mutator: Mutator, graph: GraphView) -> bool:
    try:
        return bool(matched(mutator, graph))
    except UsageError:
        return True  # every variant reports it


def _is_mutator(found: object) -> bool:
    methods = (getattr(found, method, None) for method in ("match", "mutate"))
    return isinstance(getattr(found, "name", None), str) and all(map(callable, methods))


def find_space(source: StrPath) -> Space:
    """The space `builtin:NAME`, `builtin:NAME:PIXELS`, or that of a Python file, which is executed.

    Raises:
        UsageError: there is none of that name, or the file defines none.
    """
    source = os.fspath(source)
    if source in NAMES and not Path(source).exists():
        raise UsageError(f"there is no file {source!r}; the built-in space is {PREFIX}{source}")
    if not source.startswith(PREFIX):
        return read_space(Path(source))
    name, colon, pixels = source.removeprefix(PREFIX).partition(":")
    space = builtin_space(name)
    if colon and not (pixels.isascii() and pixels.isdecimal()):
        raise UsageError(f"{source!r}: {pixels!r} is not a number of pixels; write {PREFIX}{name}:64")
    return space.at(int(pixels)) if colon else space


def builtin_space(name: str) -> Space:
    """The built-in space of this name.

    Raises:
        UsageError: there is none; suggests similar names.
    """
    if name in NAMES:
        space: Space = import_module(f"iosched.models.spaces.{name}").SPACE
        return space
    close = get_close_matches(name, NAMES, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(NAMES)}"
    raise UsageError(f"there is no built-in space {name!r}; {hint}")


def read_space(path: Path) -> Space:
    """The `space = Space(...)` of a Python file, which is executed.

    Raises:
        UsageError: the file is missing, fails, or defines no space; names the line if possible.
    """
    module = executed(path)
    found = getattr(module, _NAME, None)
    if isinstance(found, Space):
        return found
    if found is None:
        raise UsageError(f"{path} defines no `{_NAME}`; it must end with `{_NAME} = iosched.Space(...)`")
    raise UsageError(f"{path}: `{_NAME}` must be an iosched.Space, not {type(found).__name__}")


def executed(path: Path) -> ModuleType:
    """The module of a Python file.

    Raises:
        UsageError: the file is missing or fails; names the line if possible.
    """
    module = ModuleType(f"iosched_file_{path.stem}")
    module.__file__ = str(path)
    # Dataclasses look up their module.
    sys.modules[module.__name__] = module
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        if not _line(error, path) and isinstance(error, OSError):
            raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
        raise UsageError(f"{path}{_line(error, path)}: {_said(error)}") from error
    return module


def _line(error: BaseException, path: Path) -> str:
    """The last line of the file itself in the traceback, where the mistake usually is."""
    if isinstance(error, SyntaxError) and error.filename == str(path) and error.lineno:
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


def _said(error: BaseException) -> str:
    if isinstance(error, UsageError | SyntaxError):
        return error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
