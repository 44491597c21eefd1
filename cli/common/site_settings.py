"""Options that a site sets once, in the environment or in a file, in place of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from iosched.models.errors import DeviceError, UsageError

_KEY = "iosched.set_elsewhere"
_SAYS_WHERE = ("--device", "--cluster")


@dataclass(frozen=True)
class OutsideSetting:
    """An option that was not written on the command line, and yet has a value.

    Attributes:
        flags: the option's names on the command line.
        text: its value.
        place: who set it, as people call it.
    """

    flags: tuple[str, ...]
    text: str
    place: str

    def __str__(self) -> str:
        return f"({self.flags[0]} {self.text} comes from {self.place})"


class SiteOption(click.Option):
    """An option whose value, where the command line has none, comes from the environment, or else from a file.

    The variable is that in `envvar`; one that is empty counts as not set. `--help` names it. The key in files is its
    name without IOSCHED_: see `site_files`. An error of a value names the variable or the file.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "show_envvar": True})

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Finds the value, and writes down where it was set.

        Raises:
            UsageError: a file of settings is not understood.
        """
        value, source = super().consume_value(ctx, opts)
        if source is ParameterSource.ENVIRONMENT:
            self._write_down(ctx, self.resolve_envvar_value(ctx) or "", f"{self.envvar}")
        elif source is ParameterSource.DEFAULT and not ctx.resilient_parsing:
            found = setting(f"{self.envvar}".removeprefix("IOSCHED_").lower().replace("_", "-"))
            if found is not None:
                self._write_down(ctx, str(found[0]), str(found[1]))
                return (found[0],) if self.multiple else found[0], ParameterSource.DEFAULT_MAP
        return value, source

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """What an error calls the option: with the variable where that is at fault, or could mend it."""
        known = None if ctx is None else outside_settings(ctx).get(self.opts[0])
        if known is not None:
            return f"'{known.flags[0]}' (from {known.place})"
        hint = super().get_error_hint(ctx)
        written = ctx is not None and ctx.get_parameter_source(self.name or "") is ParameterSource.COMMANDLINE
        return hint.partition(" (")[0] if written else hint

    def _write_down(self, ctx: click.Context, text: str, place: str) -> None:
        ctx.meta[_KEY] = {**outside_settings(ctx), self.opts[0]: OutsideSetting(tuple(self.opts), text, place)}


def outside_settings(ctx: click.Context) -> Mapping[str, OutsideSetting]:
    """The options of the command that were set elsewhere than on the command line, by their first names."""
    found: Mapping[str, OutsideSetting] = ctx.meta.get(_KEY, {})
    return found


def related_settings(error: Exception, ctx: click.Context) -> list[str]:
    """Which settings that nobody sees on the command line an error may come from, a line for each."""
    if not isinstance(error, UsageError | DeviceError):
        return []
    text = str(error)
    return [
        str(setting)
        for flag, setting in outside_settings(ctx).items()
        if (isinstance(error, DeviceError) and flag in _SAYS_WHERE)
        or any(_has_word(text, word) for word in (*setting.flags, setting.text))
    ]


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


IN_FOLDERS = ("iosched.toml", "pyproject.toml")
KEYS: Mapping[str, type] = {"device": str, "threads": int, "profile-db": str, "cluster": str}
ANYWHERE = ("device", "threads")
"""Keys that a file in a working folder may have; the others stand in the user's own file alone."""

_KINDS = {str: "a quoted string", int: "an integer"}
_MAX_NBYTES = 2**20


@dataclass(frozen=True)
class SiteFile:
    """What one file sets.

    Attributes:
        path: the file.
        values: by key, of the types in `KEYS`; relative paths are those of the file's folder already.
    """

    path: Path
    values: Mapping[str, str | int]


def user_file() -> Path:
    """Where a user's own settings stand, if there are any."""
    from platformdirs import user_config_dir

    return Path(user_config_dir("iosched", appauthor=False)) / "config.toml"


