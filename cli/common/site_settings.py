"""Options set in the environment or in settings files instead of on the command line.

Files are `iosched.toml` or `[tool.iosched]` in `pyproject.toml` in the working folder or a parent, and the user's
`config.toml`. Anyone may have written the former, so they set only what can neither write nor send anything; see ADR
0031.
"""

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
    """An option with a value that is not from the command line.

    Attributes:
        flags: the option's names.
        text: its value.
        place: the variable or file that sets it.
    """

    flags: tuple[str, ...]
    text: str
    place: str

    def __str__(self) -> str:
        return f"({self.flags[0]} {self.text} comes from {self.place})"


class SiteOption(click.Option):
    """An option whose default is in the environment variable `envvar`, else in a settings file.

    An empty variable counts as unset. The key in files is the variable's name without IOSCHED_. Errors name the
    variable or the file.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "show_envvar": True})

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Find the value and record where it was set.

        Raises:
            UsageError: a settings file is invalid.
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
        """Name of the option in errors, with the variable or file that sets it."""
        known = None if ctx is None else outside_settings(ctx).get(self.opts[0])
        if known is not None:
            return f"'{known.flags[0]}' (from {known.place})"
        hint = super().get_error_hint(ctx)
        written = ctx is not None and ctx.get_parameter_source(self.name or "") is ParameterSource.COMMANDLINE
        return hint.partition(" (")[0] if written else hint

    def _write_down(self, ctx: click.Context, text: str, place: str) -> None:
        ctx.meta[_KEY] = {**outside_settings(ctx), self.opts[0]: OutsideSetting(tuple(self.opts), text, place)}


def outside_settings(ctx: click.Context) -> Mapping[str, OutsideSetting]:
    """Options of the command that are set outside the command line, by their first flags."""
    found: Mapping[str, OutsideSetting] = ctx.meta.get(_KEY, {})
    return found


def related_settings(error: Exception, ctx: click.Context) -> list[str]:
    """Lines on settings outside the command line that may have caused an error."""
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
"""Keys allowed in a file of a working folder; others only in the user's own file."""

_KINDS = {str: "a quoted string", int: "an integer"}
_MAX_NBYTES = 2**20


@dataclass(frozen=True)
class SiteFile:
    """The settings in one file.

    Attributes:
        path: the file.
        values: by key, of the types in `KEYS`; relative paths are resolved against the file's folder.
    """

    path: Path
    values: Mapping[str, str | int]


def user_file() -> Path:
    """Path of the user's own settings."""
    from platformdirs import user_config_dir

    return Path(user_config_dir("iosched", appauthor=False)) / "config.toml"


def setting(key: str) -> tuple[str | int, Path] | None:
    """Value of a key in settings files, and the file; None if unset.

    The nearest file of the working folder and its parents precedes the user's own.

    Raises:
        UsageError: a file is not TOML, or has an unknown or forbidden key or a wrong type.
    """
    for found in (nearest(), read_site_file(user_file(), tuple(KEYS))):
        if found is not None and key in found.values:
            return found.values[key], found.path
    return None


def nearest() -> SiteFile | None:
    """Settings of the working folder or its nearest parent that has any; raises like `setting`."""
    found = (read_site_file(path, ANYWHERE) for path in _in_reach())
    return next((each for each in found if each is not None), None)


def candidates() -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Paths of possible settings files, nearest first and the user's last, with the keys that each may set."""
    yield from ((path, ANYWHERE) for path in _in_reach())
    yield user_file(), tuple(KEYS)


def read_site_file(path: Path, allowed: tuple[str, ...]) -> SiteFile | None:
    """Settings in a file; None if it does not exist or has none. Raises like `setting`."""
    table = _table(path)
    return None if table is None else _checked(path, table, allowed)


def _in_reach() -> Iterator[Path]:
    try:
        here = Path.cwd()
    except OSError:  # the folder was removed
        return
    yield from (folder / name for folder in (here, *here.parents) for name in IN_FOLDERS)


def _table(path: Path) -> Mapping[str, Any] | None:
    """Settings table of a file; None if there is no file, or no such table in `pyproject.toml`."""
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
    """Whether it is a regular file; reading a named pipe or a device would not end."""
    try:
        return path.is_file()
    except PermissionError:  # a parent is not searchable, such as root's home in a container
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
