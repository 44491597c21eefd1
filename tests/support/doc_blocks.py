"""The code blocks of the documentation: the language of each, and the reason if it is not run.

python tests/support/doc_blocks.py      # writes into CONTRIBUTING.md how many there are of each kind
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
GENERATED = {*(ROOT / "docs" / "cli").glob("*.md")}  # what `--help` prints; tests/test_docs.py compares all of it
PAGES = sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")} - GENERATED)

# Blocks that run, and reasons why others do not: `not run:` is followed by a reason, optionally with details.
RUN = {
    "run": "by `tests/docs/test_code_blocks.py`",
    "run elsewhere": "by the test that the marker names",
    "read": "JSON, TOML or YAML",
}
REASONS = {
    "takes minutes": "even on small models",
    "needs a GPU": "or NVIDIA's programs",
    "needs a cluster": "Ray, or other machines",
    "needs the network": "to install or fetch",
    "needs another program": "named by the marker",
    "needs data from elsewhere": "published measurements or exported models",
    "outline": "completed by the reader",
    "shows output": "of a command elsewhere",
    "no code": "formula, diagram, shape of JSON",
}

_MARKER = re.compile(r"<!-- (?:not run: (?P<reason>.+)|run by (?P<test>\S+)) -->")
_OF_TEXTS = re.compile(r"<!-- texts below are compared by (\S+) -->")


@dataclass(frozen=True)
class Block:
    """A code block of a page.

    Attributes:
        line: of the page, from 1, at which the block begins.
        language: the text after the fence; "" for indented blocks.
        reason: why it is not run; None if it is.
        test: the file of the test that runs it separately.
        shown: its output, in a block of `text` right below.
    """

    page: Path
    line: int
    language: str
    code: str
    reason: str | None = None
    test: str | None = None
    shown: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.reason is None and self.test is None


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """The blocks of a page in order; an unmarked block of `text` right below another is its output."""
    found: list[Block] = []
    for block, follows in _all(page):
        if follows and block.language == "text" and block.is_run:
            found[-1] = Block(**{**vars(found[-1]), "shown": block.code})
        else:
            found.append(block)
    return tuple(found)


def _all(page: Path) -> Iterator[tuple[Block, bool]]:
    """Each block, and whether it directly follows the one before."""
    before: Token | None = None
    of_texts: str | None = None
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            marker = _MARKER.search(before.content) if before is not None and before.type == "html_block" else None
            given = marker.groupdict() if marker else {"test": of_texts if token.info == "text" else None}
            line = (token.map or [0])[0] + 1
            follows = before is not None and before.type == "fence"
            yield Block(page, line, token.info.partition(" ")[0], token.content, **given), follows
        elif token.type == "html_block" and (whole := _OF_TEXTS.search(token.content)):
            of_texts = whole[1]
        before = token


def counts() -> str:
    """A table of how many blocks are run, or why not."""
    found = Counter(_kind(block) for page in PAGES for block in blocks(page))
    rows = [f"| {kind} | {found[kind]} | {meaning} |" for kind, meaning in {**RUN, **REASONS}.items()]
    return "\n".join(["| blocks | how many | meaning |", "|---|---|---|", *rows])


def _kind(block: Block) -> str:
    """A key of `RUN` or `REASONS`."""
    if block.reason is not None:
        return block.reason.split(",")[0]
    if block.test is not None:
        return "run elsewhere"
    return "read" if block.language in ("json", "toml", "yaml") else "run"


def with_counts(text: str) -> str:
    """The text of CONTRIBUTING.md with the table as it is now."""
    return re.sub(r"\| blocks \| how many \|.*\n(\|.*\n)+", counts() + "\n", text)


if __name__ == "__main__":
    CONTRIBUTING = ROOT / "CONTRIBUTING.md"
    CONTRIBUTING.write_text(with_counts(CONTRIBUTING.read_text(encoding="utf-8")), encoding="utf-8")
