"""The page of a schedule: one self-contained file, in which names are only text."""

from __future__ import annotations

import json
import re
import tomllib
from base64 import b64encode
from fnmatch import fnmatch
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pages import AWKWARD, document, page

from iosched.jobs.known_stages import KnownStages
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

TOP = Path(__file__).parents[3]


class Elements(HTMLParser):
    """The elements of a page, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag in ("script", "style"):
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is not None:  # inside a script or a style
            self.texts[-1] += data


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_file_loads_nothing_else() -> None:
    text = page(document())
    addresses = set(re.findall(r"https?://[^\"'\s]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of a namespace, which nothing requests"
    outside = [value for name, value in Elements(text).attributes if name in ("src", "href", "action", "data")]
    assert all(value is not None and value.startswith(("#", "data:,")) for value in outside)


def test_the_policy_allows_this_script_and_this_style_and_no_others() -> None:
    text = page(document())
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    style, _, script = Elements(text).texts
    for kind, words in (("style", style), ("script", script)):
        digest = b64encode(sha256(words.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("name", AWKWARD)
def test_a_name_adds_no_element_and_keeps_its_printable_characters(name: str) -> None:
    plain, awkward = page(document()), page(document(name))
    assert Elements(awkward).tags == Elements(plain).tags
    assert awkward.count("</script") == plain.count("</script")
    shown = data_of(awkward)["operators"][0][0]
    assert shown == "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    awkward.encode()


def test_all_files_of_the_page_are_in_the_wheel() -> None:
    settings = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["iosched.cli.pictures"]
    folder = TOP / settings["package-dir"]["iosched.cli.pictures"]
    found = [path.relative_to(folder).as_posix() for path in (folder / "page").iterdir()]
    assert len(found) > 5
    assert all(any(fnmatch(path, pattern) for pattern in patterns) for path in found)


def test_stages_have_known_values_and_the_page_says_why_others_are_unknown() -> None:
    first, second = data_of(page(document()))["blocks"][0]["stages"][:2]
    assert (first["us"], first["predicted_us"], first["measured_us"]) == (100.0, 120.0, 100.0)
    assert (second["us"], second["is_one"], second["busy"]) == (None, True, None)
    unknown = data_of(page(document()))["unknown"]
    assert set(unknown) == {"peak", "measured", "busy"}
    assert "--model" in unknown["peak"]
    assert data_of(page(document(), KnownStages(why="made elsewhere")))["unknown"]["busy"].endswith("made elsewhere")


def test_each_block_has_the_sequential_operators_for_comparison() -> None:
    before = data_of(page(document()))["blocks"][1]["before"]
    assert before == [[[6], None], [[7], None], [[8], 3.5]]


def test_a_thousand_operators_make_a_small_file() -> None:
    stages = tuple(
        Stage(Strategy.CONCURRENT, tuple((f"cell_{number}/branch_{k}/conv",) for k in range(4)), 10.0 + number)
        for number in range(250)
    )
    text = page(document(), schedule=Schedule((Block(0, stages),)))
    assert len(text) < 200_000
