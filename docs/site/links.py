"""A hook of MkDocs: the same Markdown looks alike, and its links work, on GitHub and on the site.

Files outside of docs/ are no pages of the site. A few that people read are added as pages; a link to any other leads
into the repository. A link to a file that is not there stays as it is, so the strict build fails.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
URL = "https://github.com/iosched/iosched/blob/main/"
ADDED = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "examples/README.md": "project/examples.md",
}
# Code, in which nothing is a link, or else the target of a link.
_CODE_OR_LINK = re.compile(r"^```.*?^```|`[^`\n]+`|\]\((?P<target>[^)\s]+)\)", re.MULTILINE | re.DOTALL)
# Code, or else a line of a paragraph right before the first item of a list.
_CODE_OR_ABOVE_LIST = re.compile(
    r"^```.*?^```|^(?P<above>(?![-*+] |\d+\. |\s)[^\n]*\n)(?=(?:[-*+]|1\.) )", re.MULTILINE | re.DOTALL
)


def on_config(config: Any) -> Any:
    """Gives headings the anchors that they have on GitHub."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages whose files are outside of docs/."""
    from mkdocs.structure.files import File

    for source, place in ADDED.items():
        files.append(File.generated(config, place, content=(REPOSITORY / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites the links of a page that lead out of docs/, or come from outside of it."""
    place = page.file.src_uri
    source = next((source for source, added in ADDED.items() if added == place), f"docs/{place}")
    return relinked(with_lists_apart(markdown), source, place)


def with_lists_apart(markdown: str) -> str:
    """The text with an empty line before each list, without which Python-Markdown sees none."""
    return _CODE_OR_ABOVE_LIST.sub(lambda match: match[0] + ("\n" if match["above"] else ""), markdown)


def relinked(markdown: str, source: str, place: str) -> str:
    """The text with its links for the site.

    Args:
        markdown: the text of a page.
        source: its file, seen from the repository's root, from which its links are written.
        place: where the site has it, seen from docs/.
    """

    def relink(match: re.Match[str]) -> str:
        target = match["target"]
        return match[0] if target is None else f"]({_on_the_site(target, source, place)})"

    return _CODE_OR_LINK.sub(relink, markdown)


def anchor(heading: str, separator: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def _on_the_site(target: str, source: str, place: str) -> str:
    path, hash_, heading = target.partition("#")
    if not path or re.match(r"[a-z]+:", path) or path.startswith("/"):
        return target
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if file in ADDED or (file.startswith("docs/") and source in ADDED):
        there = ADDED.get(file) or file.removeprefix("docs/")
        return posixpath.relpath(there, posixpath.dirname(place) or ".") + hash_ + heading
    if file.startswith("docs/") or not (REPOSITORY / file).exists() or file.startswith(".."):
        return target
    return f"{URL}{file}{hash_}{heading}"
