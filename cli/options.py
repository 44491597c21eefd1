"""Options that several commands share, each written once.

An option is a decorator of the command's function. Its docstring names the parameter that the function takes it as,
where that is not the option's own name.
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

from iosched.cli.complete import complete_device, complete_file, complete_model, complete_planned
from iosched.cli.log_file import open_log
from iosched.cli.output import destination
from iosched.cli.site_option import SiteOption
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
    """The name and the shape in NAME=1x3x224x224, split at the last '=' because tensor names may contain one.

    Raises:
        click.BadParameter: the text is not of that form, or a size is one that no dimension can have.
    """
    name, equals, sizes_text = text.rpartition("=")
    sizes = sizes_text.lower().split("x")
    if not (equals and name and all(size.isdecimal() and size.isascii() for size in sizes)):
        raise click.BadParameter(f"{text!r} is not of the form {INPUT_SHAPE}.")
    if any(len(size) > 18 or int(size) == 0 for size in sizes):
        raise click.BadParameter(f"{text!r}: every size must be at least 1, and one that memory can hold.")
    return name, tuple(map(int, sizes))


def parse_input_file(text: str) -> tuple[str, Path]:
    """The name and the path in NAME=F.npy, split at the first '=' that leaves the path of a file on its right.

    Where no such file exists, it is split at the first '=' of all: reading the file then says what is wrong.

    Raises:
        click.BadParameter: the text is not of that form.
    """
    splits = [index for index, char in enumerate(text) if char == "=" and 0 < index < len(text) - 1]
    if not splits:
        raise click.BadParameter(f"{text!r} is not of the form {INPUT_FILE}.")
    at = next((index for index in splits if Path(text[index + 1 :]).is_file()), splits[0])
    return text[:at], Path(text[at + 1 :])


def each(parse: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[T, ...]]:
    """A click callback that parses each value of a repeatable option."""
    return lambda ctx, param, values: tuple(map(parse, values))


def words_of(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """The different words of an option that may be repeated and whose values may be lists separated by commas."""
    del ctx, param
    return tuple(dict.fromkeys(word.strip() for value in values for word in value.split(",") if word.strip()))


def gathered(name: str, build: Callable[..., object]) -> Callable[[F], F]:
    """A decorator that hands a command one value in place of several options.

    Args:
        name: the parameter of the command that takes the value.
        build: makes the value; its parameters are called as the options that it takes, which the command then does not.
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
    """`--debug`, `-q`, `-v` and `--log-file`, which mean the same before and after the command's name."""
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
        (("-v", "--verbose"), "verbose", "Print more about the work on stderr."),
        (("-q", "--quiet"), "quiet", "Print data and errors only: no progress, tables or notes."),
        (("--debug",), "debug", "Show the traceback of an error."),
    ):
        option = click.option(
            *flags, is_flag=True, expose_value=False, is_eager=True, callback=_set_meta(key), help=text
        )
        function = option(function)
    return function


def model_argument(function: F) -> F:
    """The argument MODEL: a path, `-` for standard input, or `zoo:NAME`; see `source.read_model`."""
    return click.argument("model", metavar="MODEL", shell_complete=complete_model)(function)


@dataclass(frozen=True)
class Binding:
    """What the dynamic dimensions of a model are fixed to: the size of a batch, and the shapes of inputs by name."""

    batch_size: int | None = None
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def binding_options(function: F) -> F:
    """`--batch-size` and `--input-shape`, which the command takes together as `binding: Binding`."""
    size = batch_size_option(
        "Batch size of the model.\n\nIt sets the first dimension of every input where that is dynamic. If all inputs "
        "have the same fixed first dimension, it replaces that."
    )
    return size(input_shape_option(gathered("binding", Binding)(function)))


def input_shape_option(function: F) -> F:
    """`--input-shape`, which the command takes as `input_shapes`, a mapping from the names of inputs to shapes."""
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
    """`--batch-size`, for one size; `text` is its help."""
    return click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help=text)


def batch_sizes_option(*flags: str, text: str) -> Callable[[F], F]:
    """`--batch-sizes`, which the command takes as different numbers in the order given; `text` is its help."""
    return click.option(*flags, "batch_sizes", multiple=True, callback=_batch_sizes_of, metavar="N,…", help=text)


