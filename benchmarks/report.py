"""Writes the generated parts of the reports from the committed results; measures nothing.

    python benchmarks/report.py [--charts]

A generated table or list is between `<!--=PART-->` and `<!--=-->`; a generated number is followed by `<!--=PART-->`.
A part is a value of a results file, `@papers[convolutions][vgg16][mflop]:.0f`, or what a function of a script returns,
`fleet_local.table(@fleet-local[runs])`: Markdown, or (headers, rows). An index and a format may follow either.

Options:
    --charts: draw the charts of these pages again (needs matplotlib)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from string import Formatter
from typing import Any

from testbed import markdown_table, read_options, results

FOLDER = Path(__file__).parent
PAGES = (FOLDER.parent / "README.md", *sorted((FOLDER / "reports").glob("*.md")))
CHARTS = {"cpu_table": "cpu-networks.svg", "cpu_profile_tables": "cpu-roofline.svg"}
_BLOCK = re.compile(r"^(<!--=([^\n]+)-->\n)(.*?)(?=^<!--=-->$)", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"-?\w[\w.,]*(?: %)?(<!--=([^\n]+?)-->)")
_PART = re.compile(r"(?:@([\w.-]+)|(\w+)\.(\w+)(?:\(([^)]*)\))?)((?:\[[^\]]*\])*)(?::(.+))?")


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, charts=False)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(generated(text), encoding="utf-8")
    for module, name in CHARTS.items() if options.charts else ():
        import_module(module).draw(FOLDER / "reports" / "images" / name)


def generated(page: str) -> str:
    """The page with its generated parts written again."""
    whole = _BLOCK.sub(lambda found: f"{found[1]}{value(found[2])}\n", page)
    return _NUMBER.sub(lambda found: f"{value(found[2])}{found[1]}", whole)


def value(part: str) -> str:
    """The text of a generated part."""
    content, form = _content(part)
    text = markdown_table(*content) if isinstance(content, tuple) else format(content, form)
    return re.sub(r"(?<=\d)%", " %", text.strip("\n"))


def _content(part: str) -> tuple[Any, str]:
    """What a part names, and its format."""
    found = _PART.fullmatch(part)
    assert found is not None, part
    file, module, name, arguments, index, form = found.groups("")
    content = results(file) if file else getattr(import_module(module), name)
    if callable(content):
        each = arguments.split(", ") if arguments else ()
        content = content(*(_content(one)[0] if one.startswith("@") else one for one in each))
    return Formatter().get_field(f"0{index}", (content,), {})[0], form


if __name__ == "__main__":
    main()
