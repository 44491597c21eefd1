"""Writes the generated parts of the reports from the committed results; measures nothing.

    python benchmarks/report.py [--charts] [--list]

A generated table or list is between `<!--=PART-->` and `<!--=-->`; a generated number is followed by `<!--=PART-->`.
A part is a value of a results file, `@papers[convolutions][vgg16][mflop]:.0f`, or what a function of a script returns,
`fleet_local.table(@fleet-local[runs])`: Markdown, or (headers, rows). An index and a format may follow either.

Options:
    --charts: draw the charts of these pages again (needs matplotlib)
    --list: print the results files of each page with the product, commit and processor that they are of; write nothing
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from string import Formatter
from typing import Any

from command_line import read_options
from result_tables import Table, markdown_table, print_table
from results_files import results

FOLDER = Path(__file__).parent
PAGES = (FOLDER.parent / "README.md", *sorted((FOLDER / "reports").glob("*.md")))
CHARTS = {"cpu_table": "cpu-networks.svg", "cpu_profile_tables": "cpu-roofline.svg"}
_BLOCK = re.compile(r"^(<!--=([^\n]+)-->\n)(.*?)(?=^<!--=-->$)", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"-?\w[\w.,]*(?: %)?(<!--=([^\n]+?)-->)")
_SCRIPT, _FILE = re.compile(r"(?:^|\W)(\w+)\.\w"), re.compile(r"@([\w.-]+)")
_RESULTS = re.compile(r'\bresults\("([\w.-]+)"\)')
_PART = re.compile(r"(?:@([\w.-]+)|(\w+)\.(\w+)(?:\(([^)]*)\))?)((?:\[[^\]]*\])*)(?::(.+))?")


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, charts=False, list=False)
    if options.list:
        print_table(*files_table())
        return
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(generated(text), encoding="utf-8")
    for module, name in CHARTS.items() if options.charts else ():
        import_module(module).draw(FOLDER / "reports" / "images" / name)


def generated(page: str) -> str:
    """The page with its generated parts written again."""
    whole = _BLOCK.sub(lambda found: f"{found[1]}{value(found[2])}\n", page)
    return _NUMBER.sub(lambda found: f"{value(found[2])}{found[1]}", whole)


def files_table() -> Table:
    """The results files of each page: the digest of the product's code, the commit and the processor."""
    headers = ["page", "results", "code", "commit", "processor"]
    return headers, [[page.name, name, *_origin(results(name))] for page in PAGES for name in files_of(page)]


def files_of(page: Path) -> list[str]:
    """The results files that a page's parts name, or the functions of scripts that they call."""
    text = page.read_text(encoding="utf-8")
    parts = [found[2] for found in (*_BLOCK.finditer(text), *_NUMBER.finditer(text))]
    scripts = {found[1] for part in parts for found in _SCRIPT.finditer(part) if (FOLDER / f"{found[1]}.py").exists()}
    sources = [(FOLDER / f"{name}.py").read_text(encoding="utf-8") for name in sorted(scripts)]
    names = [*_FILE.findall(" ".join(parts)), *(name for source in sources for name in _RESULTS.findall(source))]
    return [name for name in dict.fromkeys(names) if results(name)]


def _origin(content: Mapping[str, Any]) -> list[str]:
    commit = content.get("provenance", {}).get("versions", {}).get("commit") or ""
    machine = content.get("machine", "")
    processor = machine.get("processor", "") if isinstance(machine, dict) else machine
    return [content.get("digest", "")[:8], commit[:8], processor]


def value(part: str) -> str:
    """The text of a generated part."""
    content, form = _content(part)
    text = markdown_table(*content) if isinstance(content, tuple) else format(content, form)
    return re.sub(r"(?<=\d)%", " %", text.strip("\n"))


def _content(part: str) -> tuple[Any, str]:
    """The value of a part, and its format."""
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
