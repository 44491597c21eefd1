"""Options that several commands share.

Each is a decorator. Its docstring gives the parameter of the command if that differs from the option's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TypedDict, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from iosched.cli.common.complete import complete_any_device, complete_device, complete_file, complete_model
from iosched.cli.common.log_file import open_log
from iosched.cli.common.output import destination
from iosched.cli.common.site_settings import SiteOption
from iosched.models.errors import UsageError
from iosched.scheduler.precision import DEFAULT_PRECISION, PRECISIONS
from iosched.scheduler.pruning import DEFAULT_PRUNING, NO_PRUNING, Pruning
from iosched.scheduler.strategies import LIMITED, SEARCH_NAMES

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]

INPUT_SHAPE = "NAME=1x3x224x224"
INPUT_FILE = "NAME=F.npy"

DEVICE_VARIABLE = "IOSCHED_DEVICE"
THREADS_VARIABLE = "IOSCHED_THREADS"
PROFILE_DB_VARIABLE = "IOSCHED_PROFILE_DB"  # as in profiler/store, which loads sqlite3
CLUSTER_VARIABLE = "IOSCHED_CLUSTER"
NO_CLUSTER = "none"


def parse_input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse NAME=1x3x224x224, split at the last '=' because tensor names may contain one.

    Raises:
        click.BadParameter: wrong form, or a size out of range.
    """
    name, equals, sizes_text = text.rpartition("=")
    sizes = sizes_text.lower().split("x")
    if not (equals and name and all(size.isdecimal() and size.isascii() for size in sizes)):
        raise click.BadParameter(f"{text!r} is not of the form {INPUT_SHAPE}.")
    if any(len(size) > 18 or int(size) == 0 for size in sizes):
        raise click.BadParameter(f"{text!r}: sizes must be at least 1 and fit into memory.")
    return name, tuple(map(int, sizes))


def parse_input_file(text: str) -> tuple[str, Path]:
    """Parse NAME=F.npy, split at the first '=' with an existing file after it, else at the first '='.

    Raises:
        click.BadParameter: wrong form.
    """
    splits = [index for index, char in enumerate(text) if char == "=" and 0 < index < len(text) - 1]
    if not splits:
        raise click.BadParameter(f"{text!r} is not of the form {INPUT_FILE}.")
    at = next((index for index in splits if Path(text[index + 1 :]).is_file()), splits[0])
    return text[:at], Path(text[at + 1 :])


def each(parse: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[T, ...]]:
    """Click callback that parses each value of a repeatable option."""
    return lambda ctx, param, values: tuple(map(parse, values))


def words_of(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Click callback: distinct words of a repeatable option with comma-separated values."""
    del ctx, param
    return tuple(dict.fromkeys(word.strip() for value in values for word in value.split(",") if word.strip()))


def gathered(name: str, build: Callable[..., object]) -> Callable[[F], F]:
    """Decorator that replaces several options by one value.

    Args:
        name: the command's parameter for the value.
        build: makes the value; its parameters name the options.
    """
    options = tuple(signature(build).parameters)

    def decorate(function: F) -> F:
        @wraps(function)
        def call(**values: object) -> object:
            value = build(**{option: values.pop(option) for option in options})
            return function(**values, **{name: value})

        return cast(F, call)

    return decorate


def _set_meta(key: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def callback(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            ctx.meta[f"iosched.{key}"] = True

    return callback


def verbosity_options(function: F) -> F:
    """`--debug`, `-q`, `-v` and `--log-file`, before or after the command's name."""
    function = click.option(
        "--log-file",
        expose_value=False,
        is_eager=True,
        callback=open_log,
        shell_complete=complete_file,
        metavar="F",
        help="Append a log to this file: the lines of '-v', every measured stage, and tracebacks.",
    )(function)
    for flags, key, text in (
        (("-v", "--verbose"), "verbose", "Print more on stderr."),
        (("-q", "--quiet"), "quiet", "Print data and errors only, no tables."),
        (("--debug",), "debug", "Show the traceback of an error."),
    ):
        option = click.option(
            *flags, is_flag=True, expose_value=False, is_eager=True, callback=_set_meta(key), help=text
        )
        function = option(function)
    return function


def model_argument(function: F) -> F:
    """The argument MODEL; see `source.read_model`."""
    return click.argument("model", metavar="MODEL", shell_complete=complete_model)(function)


@dataclass(frozen=True)
class Binding:
    """Values of dynamic dimensions: the batch size, and the shapes of inputs by name."""

    batch_size: int | None = None
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def binding_options(function: F) -> F:
    """`--batch-size` and `--input-shape` as `binding: Binding`."""
    size = batch_size_option(
        "Batch size of the model.\n\nIt sets the first dimension of every input where that is dynamic. If all inputs "
        "have the same fixed first dimension, it replaces that."
    )
    return size(input_shape_option(gathered("binding", Binding)(function)))


def input_shape_option(function: F) -> F:
    """`--input-shape` as `input_shapes`, shapes by input name."""
    return click.option(
        "--input-shape",
        "input_shapes",
        metavar=INPUT_SHAPE,
        multiple=True,
        callback=lambda ctx, param, texts: shapes_of(map(parse_input_shape, texts)),
        help="Shape of an input with dynamic dimensions. Repeat for several inputs.\n\nNAME may also be a dynamic "
        "dimension: sequence=128 sets its size in all inputs.",
    )(function)


def batch_size_option(text: str) -> Callable[[F], F]:
    """`--batch-size` with the help `text`."""
    return click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help=text)