def setting(key: str) -> tuple[str | int, Path] | None:
    """What files set a key to, and which file; None where none does.

    The nearest file of the working folder and its parents comes before the user's own.

    Raises:
        UsageError: a file that counts is no TOML, has a key that there is not or that it may not have, or a wrong type.
    """
    for found in (nearest(), _own()):
        if found is not None and key in found.values:
            return found.values[key], found.path
    return None


def nearest() -> SiteFile | None:
    """The settings of the working folder or of the nearest of its parents that has any.

    Raises:
        UsageError: as `setting`.
    """
    return next(_in_folders(), None)


def candidates() -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Where a file may stand that counts, the nearest folder first and the user's own at last, and its keys."""
    yield from ((path, ANYWHERE) for path in _in_reach())
    yield user_file(), tuple(KEYS)


def read_site_file(path: Path, allowed: tuple[str, ...]) -> SiteFile | None:
    """What a file sets, of the keys that it may; None if there is no such file, or if it has no settings.

    Raises:
        UsageError: as `setting`.
    """
    table = _table(path)
    return None if table is None else _checked(path, table, allowed)


def _in_reach() -> Iterator[Path]:
    try:
        here = Path.cwd()
    except OSError:  # the folder was removed
        return
    yield from (folder / name for folder in (here, *here.parents) for name in IN_FOLDERS)


def _in_folders() -> Iterator[SiteFile]:
    for path in _in_reach():
        found = read_site_file(path, ANYWHERE)
        if found is not None:
            yield found


def _own() -> SiteFile | None:
    return read_site_file(user_file(), tuple(KEYS))


def _table(path: Path) -> Mapping[str, Any] | None:
    """The table of settings in a file; None if there is no such file, or no such table in `pyproject.toml`."""
    if not _is_file(path):
        return None
    is_project = path.name == "pyproject.toml"
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_NBYTES + 1)
    except OSError as error:
        if is_project:
            return None
        raise UsageError(f"{path}: {error.strerror}: make it readable, or move it away") from None
    if is_project and b"iosched" not in data:
        return None
    parsed = _parsed(path, data)
    if not is_project:
        return parsed
    tools = parsed.get("tool")
    table = tools.get("iosched") if isinstance(tools, dict) else None
    if table is None or isinstance(table, dict):
        return table
    raise UsageError(f"{path}: tool.iosched is not a table: write [tool.iosched] with the settings below it")


def _is_file(path: Path) -> bool:
    """Whether there is such a file, as far as can be seen; a named pipe or a device is none, which would not end."""
    try:
        return path.is_file()
    except PermissionError:  # a folder on the way may not be searched, as root's home by another user of a container
        return False


def _parsed(path: Path, data: bytes) -> dict[str, Any]:
    import tomllib

    if len(data) > _MAX_NBYTES:
        raise UsageError(f"{path} is larger than {_MAX_NBYTES:,} bytes, too large for a settings file: move it away")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UsageError(f"{path} is not valid TOML: {why}: fix it, or move it away") from None


def _checked(path: Path, table: Mapping[str, Any], allowed: tuple[str, ...]) -> SiteFile:
    for key, value in table.items():
        kind = KEYS.get(key)
        if kind is None:
            close = get_close_matches(key, allowed, n=1)
            hint = f"did you mean {close[0]}?" if close else f"remove it; the settings are {', '.join(allowed)}"
            raise UsageError(f"{path}: unknown setting {key!r}: {hint}")
        if key not in allowed:
            raise UsageError(
                f"{path}: {key} is not read from a file in a working folder, because anyone could have put it there\n"
                f"Set it in {user_file()}, with IOSCHED_{key.upper().replace('-', '_')}, or with --{key}"
            )
        if type(value) is not kind or value == "":
            raise UsageError(f"{path}: {key} must be {_KINDS[kind]}, not {value!r:.60}")
    return SiteFile(path, {key: _resolved(path, key, value) for key, value in table.items()})


def _resolved(path: Path, key: str, value: str | int) -> str | int:
    if key != "profile-db" or value == ":memory:":
        return value
    try:
        return str(path.parent / Path(str(value)).expanduser())
    except RuntimeError:
        raise UsageError(f"{path}: {key}: {value!r} has no home folder: write the full path") from None
