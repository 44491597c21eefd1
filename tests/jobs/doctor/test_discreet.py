"""A report says neither whose it is nor what hosts there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from iosched.jobs.doctor.diagnosis import discreet_text, home


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ada/models/a.onnx", "~/models/a.onnx"),
        ("in /home/ada: no space", "in ~: no space"),
        ("/home/ada2/x", "/home/ada2/x"),
        ("/home/ada:/home/ada/b", "~:~/b"),
        ("get https://u:p@host.example:8080/simple, or not", "get https://..., or not"),
        ("ray://10.0.0.1:10001", "ray://..."),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_homes_and_hosts_are_left_out(text: str, expected: str) -> None:
    assert discreet_text(text, "/home/ada") == expected


def test_without_a_home_paths_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert home() == ""
    assert discreet_text("/data/x", home()) == "/data/x"