def _batch_sizes_of(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[int, ...]:
    words = words_of(ctx, param, values)
    for word in words:
        if not (word.isdecimal() and word.isascii() and len(word) < 10 and int(word) > 0):
            raise click.BadParameter(f"{word[:20]!r} is no batch size: give whole numbers from 1 on, as in 1,4,16.")
    return tuple(dict.fromkeys(map(int, words)))


def device_options(function: F) -> F:
    """`--device` and `--threads` of commands that run the model, on a device of this machine."""
    return _device("'auto', 'cpu' or 'cuda[:N]'.", complete_device)(threads_option(function))


def planning_device_options(function: F) -> F:
    """`--device` and `--threads` of commands that also take a simulated GPU."""
    return _device(
        "'auto', 'cpu', 'cuda[:N]' or the name of a GPU, such as 'v100'.\n\n'iosched devices' lists the names. A named "
        "GPU that is not attached is simulated by an analytic model.",
        complete_planned,
    )(threads_option(function))


def threads_option(function: F) -> F:
    """`--threads`, the cores to use on a CPU."""
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
    """`--device` of commands that take several, as `devices`; without a default, one has to be named."""
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
        shell_complete=complete_planned,
        metavar="D,…",
        help=text,
    )


def pruning_options(function: F) -> F:
    """`-r`, `-s` and `--no-pruning`, which the command takes together as `pruning: Pruning`.

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
    """`--precision`; `text` is its help."""
    return click.option(
        "--precision", type=click.Choice(precisions), default=DEFAULT_PRECISION, show_default=True, help=text
    )


def strategy_option(*baselines: str) -> Callable[[F], F]:
    """`--strategy`: the strategies that are searched, and the names in `baselines`, whose schedules are not."""
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
    if limits := given("r", "s"):
        raise UsageError(f"--no-pruning and {limits[0]} contradict each other: leave one out")
    return NO_PRUNING


def refuse_pruning_beside(strategy: str) -> None:
    """Refuses `-r`, `-s` and `--no-pruning` beside a strategy that has limits of its own.

    Raises:
        UsageError: one of them was written on the command line.
    """
    own = LIMITED.get(strategy)
    if own is not None and (options := given("no_pruning", "r", "s")):
        limits = {"r": own.r, "s": own.s}.items()
        said = " and ".join(f"no limit on {name}" if most is None else f"{name}={most}" for name, most in limits)
        raise UsageError(f"--strategy {strategy} is {said}: leave {options[0]} out, or use --strategy both")


def given(*names: str) -> list[str]:
    """Which of the options whose parameters are called `names` were written on the command line, as their flags."""
    ctx = click.get_current_context()
    flags = {param.name: param.opts[0] for param in ctx.command.params}
    return [flags[name] for name in names if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]


def budget_option(text: str) -> Callable[[F], F]:
    """`--budget`, in seconds; `text` is its help."""
    return click.option("--budget", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help=text)


class Searched(TypedDict):
    """What settings of everything that is searched have in common, by their names there."""

    threads: int | None
    gap_percent: float | None
    resume: bool
    profile_db: Path | None


def searched_options(function: F) -> F:
    """`--gap`, `--resume` and `--profile-db`, which the command takes with `--threads` as `searched`."""
    return _gap(_resume(profile_db_option(gathered("searched", _searched)(function))))


def _searched(threads: int | None, gap: float | None, resume: bool, profile_db: Path | None) -> Searched:
    return Searched(threads=threads, gap_percent=gap, resume=resume, profile_db=profile_db)


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
    """`--profile-db`, the file of the profile database; None stands for the user's own, or that of the environment."""
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
    # `default_path` reads the variable itself, for the library too, where it may also say ~ and :memory:.
    return None if ctx.get_parameter_source(param.name or "") is ParameterSource.ENVIRONMENT else path


def cluster_option(text: str) -> Callable[[F], F]:
    """`--cluster`, the text that `jobs.pool.ray.address.parse_cluster` reads, or None; `text` begins its help."""
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
    """An option that names a file to write, which the command takes as a `Destination` or None; `text` is its help."""
    return click.option(*flags, callback=destination, shell_complete=complete_file, metavar=metavar, help=text)


def json_option(function: F) -> F:
    """`--json`, which the command takes as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")(function)


def shapes_of(pairs: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """The shapes of `--input-shape` by the names of the inputs.

    Raises:
        UsageError: two different shapes are given for one input.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in pairs:
        if shapes.setdefault(name, shape) != shape:
            raise UsageError(f"--input-shape gives {name!r} two shapes: {shapes[name]} and {shape}")
    return shapes
