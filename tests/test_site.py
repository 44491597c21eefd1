"""The site made from docs/: it lists every page, and its links work as on GitHub."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PAGES = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def _hook() -> ModuleType:
    spec = spec_from_file_location("links", DOCS / "site" / "links.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


links = _hook()


def _listed(nav: object) -> Iterator[str]:
    """The files of a navigation, which is a file, a list of navigations, or a title with navigations below."""
    if isinstance(nav, str):
        yield nav
    for below in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _listed(below)


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(_listed(SETTINGS["nav"])) == sorted(PAGES | set(links.ADDED.values()))


def test_every_page_is_linked_from_the_readme_of_its_folder() -> None:
    for folder in (DOCS, DOCS / "adr", DOCS / "cli"):
        named = set(re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text()))
        assert named == {path.name for path in folder.glob("*.md")} - {"README.md"}


@pytest.mark.parametrize(
    ("target", "on_the_site"),
    [
        ("cpu.md#kernels", "cpu.md#kernels"),
        ("../CONTRIBUTING.md#measuring", "project/contributing.md#measuring"),
        ("../benchmarks/rank.py", f"{links.URL}benchmarks/rank.py"),
        ("#below", "#below"),
        ("https://onnx.ai", "https://onnx.ai"),
        ("../benchmarks/gone.py", "../benchmarks/gone.py"),
        ("../../elsewhere.md", "../../elsewhere.md"),
    ],
)
def test_a_link_out_of_docs_leads_to_an_added_page_or_into_the_repository(target: str, on_the_site: str) -> None:
    assert links.relinked(f"[x]({target})", "docs/cuda.md", "cuda.md") == f"[x]({on_the_site})"


def test_links_of_an_added_page_are_relative_to_its_place_on_the_site() -> None:
    text = "[a](docs/cpu.md#b) and ![c](docs/images/c.svg), [d](CHANGELOG.md), [e](LICENSE)"
    assert links.relinked(text, "CONTRIBUTING.md", "project/contributing.md") == (
        f"[a](../cpu.md#b) and ![c](../images/c.svg), [d](changelog.md), [e]({links.URL}LICENSE)"
    )


@pytest.mark.parametrize("code", ["`[x](../LICENSE)`", "```text\n[x](../LICENSE)\n```"])
def test_links_in_code_are_left_unchanged(code: str) -> None:
    assert links.relinked(code, "docs/cpu.md", "cpu.md") == code


def test_an_empty_line_is_inserted_before_lists() -> None:
    text = "# a\n**b**\n- c\n  d\n- e\n\n```\nf\n- g\n```\nh\n1. i\n2. j"
    assert links.with_lists_apart(text) == "# a\n**b**\n\n- c\n  d\n- e\n\n```\nf\n- g\n```\nh\n\n1. i\n2. j"


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [("Two ways to launch", "two-ways-to-launch"), ("A & B", "a--b"), ("`run --check`, 4.1", "run---check-41")],
)
def test_headings_have_the_same_anchors_as_on_github(heading: str, anchor: str) -> None:
    assert links.anchor(heading, "-") == anchor


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("mkdocs") is None:
        pytest.skip("the extra [docs] is not installed")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", folder], cwd=ROOT, check=True)
    return folder


class _Elements(HTMLParser):
    """Counts the elements in the article of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self._in_article = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._in_article |= tag == "article"
        if self._in_article and tag in {"h1", "h2", "h3", "h4", "ul", "ol", "li", "table", "tr", "pre", "img"}:
            self.count[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._in_article &= tag != "article"


@pytest.mark.slow
def test_pages_have_the_same_lists_tables_and_code_as_on_github(built: Path) -> None:
    """MkDocs's dialect needs four spaces before the content of a list item, also before a table or code."""
    differences = {}
    for page in PAGES:  # one test for all, so that not every worker builds the site
        on_github, on_the_site = _Elements(), _Elements()
        html = MarkdownIt("commonmark").enable("table").render((DOCS / page).read_text())
        on_github.feed(f"<article>{html}</article>")
        file = re.sub(r"\.md$", ".html", re.sub(r"README\.md$", "index.md", page))
        on_the_site.feed((built / file).read_text())
        if on_the_site.count != on_github.count:
            differences[page] = (on_the_site.count - on_github.count, on_github.count - on_the_site.count)
    assert not differences


@pytest.mark.slow
def test_pages_fetch_nothing_from_the_network(built: Path) -> None:
    fetched = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\ssrc=\"?(?:https?:)?//|<link\b[^>]*\shref=\"?(?:https?:)?//"
    )
    for page in built.rglob("*.html"):
        assert not fetched.findall(page.read_text()), page
    for sheet in built.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//|@import", sheet.read_text()), sheet


@pytest.mark.slow
def test_search_works_without_a_server(built: Path) -> None:
    assert (built / "search" / "search_index.js").read_text().startswith("var __index")
    assert 'src="site/iframe-worker.js"' in (built / "index.html").read_text()
