"""A real browser without a window, told what to do over two pipes in Chrome's DevTools protocol; no library needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--hide-scrollbars", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--remote-debugging-pipe",
)
_PATIENCE_S = 60


@dataclass(eq=False)
class Page:
    """One tab of the browser.

    Attributes:
        complaints: what its console said as warning or error, and exceptions that nobody caught.
        asked_for: the addresses of all that it wanted to load.
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
        """What the browser answers to a command."""
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
        """Types into what has the focus."""
        for letter in text:
            self.press(letter)

    def size(self, width: int, height: int) -> None:
        """Gives the page another size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, media: str = "", **features: str) -> None:
        """Has the page believe in a medium, as "print", and in features of it, as `prefers_color_scheme="dark"`."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=media, features=wanted)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Writes what is to be seen, or the whole page, as PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self) -> Mapping[str, Any]:
        deadline = time.monotonic() + _PATIENCE_S
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
    """A page of a new browser, which keeps what it keeps in `folder`; both end with the context."""
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
        process.wait(timeout=_PATIENCE_S)
        os.close(ours_in)
        os.close(ours_out)
