"""Shell completion, without slow imports."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

VARIABLE = "_IOSCHED_COMPLETE"
"""Environment variable that requests completions."""

_ZOO = "zoo:"
_ATTACHED = ("auto", "cpu", "cuda")


def complete_file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Files, found by the shell."""
    del ctx, param
    return [CompletionItem(incomplete, type="file")]


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Files; also bundled networks if the word can become `zoo:NAME`."""
    if not incomplete or not (_ZOO.startswith(incomplete) or incomplete.startswith(_ZOO)):
        return complete_file(ctx, param, incomplete)
    from iosched.models.zoo import names

    files: list[str] = []
    with suppress(OSError):  # an unreadable folder has no completions
        files = sorted(path.name for path in Path().iterdir() if path.is_file())
    # Bash adds files itself only if there are no other completions.
    return _starting(incomplete, [*(f"{_ZOO}{name}" for name in names()), *files])


def complete_network(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Bundled networks."""
    from iosched.models.zoo import names

    del ctx, param
    return _starting(incomplete, names())


def complete_device(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Devices that run models."""
    del ctx, param
    return _starting(incomplete, _ATTACHED)


def complete_any_device(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Devices and GPUs that can be simulated; the last item of a comma-separated list."""
    from iosched.profiler.devices.gpus import gpu_keys

    del ctx
    before, comma, _ = incomplete.rpartition(",") if param.multiple else ("", "", "")
    return _starting(incomplete, [f"{before}{comma}{name}" for name in (*_ATTACHED, *gpu_keys())])


def _starting(incomplete: str, words: Iterable[str]) -> list[CompletionItem[str]]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


class _Bash(BashComplete):
    """Bash splits words at colons and equals signs; this joins them."""

    def complete(self) -> str:
        """Lines of completions, each without the part that bash has already split off."""
        words, at = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        given = words[at] if at < len(words) else ""
        args = joined([*words[1:at], given, ""] if given == "=" else [*words[1:at], given])
        finished = len(args[-1]) - (0 if given in (":", "=") else len(given))
        found = self.get_completions(args[:-1], args[-1])
        return "\n".join(f"{item.type},{str(item.value)[finished:]}" for item in found)


def joined(words: list[str]) -> list[str]:
    """Join words that bash split at colons, and drop `=` after an option. The last word may be empty."""
    found: list[str] = []
    for word in words:
        if word == "=" and found and found[-1].startswith("--"):
            continue
        if found and word and (word == ":" or found[-1].endswith(":")):
            found[-1] += word
        else:
            found.append(word)
    return found


class _Zsh(ZshComplete):
    """Zsh replaces a whole word, so completions start with `--option=`."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Completions with `--option=` prepended."""
        return with_option(incomplete, super().get_completions(args, incomplete))


class _Fish(FishComplete):
    """Like zsh; the script also keeps commas in completions."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Completions with `--option=` prepended."""
        return with_option(incomplete, super().get_completions(args, incomplete))


def with_option(incomplete: str, found: list[CompletionItem[str]]) -> list[CompletionItem[str]]:
    """Prepend `--option=` to completions; files are listed by this function instead of the shell."""
    option, equals, rest = incomplete.partition("=")
    if not option.startswith("--") or not equals:
        return found
    words = [str(item.value) for item in found if item.type == "plain"]
    if len(words) < len(found):
        words += _files(rest)
    return [CompletionItem(f"{option}={word}") for word in words]


def _files(incomplete: str) -> list[str]:
    folder, slash, name = incomplete.rpartition("/")
    before = f"{folder}{slash}"
    with suppress(OSError):
        paths = sorted(path for path in Path(before).iterdir() if path.name.startswith(name))
        return [f"{before}{path.name}{'/' if path.is_dir() else ''}" for path in paths]
    return []


def register_completions() -> None:
    """Register these classes for bash, zsh and fish."""
    add_completion_class(_Bash, "bash")
    add_completion_class(_Zsh, "zsh")
    add_completion_class(_Fish, "fish")