def batch_sizes_option(*flags: str, text: str) -> Callable[[F], F]:
    """`--batch-sizes` as distinct numbers, with the help `text`."""
    return click.option(*flags, "batch_sizes", multiple=True, callback=_batch_sizes_of, metavar="N,…", help=text)


def _batch_sizes_of(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[int, ...]:
    words = words_of(ctx, param, values)
    for word in words:
        if not (word.isdecimal() and word.isascii() and len(word) < 10 and int(word) > 0):
            raise click.BadParameter(f"{word[:20]!r} is not a batch size: give positive integers, as in 1,4,16.")
    return tuple(dict.fromkeys(map(int, words)))


def device_options(function: F) -> F:
    """`--device` and `--threads` of commands that run the model."""
    return _device("'auto', 'cpu' or 'cuda[:N]'.", complete_device)(threads_option(function))


def any_device_options(function: F) -> F:
    """`--device` and `--threads` of commands that also accept simulated GPUs."""
    return _device(
        "'auto', 'cpu', 'cuda[:N]' or the name of a GPU, such as 'v100'.\n\n'iosched devices' lists the names. A named "
        "GPU that is not attached is simulated by an analytic model.",
        complete_any_device,
    )(threads_option(function))


def threads_option(function: F) -> F:
    """`--threads`."""
    return click.option(
        "--threads",
        cls=SiteOption,
        envvar=THREADS_VARIABLE,
        type=click.IntRange(min=1, max=1024),
        metavar="N",
        help="CPU threads. Default: one for each core within the CPU quota of this process.",
    )(function)


def _device(text: str, complete: Complete) -> Callable[[F], F]:
    return click.option(
        "--device",
        cls=SiteOption,
        envvar=DEVICE_VARIABLE,
        default="auto",
        show_default=True,
        shell_complete=complete,
        metavar="D",
        help=text,
    )


def devices_option(*, default: tuple[str, ...] | None, text: str) -> Callable[[F], F]:
    """`--device` as `devices`, for several; required if there is no default."""
    return click.option(
        "--device",
        "devices",
        cls=SiteOption,
        envvar=DEVICE_VARIABLE,
        multiple=True,
        required=default is None,
        default=default,
        show_default=None if default is None else ",".join(default),
        callback=words_of,
        shell_complete=complete_any_device,
        metavar="D,…",
        help=text,
    )


def pruning_options(function: F) -> F:
    """`-r`, `-s` and `--no-pruning` as `pruning: Pruning`.

    Raises:
        UsageError: `--no-pruning` together with `-r` or `-s`.
    """
    function = gathered("pruning", _pruning)(function)
    function = click.option("--no-pruning", is_flag=True, help="Search all schedules, without -r and -s (slow).")(
        function
    )
    function = _limit("-s", DEFAULT_PRUNING.s, "At most N groups in a stage.")(function)
    return _limit("-r", DEFAULT_PRUNING.r, "At most N operators in a group.")(function)


def _limit(flag: str, default: int | None, text: str) -> Callable[[F], F]:
    return click.option(flag, type=click.IntRange(min=1), default=default, show_default=True, metavar="N", help=text)


def precision_option(text: str, precisions: Sequence[str] = PRECISIONS) -> Callable[[F], F]:
    """`--precision` with the help `text`."""
    return click.option(
        "--precision", type=click.Choice(precisions), default=DEFAULT_PRECISION, show_default=True, help=text
    )


def strategy_option(*baselines: str) -> Callable[[F], F]:
    """`--strategy`: searched strategies, and `baselines`, which need no search."""
    more = f" {' and '.join(map(repr, baselines))} are baselines and search nothing." if baselines else ""
    return click.option(
        "--strategy",
        type=click.Choice((*SEARCH_NAMES, *baselines)),
        default="both",
        show_default=True,
        metavar="NAME",
        help=f"How stages run: {', '.join((*SEARCH_NAMES, *baselines))}.\n\n'concurrent' runs groups in parallel. "
        "'merge' stacks convolutions or products of one input into one. 'both' takes the faster for each stage. 'dos' "
        f"is 'both' with one operator in a group and any number of groups.{more}",
    )


def _pruning(r: int, s: int, no_pruning: bool) -> Pruning:
    if not no_pruning:
        return Pruning(r, s)
    if limits := flags_given("r", "s"):
        raise UsageError(f"--no-pruning and {limits[0]} contradict each other: leave one out")
    return NO_PRUNING


def refuse_pruning_with(strategy: str) -> None:
    """Refuse `-r`, `-s` and `--no-pruning` for a strategy with its own limits.

    Raises:
        UsageError: one of them is on the command line.
    """
    own = LIMITED.get(strategy)
    if own is not None and (options := flags_given("no_pruning", "r", "s")):
        limits = {"r": own.r, "s": own.s}.items()
        said = " and ".join(f"no limit on {name}" if most is None else f"{name}={most}" for name, most in limits)
        raise UsageError(f"--strategy {strategy} implies {said}: leave {options[0]} out, or use --strategy both")


def flags_given(*names: str) -> list[str]:
    """Flags of the options with these parameter names that are on the command line."""
    ctx = click.get_current_context()
    flags = {param.name: param.opts[0] for param in ctx.command.params}
    return [flags[name] for name in names if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]


def budget_option(text: str) -> Callable[[F], F]:
    """`--budget` in seconds, with the help `text`."""
    return click.option("--budget", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help=text)


class SearchOptions(TypedDict):
    """Settings that all searches share, as keyword arguments."""

    threads: int | None
    gap_percent: float | None
    resume: bool
    profile_db: Path | None


def searched_options(function: F) -> F:
    """`--gap`, `--resume`, `--profile-db` and `--threads` as `searched`."""
    return _gap(_resume(profile_db_option(gathered("searched", _searched)(function))))


def _searched(threads: int | None, gap: float | None, resume: bool, profile_db: Path | None) -> SearchOptions:
    return SearchOptions(threads=threads, gap_percent=gap, resume=resume, profile_db=profile_db)


def _gap(function: F) -> F:
    return click.option(
        "--gap",
        type=click.FloatRange(min=0, max=100, max_open=True),
        metavar="PERCENT",
        help="End a block's search once PERCENT is the most that is left to gain.\n\nFor measured latencies, "
        "predictions decide that: the default is 2, and 0 measures all stages that can matter. For a simulated GPU, "
        "0 proves the result: the default is 0, and 1 in a block with more than 2,000 computed stages.",
    )(function)


def _resume(function: F) -> F:
    return click.option(
        "--resume/--no-resume",
        default=True,
        show_default=True,
        help="Use the measurements in the profile database.\n\n--no-resume measures again and replaces them. For a "
        "simulated GPU, it ignores imported measurements.",
    )(function)


def profile_db_option(function: F) -> F:
    """`--profile-db`; None is the default or the one in the environment."""
    return click.option(
        "--profile-db",
        cls=SiteOption,
        envvar=PROFILE_DB_VARIABLE,
        type=click.Path(path_type=Path, dir_okay=False),
        callback=_profile_db,
        metavar="F",
        help="Profile database to read and extend. Default: a file in your cache folder.",
    )(function)


def _profile_db(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    # `default_path` reads the variable itself, where ~ and :memory: are allowed too.
    return None if ctx.get_parameter_source(param.name or "") is ParameterSource.ENVIRONMENT else path


def cluster_option(text: str) -> Callable[[F], F]:
    """`--cluster`, parsed by `jobs.pool.ray.address.parse_cluster`, or None; its help starts with `text`."""
    return click.option(
        "--cluster",
        cls=SiteOption,
        envvar=CLUSTER_VARIABLE,
        callback=lambda ctx, param, value: None if value == NO_CLUSTER else value,
        metavar="C",
        help=f"{text} C is auto, local:N, HOST:PORT, ray://HOST:PORT or {NO_CLUSTER}.\n\n'auto' is the Ray cluster in "
        "RAY_ADDRESS, or the one of this machine. 'local:N' starts N workers on this machine. 'HOST:PORT' is a cluster "
        f"that this machine belongs to, 'ray://HOST:PORT' any other. '{NO_CLUSTER}' overrides a setting.",
    )


def output_option(*flags: str, metavar: str, text: str) -> Callable[[F], F]:
    """An output file as `Destination` or None, with the help `text`."""
    return click.option(*flags, callback=destination, shell_complete=complete_file, metavar=metavar, help=text)


def json_option(function: F) -> F:
    """`--json` as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")(function)


def shapes_of(pairs: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """Shapes by input name.

    Raises:
        UsageError: an input has two different shapes.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in pairs:
        if shapes.setdefault(name, shape) != shape:
            raise UsageError(f"--input-shape gives {name!r} two shapes: {shapes[name]} and {shape}")
    return shapes
