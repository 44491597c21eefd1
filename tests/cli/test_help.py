"""`--help` fits about one screen and shows the options that most people need; `--help-all` shows every option."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from iosched.cli.main import COMMANDS, cli
from iosched.cli.reference import commands

ROOT = Path(__file__).parents[2]
ALL = [
    [word for word in path.split()[1:] if word[0] != "["]
    for path, each, _ in commands(cli, click.Context(cli, info_name="iosched"))
    if each is not cli
]
COMMON = {"--help", "--help-all", "--quiet", "--verbose", "--debug", "--log-file"}
EVERYDAY = {
    "optimize": "--output --schedule --device --batch-size --input-shape --strategy -r -s --no-pruning --budget "
    "--profile-db --dry-run --json --strict --gap --units --cluster",
    "run": "--schedule --input --output --repeat --check --against --json",
    "bench": "--with --batch-size --plot --json --background-load --baseline",
    "inspect": "-r -s --no-pruning --json",
    "show": "--format",
    "matrix": "--device --batch-sizes --cluster",
    "rank": "--cluster",
    "explore": "--space --sampler --cluster",
    "diff": "--max-regression",
    "batch": "--output",
}


def help_of(words: list[str], flag: str = "--help") -> str:
    return CliRunner().invoke(cli, [*words, flag], prog_name="iosched", terminal_width=80).stdout


def shown_in(text: str) -> set[str]:
    """The options that a help text lists, each by its long name."""
    rows = re.findall(r"^  (?:-\w, )?(-[\w-]+)", text, re.MULTILINE)
    return set(rows)


def used_in(text: str, command: str) -> set[str]:
    """The options that calls of the command in a page or in examples use."""
    calls = re.findall(rf"(?:^ *|\| )iosched {command}\b((?:\\\n|[^\n|#])*)", text, re.MULTILINE)
    return set(re.findall(r"(?<=\s)(--[\w-]+|-[rs])(?=[\s=]|$)", " ".join(calls)))


@pytest.mark.parametrize("command", ["optimize", "run", "bench"])
def test_help_has_at_most_sixty_lines(command: str) -> None:
    assert len(help_of([command]).splitlines()) <= 60


def test_all_commands_together_show_at_most_95_options() -> None:
    assert sum(len(shown_in(help_of(words)) - COMMON) for words in ALL) <= 95


@pytest.mark.parametrize("command", EVERYDAY)
def test_everyday_options_are_shown(command: str) -> None:
    assert set(EVERYDAY[command].split()) <= shown_in(help_of([command]))


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_the_first_pages_and_of_the_examples_are_shown(command: str) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs" / name for name in ("README.md", "getting-started.md"))]
    text = "\n".join([help_of([command]), *(page.read_text() for page in pages)])
    shown = [shown_in(help_of(words)) for words in ALL if words[0] == command]
    assert used_in(text, command) <= COMMON.union(*shown)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_all_options_are_in_the_full_help_and_no_line_has_only_spaces(words: list[str]) -> None:
    context = click.Context(cli)
    command: click.Command | None = cli
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(context, word)
    assert command is not None
    full = help_of(words, "--help" if type(command).__name__ == "Group" else "--help-all")
    options = [set(param.opts) for param in command.params if isinstance(param, click.Option)]
    assert all(names & shown_in(full) for names in options)
    assert not re.search(r"^ +$", full, re.MULTILINE)


def test_details_are_only_in_the_full_help() -> None:
    short, full = help_of(["optimize"]), help_of(["optimize"], "--help-all")
    assert "OpenVINO is a" in full
    assert "OpenVINO" not in short
    assert "'-' is stdin" in full
    assert "'-' is stdin" not in short
