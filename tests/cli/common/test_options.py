"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from iosched.cli.common.complete import VARIABLE
from iosched.cli.common.options import gathered, parse_input_file, parse_input_shape, shapes_of
from iosched.cli.main import cli
from iosched.models.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x=1x3x224x224", ("x", (1, 3, 224, 224))),
        ("x=7", ("x", (7,))),
        ("a=b:0=2X3", ("a=b:0", (2, 3))),
    ],
)
def test_input_shape_is_name_and_sizes(text: str, expected: tuple[str, tuple[int, ...]]) -> None:
    assert parse_input_shape(text) == expected


@pytest.mark.parametrize("text", ["", "x", "=1x2", "x=", "x=1x", "x=1xa", "x=-1", "x=1x0", "x=²", "x=1" + "0" * 30])
def test_a_malformed_input_shape_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_input_shape(text)


def test_one_input_has_one_shape() -> None:
    assert shapes_of([("x", (1,)), ("y", (2,)), ("x", (1,))]) == {"x": (1,), "y": (2,)}
    with pytest.raises(UsageError, match="two shapes"):
        shapes_of([("x", (1,)), ("x", (2,))])


def test_an_input_option_is_split_before_an_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.touch()
    assert parse_input_file(f"in=put={path}") == ("in=put", path)
    assert parse_input_file("x=no=such.npy") == ("x", Path("no=such.npy"))


@pytest.mark.parametrize("text", ["", "x", "=f.npy", "x="])
def test_a_malformed_input_file_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_input_file(text)


def test_advanced_options_are_only_in_the_full_help_but_are_completed(invoke) -> None:
    advanced = ("--exhaustive", "--barriers", "--layout", "--debug")
    short, full = invoke("optimize", "--help"), invoke("optimize", "--help-all")
    assert (short.exit_code, full.exit_code) == (0, 0)
    assert "--help-all" in short.stdout
    for option in advanced:
        assert option not in short.stdout
        assert f"\n  {option}" in full.stdout
        (offered,) = ShellComplete(cli, {}, "iosched", VARIABLE).get_completions(["optimize"], option)
        assert offered.value == option


def test_several_options_are_gathered_into_one_argument_of_a_command() -> None:
    def both(left: str, right: str) -> tuple[str, str]:
        return left, right

    def command(pair: tuple[str, str], other: int) -> tuple[tuple[str, str], int]:
        """Help."""
        return pair, other

    called = gathered("pair", both)(command)
    assert called(left="a", right="b", other=3) == (("a", "b"), 3)
    assert called.__doc__ == "Help."


@pytest.mark.parametrize("command", ["inspect", "optimize"])
@pytest.mark.parametrize("limit", ["-r", "-s"])
def test_no_pruning_contradicts_a_limit(invoke, complains, model: Path, command: str, limit: str) -> None:
    complains(invoke(command, model, "--no-pruning", limit, 3), 2, "contradict")


@pytest.mark.parametrize("words", [("optimize",), ("matrix", "--device", "v100")], ids=lambda words: words[0])
@pytest.mark.parametrize("limit", [("-r", "1"), ("-s", "8"), ("--no-pruning",)], ids=lambda limit: limit[0])
def test_dos_has_its_own_limits(invoke, complains, model: Path, words: tuple[str, ...], limit: tuple[str, ...]) -> None:
    command, *device = words
    complains(invoke(command, model, *device, "--strategy", "dos", *limit), 2, "--strategy dos implies r=1", limit[0])


@pytest.mark.parametrize("words", [("-r", "0"), ("--batch-size", "0"), ("--threads", "0"), ("--budget", "0")])
def test_numbers_out_of_range_are_refused(invoke, complains, model: Path, words: tuple[str, str]) -> None:
    complains(invoke("optimize", model, *words), 2, words[0])
