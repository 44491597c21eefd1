"""The page of a schedule in a real browser: search, zoom, keys, themes, printing, and that it loads nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pages import AWKWARD, document, page

from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--hide-scrollbars", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--remote-debugging-pipe",
)
_TIMEOUT_S = 60


@dataclass(eq=False)
class Page:
    """One tab of the browser.

    Attributes:
        complaints: warnings and errors on its console, and uncaught exceptions.
        asked_for: the addresses that it requested.
    """

    reads: int
    writes: int
    session: str = ""
    complaints: list[str] = field(default_factory=list)
    asked_for: list[str] = field(default_factory=list)
    _calls: int = 0
    _loads: int = 0
    _rest: bytes = b""

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Sends a command to the browser; returns its answer."""
        self._calls += 1
        message: dict[str, object] = {"id": self._calls, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writes, json.dumps(message).encode() + b"\0")
        while (found := self._next()).get("id") != self._calls:
            pass
        assert "error" not in found, found
        result: dict[str, Any] = found["result"]
        return result

    def open(self, address: str) -> None:
        """Goes to an address, and waits until it is loaded."""
        self.complaints.clear()
        self.asked_for.clear()
        loads = self._loads
        self.call("Page.navigate", url=address)
        while self._loads == loads:
            self._next()

    def run(self, script: str) -> Any:
        """The value of an expression in the page, as JSON has it."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Presses a key as a person does."""
        text = key if len(key) == 1 else {"Enter": "\r", "Tab": ""}.get(key, "")
        code = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        both = {"key": key, "modifiers": 8 * shift, "windowsVirtualKeyCode": code.get(key, 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown", **both, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **both)

    def type(self, text: str) -> None:
        """Types into the focused element."""
        for letter in text:
            self.press(letter)

    def size(self, width: int, height: int) -> None:
        """Gives the page another size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, media: str = "", **features: str) -> None:
        """Emulates a medium, such as "print", and its features, such as `prefers_color_scheme="dark"`."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=media, features=wanted)

    def _next(self) -> Mapping[str, Any]:
        deadline = time.monotonic() + _TIMEOUT_S
        while b"\0" not in self._rest:
            assert time.monotonic() < deadline, "the browser does not answer"
            part = os.read(self.reads, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loads += 1
        elif method == "Network.requestWillBeSent":
            self.asked_for.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method in ("Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(params))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A page of a new browser with its user data in `folder`; both are closed with the context."""
    assert PROGRAM is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$0" "$@"'
    process = subprocess.Popen(
        ["bash", "-c", command, PROGRAM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        page = Page(ours_in, ours_out)
        target = page.call("Target.createTarget", url="about:blank")["targetId"]
        page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        yield page
    finally:
        process.terminate()
        process.wait(timeout=_TIMEOUT_S)
        os.close(ours_in)
        os.close(ours_out)


pytestmark = pytest.mark.skipif(PROGRAM is None, reason="neither chromium nor google-chrome is installed")

Shows = Callable[..., Page]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A browser for all tests of this module."""
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def shows(tab: Page, tmp_path: Path) -> Iterator[Shows]:
    """Opens the page of a schedule; asserts at the end that it had no errors and requested only itself."""
    file = tmp_path / "page.html"

    def show(shown: ScheduleDocument | None = None, width: int = 1400, schedule: Schedule | None = None) -> Page:
        file.write_text(page(shown or document(), schedule=schedule), encoding="utf-8")
        tab.media()
        tab.size(width, 900)
        tab.open(file.as_uri())
        assert tab.run("document.documentElement.dataset.ready") == "yes", tab.complaints
        return tab

    yield show
    assert tab.complaints == []
    assert tab.asked_for == [file.as_uri()]


def boxes(tab: Page, more: str = "") -> list[str]:
    """The names of the first operators of the boxes in the picture that `more` selects."""
    found: list[str] = tab.run(
        f"[...document.querySelectorAll('#picture .stage .box{more}')].map(e => JSON.parse(document"
        ".getElementById('data').textContent).operators[e.dataset.operator][0])"
    )
    return found


def details(tab: Page) -> str:
    found: str = tab.run("document.getElementById('details').innerText")
    return found


def places(tab: Page) -> dict[str, tuple[float, float, float, float]]:
    """Left, top, width and height of each box by its name."""
    rects = tab.run(
        "[...document.querySelectorAll('#picture .stage .box > rect')].map(e => e.getBoundingClientRect())"
        ".map(r => [r.left, r.top, r.width, r.height])"
    )
    return dict(zip(boxes(tab), map(tuple, rects), strict=True))


def test_stages_are_columns_groups_are_rows_and_merged_operators_are_one_box(shows: Shows) -> None:
    tab = shows()
    found = places(tab)
    assert list(found) == ["a", "b", "c", "d", "f", "g", "h", "i"], "e is merged into d"
    (ax, ay, aw, _), (bx, by, _, _), (cx, cy, _, ch), (dx, _, _, dh) = (found[name] for name in "abcd")
    assert ay == by < cy
    assert ax + aw <= bx < dx
    assert abs(ax - cx) < 0.01
    assert dh > 2 * ch
    assert found["f"][2] > 5 * found["c"][2], "widths follow latencies"
    assert "unknown" in tab.run("document.querySelectorAll('.stage')[1].getAttribute('class')")


def test_the_search_matches_all_words_and_enter_goes_to_the_next_hit(shows: Shows) -> None:
    tab = shows()
    tab.press("/")
    tab.type("conv 1")
    assert tab.run("document.getElementById('hits').textContent") == "2 of 9"
    assert boxes(tab, ".hit") == ["d"]
    assert "2 operators as one" in details(tab)
    assert tab.run("document.querySelectorAll('.strip .hit').length") == 4
    tab.press("Enter")
    assert tab.run("document.getElementById('hits').textContent") == "2 of 2"
    tab.press("Escape")
    assert boxes(tab, ".dim") == []


def test_it_zooms_by_keys_and_by_buttons(shows: Shows) -> None:
    tab = shows()
    width = places(tab)["f"][2]
    tab.press("+")
    tab.run("document.getElementById('in').click()")
    assert places(tab)["f"][2] == pytest.approx(2 * width, rel=0.05)
    assert tab.run("document.getElementById('zoom').textContent") == "200%"
    tab.press("0")
    tab.press("-")
    assert places(tab)["f"][2] == pytest.approx(0.7 * width, rel=0.05)


def test_keys_move_between_operators_and_show_their_details(shows: Shows) -> None:
    tab = shows()
    for _ in range(30):
        tab.press("Tab")
        if tab.run("document.activeElement.closest('#picture g.box') !== null"):
            break
    focused = "document.activeElement.getAttribute('aria-label')"
    assert tab.run(focused).startswith("Conv 3×3 a; block 0, stage 1 of 3, group 1 of 2")  # noqa: RUF001
    assert tab.run("getComputedStyle(document.activeElement.firstChild).strokeWidth") == "3.5px"
    assert "120.0 µs" in details(tab)
    names = []
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "End", "Home"):
        tab.press(key)
        names.append(tab.run("document.activeElement.dataset.operator"))
    assert list(map(int, names)) == [1, 2, 3, 5, 6, 5, 8, 0]
    tab.press("Enter")
    tab.run("document.querySelector('#picture').dispatchEvent(new PointerEvent('pointerleave'))")
    assert details(tab).startswith("a\n")
    tab.press("Escape")
    assert "Point at an operator" in details(tab)


def test_sources_and_readers_of_an_operator_are_marked(shows: Shows) -> None:
    tab = shows()
    tab.run(
        "document.querySelector('#picture .box[data-operator=\"1\"]').dispatchEvent("
        "new PointerEvent('pointerover', {bubbles: true}))"
    )
    assert boxes(tab, ".is-present") == ["b"]
    assert boxes(tab, ".is-source") == ["a"]
    assert boxes(tab, ".is-reader") == ["d"]
    assert tab.run("document.querySelectorAll('.edges path').length") == 3


def test_blocks_fold_and_a_search_unfolds_them(shows: Shows) -> None:
    tab = shows()
    tab.press("f")
    assert boxes(tab) == []
    assert tab.run("document.querySelector('.head').getAttribute('aria-expanded')") == "false"
    tab.press("/")
    tab.type("g")
    assert boxes(tab) == ["g", "h", "i"]


def test_tab_reaches_one_box_after_folding_and_redrawing(shows: Shows) -> None:
    tab = shows()

    def reached() -> list[str]:
        assert tab.run("document.querySelectorAll('#picture .box[tabindex=\"0\"]').length") <= 1
        return boxes(tab, '[tabindex="0"]')

    heads = "document.querySelectorAll('.head')"
    assert reached() == ["a"]
    tab.press("b")
    assert reached() == ["a"]
    tab.run(f"{heads}[0].click()")
    (other,) = reached()
    assert other != "a"
    tab.run(f"{heads}[0].click()")
    assert reached() == [other]
    tab.press("f")
    assert reached() == []
    tab.press("f")
    assert reached() == ["a"]
    tab.press("+")
    assert reached() == ["a"]


def test_the_theme_follows_the_system_and_the_switch(shows: Shows) -> None:
    tab = shows()
    ground = "getComputedStyle(document.body).backgroundColor"
    light = tab.run(ground)
    tab.media(prefers_color_scheme="dark")
    dark = tab.run(ground)
    assert light == "rgb(255, 255, 255)" != dark
    tab.press("d")
    assert tab.run(ground) == light
    tab.press("d")
    tab.media(prefers_color_scheme="light")
    assert tab.run(ground) == dark
    tab.media("print")
    assert tab.run(ground) == light


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_the_page_fits_its_window(shows: Shows, width: int) -> None:
    tab = shows(width=width)
    tab.press("+")
    tab.press("+")
    assert tab.run("document.documentElement.scrollWidth") <= width
    right = "Math.max(...[...document.querySelectorAll('.block')].map(e => e.getBoundingClientRect().right))"
    assert tab.run(right) <= width


@pytest.mark.parametrize("name", AWKWARD)
def test_names_do_no_harm_wherever_they_are_shown(shows: Shows, name: str) -> None:
    tab = shows(document(name))
    tab.run("document.querySelector('#picture .box').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    tab.run("document.getElementById('table').open = true")
    assert tab.run("window.harm === undefined")
    assert tab.run("document.querySelectorAll('img, #details script').length") == 0
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    assert tab.run("document.querySelector('#details h2').textContent") == shown


def test_printing_unfolds_all_blocks_and_fits_the_paper(shows: Shows) -> None:
    tab = shows()
    tab.press("f")
    assert len(tab.call("Page.printToPDF", landscape=True)["data"]) > 10_000
    tab.run("dispatchEvent(new Event('beforeprint'))")
    assert len(boxes(tab)) == 8
    assert (
        tab.run("Math.max(...[...document.querySelectorAll('.block svg')].map(e => e.viewBox.baseVal.width))") <= 1003
    )
    tab.run("dispatchEvent(new Event('afterprint'))")
    assert boxes(tab) == []


def test_a_thousand_operators_are_drawn_and_zoomed(shows: Shows) -> None:
    blocks = tuple(
        Block(
            number,
            tuple(
                Stage(Strategy.CONCURRENT, tuple((f"{number}/{k}/{n}",) for n in range(5)), 10.0 + k) for k in range(10)
            ),
        )
        for number in range(20)
    )
    tab = shows(schedule=Schedule(blocks))
    assert len(boxes(tab)) == 1000
    tab.press("+")
    tab.press("/")
    tab.type("19/9/4")
    assert boxes(tab, ".hit") == ["19/9/4"]
    assert tab.run("document.querySelector('.hit[role=button]').getBoundingClientRect().top") < 900


def test_a_schedule_without_any_latency_is_drawn_and_says_so(shows: Shows) -> None:
    tab = shows(schedule=Schedule((Block(0, (Stage(Strategy.CONCURRENT, (("a",), ("c",))),)),)))
    assert boxes(tab) == ["a", "c"]
    assert "latency unknown" in tab.run("document.querySelector('.head').innerText")


def test_an_empty_schedule_has_a_page_too(shows: Shows) -> None:
    assert boxes(shows(schedule=Schedule(()))) == []
