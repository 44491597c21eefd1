"""OpenVINO's library is found, or one line names the package to install; errors are one line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iosched.models.errors import DeviceError
from iosched.runtime.openvino import library


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    library.missing.cache_clear()
    yield
    library.missing.cache_clear()


@pytest.mark.parametrize(
    ("version", "words"),
    [(None, "is not installed"), ("2025.4.1", "2025.4.1 is too old"), ("nightly", "nightly is too old")],
)
def test_a_missing_library_is_named_with_the_command_to_install_it(
    version: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "installed_version", lambda: version)
    said = str(library.missing())
    assert words in said
    assert "run in a clone of iosched: pip install '.[openvino]'" in said
    assert not library.available()
    with pytest.raises(DeviceError, match="openvino"):
        library.library()


def test_a_library_that_does_not_load_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "installed_version", lambda: "2026.4.1")
    monkeypatch.setattr(library, "loaded", lambda: None)
    assert "does not load" in str(library.missing())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "Exception from src/core.cpp:97:\nCheck 'a == b' failed at src/x.cpp:3:\n\nNo such operator\nmore\n",
            "No such operator",
        ),
        (
            "Check 'false' failed at src/x.cpp:3:\nFrontEnd API failed with OpConversionFailure:\n"
            "Model wasn't fully converted.\nSummary:\n-- No conversion rule found for operations: NonZero\n",
            "No conversion rule found for operations: NonZero",
        ),
        ("Exception from src/x.cpp:9:", "Exception from src/x.cpp:9:"),
        ("", ""),
        ("x" * 1000, "x" * 297 + "..."),
    ],
)
def test_an_error_is_the_first_line_about_the_model(text: str, line: str) -> None:
    assert library.useful_line(text) == line
