"""Command lines of the scripts."""

from __future__ import annotations

import ast
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

Given = Mapping[str, Any]
NOTHING: Given = {}
OUTPUTS: Given = {"profile_db": Path, "output": Path, "plot": Path}


def read_options(file: str, words: Sequence[str] | None = None, takes: Given = NOTHING, /, **options: Any) -> Namespace:
    """The command line of a script, whose docstring is the help; `command` is kept with the results.

    A value of `takes` (arguments) or `options` is the default and sets the type: a type alone has the default None,
    False makes a flag, a list takes several words and a tuple several values separated by commas. A dict holds the
    keywords of `ArgumentParser.add_argument`.

    Args:
        file: `__file__` of the script.
        words: the words of the command line; those of this process by default.
    """
    text = ast.get_docstring(ast.parse(Path(file).read_text(encoding="utf-8")))
    parser = ArgumentParser(description=text, formatter_class=RawDescriptionHelpFormatter)
    for name, value in takes.items():
        parser.add_argument(name, **_keywords(value))
    for name, value in options.items():
        parser.add_argument(*["-o"] * (name == "output"), f"--{name.replace('_', '-')}", **_keywords(value))
    own = sys.argv[1:] if words is None else list(words)
    return parser.parse_args(own, Namespace(command=["python", f"benchmarks/{Path(file).name}", *own]))


def _keywords(value: Any) -> dict[str, Any]:
    match value:
        case dict():
            return value
        case False:
            return {"action": "store_true"}
        case tuple():
            kind = type(value[0]) if value else str
            return {"type": lambda text: [kind(each) for each in text.split(",")], "default": list(value)}
        case list():
            return {"nargs": "*", "type": type(value[0]) if value else str, "default": value}
        case _ if callable(value):
            return {"type": value}
    return {"type": type(value), "default": value}


def refuse(text: str) -> NoReturn:
    """Ends a script with an error in its command line, as argparse does."""
    print(f"error: {text}", file=sys.stderr)
    raise SystemExit(2)
