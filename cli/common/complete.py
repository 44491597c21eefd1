"""What a shell is offered for an unfinished word; nothing is imported for it that takes long."""

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
"""The environment variable by which a shell's script asks for completions."""

_ZOO = "zoo:"
_ATTACHED = ("auto", "cpu", "cuda")


def complete_file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """The files that the shell finds."""
    del ctx, param
    return [CompletionItem(incomplete, type="file")]


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Files; or the bundled networks and the files beside them, as soon as a word looks like `zoo:NAME`."""
    if not incomplete or not (_ZOO.startswith(incomplete) or incomplete.startswith(_ZOO)):
        return complete_file(ctx, param, incomplete)
    from iosched.models.zoo import names

    files: list[str] = []
    with suppress(OSError):  # a folder that cannot be read has no files to offer
        files = sorted(path.name for path in Path().iterdir() if path.is_file())
    # Bash looks for files itself only where nothing else is offered.
    return _starting(incomplete, [*(f"{_ZOO}{name}" for name in names()), *files])


def complete_network(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """The bundled networks."""
    from iosched.models.zoo import names

    del ctx, param
    return _starting(incomplete, names())


def complete_device(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """The devices that a model can run on."""
    del ctx, param
    return _starting(incomplete, _ATTACHED)


def complete_any_device(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """These, and GPUs that can be planned for; behind the last comma where several are taken."""
    from iosched.profiler.devices.gpus import gpu_keys

    del ctx
    before, comma, _ = incomplete.rpartition(",") if param.multiple else ("", "", "")
    return _starting(incomplete, [f"{before}{comma}{name}" for name in (*_ATTACHED, *gpu_keys())])


def _starting(incomplete: str, words: Iterable[str]) -> list[CompletionItem[str]]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


class _Bash(BashComplete):
    """Click's completion in bash, for words with colons and equals signs, at which bash divides them."""

    def complete(self) -> str:
        """Lines of completions; of each what comes behind what bash takes for finished."""
        words, at = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        given = words[at] if at < len(words) else ""
        args = joined([*words[1:at], given, ""] if given == "=" else [*words[1:at], given])
        finished = len(args[-1]) - (0 if given in (":", "=") else len(given))
        found = self.get_completions(args[:-1], args[-1])
        return "\n".join(f"{item.type},{str(item.value)[finished:]}" for item in found)


def joined(words: list[str]) -> list[str]:
    """Words as they were written, of those that bash has divided at colons, and without = behind an option.

    The last may be empty.
    """
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
    """Click's completion in zsh, which replaces a whole word: `--option=` has to stand before what is offered."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """What click offers, behind an equals sign with the option before it."""
        return with_option(incomplete, super().get_completions(args, incomplete))


class _Fish(FishComplete):
    """Click's completion in fish, likewise; and with a script that does not cut what is offered at a comma."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """What click offers, behind an equals sign with the option before it."""
        return with_option(incomplete, super().get_completions(args, incomplete))


def with_option(incomplete: str, found: list[CompletionItem[str]]) -> list[CompletionItem[str]]:
    """What was found for what stands behind `--option=`, with that before it; files are looked for here."""
    option, equals, rest = incomplete.partition("=")
    if not option.startswith("--") or not equals:
        return found
    words = [str(item.value) for item in found if item.type == "plain"]
    if len(words) < len(found):
        words += _files(rest)
    return [CompletionItem(f"{option}={word}") for word in words]


def _files(incomplete: str) -> list[str]:
    """Paths that begin so; folders end in a slash."""
    folder, slash, name = incomplete.rpartition("/")
    before = f"{folder}{slash}"
    with suppress(OSError):
        paths = sorted(path for path in Path(before).iterdir() if path.name.startswith(name))
        return [f"{before}{path.name}{'/' if path.is_dir() else ''}" for path in paths]
    return []


def register_completions() -> None:
    """Has completions in bash, zsh and fish made by this file."""
    add_completion_class(_Bash, "bash")
    add_completion_class(_Zsh, "zsh")
    add_completion_class(_Fish, "fish")
