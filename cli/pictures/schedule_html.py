"""A schedule as one HTML file that stands alone: its script draws it, and nothing is ever asked of a network.

Names in a model come from strangers. They reach the page as JSON in which no tag can end or begin, and its script puts
them in as text alone; the policy in the page's head lets no other script run, and nothing be loaded.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template

from iosched.cli.errors import printable
from iosched.cli.pictures.families import FAMILIES, Paint

_SCRIPTS = ("model", "layout", "draw", "details", "overview", "marks", "controls")
"""In this order they are one script, in which each may use all."""


def draw_html(title: str, data: Mapping[str, object]) -> str:
    """The page as text of an HTML file.

    Args:
        title: of the page.
        data: see `page_data`.
    """
    scripts = "\n".join(_page(f"{name}.js") for name in _SCRIPTS)
    script = f'"use strict";\n(() => {{\n{scripts}}})();'
    style = "\n".join([*_colours(), _page("page.css")])
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_page("page.html")).substitute(
        policy=policy, title=escape(printable(title)), style=style, script=script, data=_embedded(data)
    )


def _page(name: str) -> str:
    return files("iosched.cli.pictures").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _embedded(data: Mapping[str, object]) -> str:
    """JSON that stands in a script element: without `<`, nothing in it can end the element or begin a comment."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _colours() -> Iterator[str]:
    """Rules for the colours of families, and for those of models, which take them in turn."""
    for key, family in FAMILIES.items():
        yield f".by-family .f-{key}, .legend .f-{key} {{ {_both(family.light, family.dark)} }}"
    for number, family in enumerate(each for each in FAMILIES.values() if not each.light.edge):
        yield f".by-model .m-{number} {{ {_both(family.light, family.dark)} }}"


def _both(light: Paint, dark: Paint) -> str:
    edges = [paint.edge or "transparent" for paint in (light, dark)]
    return (
        f"--fill: light-dark({light.fill}, {dark.fill}); --words: light-dark({light.ink}, {dark.ink}); "
        f"--edge: light-dark({edges[0]}, {edges[1]});"
    )
