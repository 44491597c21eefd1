"""Text is wrapped between words and keeps its indent on terminals, and is unchanged anywhere else."""

from __future__ import annotations

import io

import pytest
from terminals import Terminal

from iosched.cli.common.output import fitted, say, width_of
from iosched.cli.show import wrapped

PICTURE = """\
net on a device with a long name
block 0: 5 operators in 1 stage, 2.40 ms
    1   100.0 µs        ┬─ Conv 3×3 first/operator → Relu second/operator
                        └─ MaxPool third/operator → Conv 1×1 fourth
    2    90.0 µs        ── Concat all
"""  # noqa: RUF001


def test_lines_are_wrapped_between_words_and_keep_their_indent() -> None:
    text = "remark: a sentence of several words\n  and another one that is indented"
    assert fitted(text, 20).split("\n") == [
        "remark: a sentence",
        "of several words",
        "  and another one",
        "  that is indented",
    ]
    assert fitted(text, None) == text


def test_a_path_stays_in_one_piece() -> None:
    path = "/a/path/longer-than-the/terminal-is-wide.onnx"
    assert fitted(f"Wrote {path} again.", 20) == f"Wrote\n{path}\nagain."


@pytest.mark.parametrize(("columns", "width"), [("63", 63), ("0", 80), ("-4", 80), ("many", 80), ("9" * 99, 80)])
def test_the_environment_sets_the_width(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert width_of(Terminal()) == width
    assert width_of(io.StringIO()) is None


def test_a_sentence_fits_a_terminal_and_is_one_line_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    for stream, lines in ((Terminal(), 2), (io.StringIO(), 1)):
        monkeypatch.setattr("sys.stdout", stream)
        say("All 12 operators of this schedule run alike.\x1b")
        assert len(stream.getvalue().splitlines()) == lines
        assert "\x1b" not in stream.getvalue()


def test_chains_continue_below_their_first_operator() -> None:
    assert wrapped(PICTURE, 60).splitlines()[2:] == [
        "    1   100.0 µs        ┬─ Conv 3×3 first/operator → Relu",  # noqa: RUF001
        "                        │    second/operator",
        "                        └─ MaxPool third/operator → Conv 1×1",  # noqa: RUF001
        "                             fourth",
        "    2    90.0 µs        ── Concat all",
    ]


def test_on_a_very_narrow_terminal_groups_are_below_the_numbers_of_their_stage() -> None:
    assert wrapped(PICTURE, 40).splitlines()[1:] == [
        "block 0: 5 operators in 1 stage, 2.40 ms",
        "    1   100.0 µs",
        "      ┬─ Conv 3×3 first/operator → Relu",  # noqa: RUF001
        "      │    second/operator",
        "      └─ MaxPool third/operator → Conv",
        "           1×1 fourth",  # noqa: RUF001
        "    2    90.0 µs",
        "      ── Concat all",
    ]


@pytest.mark.parametrize("width", [None, 80, 200])
def test_text_that_fits_is_unchanged(width: int | None) -> None:
    assert wrapped(PICTURE, width) == PICTURE
