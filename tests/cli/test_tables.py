"""Tables on terminals of any width: nothing is cut off, and colour is for terminals that want it."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from terminals import WIDTHS, Terminal, assert_nothing_is_lost, on_terminal

from iosched.cli.show import has_colours
from iosched.cli.tables import print_columns, print_pairs

HEADERS = ("network", "before", "after", "ratio with its interval")
ROWS = (
    ("inception_v3", "23.844 ms", "19.001 ms", "1.255x (1.240 to 1.271)"),
    ("a/very/long/folder/with/a/model/of/a/long/name.onnx", "0.5 µs", "", "no difference"),
    ("模型", "12,345.6 ms", "not known", "[bold]\x1b"),
)
PAIRS = (
    ("search", "best found, 22.3% from the best by bounds, which are estimates"),
    ("a name that is rather longer than names of values are", "9.893 ms"),
    ("file", "/a/path/without/any/blank/that/is/longer/than/a/narrow/terminal/is/wide.onnx"),
)


def columns(terminal: io.StringIO, patch: pytest.MonkeyPatch, headers: Sequence[str] = HEADERS) -> None:
    patch.setattr("sys.stdout", terminal)
    print_columns(headers, [row[: len(headers)] for row in ROWS], title="networks on a device of some name")


def pairs(terminal: io.StringIO, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sys.stdout", terminal)
    print_pairs("what was found", PAIRS, to_stderr=False)


@pytest.mark.parametrize("width", WIDTHS)
def test_columns_lose_nothing(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = on_terminal(lambda terminal: columns(terminal, monkeypatch), width, monkeypatch, "dumb")
    assert_nothing_is_lost(text, [cell for row in (HEADERS, *ROWS) for cell in row], width)


@pytest.mark.parametrize("width", WIDTHS)
def test_pairs_lose_nothing(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = on_terminal(lambda terminal: pairs(terminal, monkeypatch), width, monkeypatch, "dumb")
    assert_nothing_is_lost(text, [cell for row in PAIRS for cell in row], width)


def test_a_row_becomes_a_list_where_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    text = on_terminal(lambda terminal: columns(terminal, monkeypatch), 44, monkeypatch, "dumb")
    assert text.splitlines()[:5] == [
        "networks on a device of some name",
        "network inception_v3",
        "  before",
        "    23.844 ms",
        "  after",
    ]


def test_the_widest_column_is_wrapped_between_words_where_that_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def table(terminal: Terminal) -> None:
        monkeypatch.setattr("sys.stdout", terminal)
        print_columns(["stage", "what could be added"], [["12", "16 more channels of an operator, and a branch"]])

    assert on_terminal(table, 32, monkeypatch, "dumb").splitlines() == [
        "stage  what could be added",
        "12     16 more channels of an",
        "       operator, and a branch",
    ]


def test_without_a_terminal_a_row_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    pipe = io.StringIO()
    columns(pipe, monkeypatch)
    pairs(pipe, monkeypatch)
    assert len(pipe.getvalue().splitlines()) == 1 + 1 + len(ROWS) + 1 + len(PAIRS)
    assert "\x1b" not in pipe.getvalue()


def test_only_a_terminal_that_knows_them_gets_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1m" in on_terminal(lambda terminal: pairs(terminal, monkeypatch), 80, monkeypatch, "xterm-256color")
    assert "\x1b" not in on_terminal(lambda terminal: pairs(terminal, monkeypatch), 80, monkeypatch, "dumb")


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"TERM": "xterm"}, True),
        ({}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_colours_are_left_out_where_the_environment_says_so(environment: dict[str, str], wanted: bool) -> None:
    assert has_colours(environment) is wanted
