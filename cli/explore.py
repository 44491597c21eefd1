"""`iosched explore`: search variants of a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from iosched.cli.cluster_display import ClusterUse, cluster_object, with_pool
from iosched.cli.common.complete import complete_file, complete_model
from iosched.cli.common.options import (
    Binding,
    binding_options,
    budget_option,
    cluster_option,
    json_option,
    output_option,
    profile_db_option,
    threads_option,
    verbosity_options,
)
from iosched.cli.common.output import (
    INPUTS_SEED,
    Destination,
    check_destinations,
    emit_json,
    emit_result,
    note,
    quiet,
    say,
    write,
)
from iosched.cli.common.progress import AskOnce, progress_bar
from iosched.cli.common.source import input_file, read_model
from iosched.cli.explore_report import WrittenFiles, as_object, left_in, left_remarks, print_found, remarks_of
from iosched.cli.help import Command
from iosched.cli.pictures.front import draw_front
from iosched.jobs.exploring.objectives import DEFAULT_OBJECTIVE, DEFAULT_POPULATION, DEFAULT_SAMPLER, SAMPLER_NAMES
from iosched.jobs.ranking.measures import DEFAULT_MEASURE, MEASURES
from iosched.models.errors import ExecutionError, UsageError

if TYPE_CHECKING:
    from iosched.jobs.exploring.explore_result import Chosen, ExploreResult, StudyHistory
    from iosched.jobs.exploring.explore_settings import ExploreSettings
    from iosched.models.model import Model
    from iosched.models.spaces.space import Space

_STUDY = Path("study.db")
_PLOT_HELP = "Draw the front, or one objective's trials, as SVG; '-' is stdout."


class WithCommands(Command, click.Group):
    """A command with subcommands: it runs itself unless its first word names one of them."""

    allow_extra_args = False
    allow_interspersed_args = True

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the words of this command or of a subcommand."""
        below = self.commands.get(args[0]) if args else None
        if below is None:
            return click.Command.make_context(self, info_name, args, parent, **extra)
        return below.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as a command, not as a group."""
        return click.Command.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command itself."""
        return click.Command.invoke(self, ctx)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Usage of the command itself."""
        return click.Command.collect_usage_pieces(self, ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options and the subcommands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _settings(
    objectives: tuple[str, ...], budget: float | None, threads: int | None, profile_db: Path | None, **own: Any
) -> ExploreSettings:
    from iosched.jobs.exploring.explore_settings import ExploreSettings
    from iosched.jobs.settings import OptimizeSettings

    optimize = OptimizeSettings(threads=threads, profile_db=profile_db)
    objectives = objectives or (DEFAULT_OBJECTIVE,)
    return ExploreSettings(_STUDY, objectives=objectives, budget_s=budget, optimize=optimize, **own)


def _complete_sampler(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    named = [CompletionItem(name) for name in SAMPLER_NAMES if name.startswith(incomplete)]
    return named or complete_file(ctx, param, incomplete)


_at_least_one = click.IntRange(min=1)


@click.command(
    "explore",
    cls=WithCommands,
    short_help="Try variants of BASE, and write the best as ONNX files.",
    basic="space sampler trials budget objective constraint score-cmd output cluster json",
)
@click.argument("base", metavar="[BASE]", required=False, shell_complete=complete_model)
@click.option(
    "--space", required=True, shell_complete=complete_file, metavar="SPACE",
    help="How BASE may vary: 'FILE.py' or 'builtin:NAME'.\n\nFILE.py defines 'space' and is executed. Built in are "
    "mnasnet, nasnet, darts, enas, spos, inception and pelee. These have a base model of their own for images of 64 by "
    "64 pixels; 'builtin:NAME:PIXELS' sets another size.",
)  # fmt: skip
@click.option(
    "--sampler", default=DEFAULT_SAMPLER, show_default=True, metavar="SAMPLER", shell_complete=_complete_sampler,
    help=f"{', '.join(map(repr, SAMPLER_NAMES))}, or a class.\n\n'grid' tries every variant once. 'evolution' breeds "
    "generations by roulette, crossover and mutation, as published for EA-NAS; 'steady-evolution' does so without "
    "generations. 'tpe' and 'nsga2' are Optuna's. 'FILE.py:CLASS' or 'MODULE:CLASS' is a subclass of "
    "optuna.samplers.BaseSampler, which is executed.",
)  # fmt: skip
@click.option(
    "--trials", type=_at_least_one, default=100, show_default=True, metavar="N",
    help="Total trials of the study, with those of earlier calls.",
)  # fmt: skip
@budget_option("Begin no trial after SECONDS of trials, with those of earlier calls.")
@click.option(
    "--objective", "objectives", multiple=True, metavar="[min:|max:]NAME,…",
    help=f"Objectives. Default: {DEFAULT_OBJECTIVE}.\n\n'latency:DEVICE' (in microseconds), 'flops' and 'params' are "
    "minimised. A key that the score command prints is maximised.",
)  # fmt: skip
@click.option(
    "--constraint", "constraints", multiple=True, metavar="NAME<=NUMBER,…",
    help="Bounds ('<=' or '>=') on variants of the front.\n\nA variant that is known to violate one is not scored.",
)  # fmt: skip
@click.option(
    "--score-cmd", "score_command", metavar="COMMAND",
    help="Program that prints a variant's score.\n\nThe score is a number, or JSON with several. {model} is replaced "
    "by the path of the ONNX file, {params} by the choices as JSON. The program runs without a shell, and never "
    "while this machine measures.",
)  # fmt: skip
@click.option(
    "--score-timeout", "score_timeout_s", type=click.FloatRange(min=0, min_open=True), default=3600.0,
    show_default=True, metavar="SECONDS", help="Time limit of the score command for one variant.",
)  # fmt: skip
@click.option(
    "--score-batch", type=_at_least_one, default=1, show_default=True, metavar="K",
    help="Score K variants at a time as one model.\n\nEqual operators of the variants are one. {params} and the JSON "
    "that the command prints are objects by the members' names.",
)  # fmt: skip
@click.option(
    "--prune", "prunes", is_flag=True,
    help="End score commands with poor results early.\n\nThe command prints lines like {\"step\": 3, \"accuracy\": "
    "0.9}, and ends if they are worse than the median of other trials at that step. Only with one objective, which the "
    "command prints.",
)  # fmt: skip
@click.option(
    "--measure", type=click.Choice(MEASURES), default=DEFAULT_MEASURE, show_default=True,
    metavar="HOW",
    help="Measure whole 'models', 'stages' or 'none'.\n\n'models' measures variants as 'optimize' ships them. 'stages' "
    "adds up stages measured alone, an estimate. 'none' uses the profile database only.",
)  # fmt: skip
@click.option(
    "--storage", type=click.Path(path_type=Path, dir_okay=False), metavar="study.db",
    help=f"SQLite file of the study. Default: {_STUDY} in the folder of -o.\n\nAn existing study is continued.",
)  # fmt: skip
@click.option(
    "--top", type=click.IntRange(min=0), default=5, show_default=True, metavar="N",
    help="Variants to write as ONNX files with schedules.",
)  # fmt: skip
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Folder to write to. Default: STEM.explored.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
    help="Seed of all choices.",
)  # fmt: skip
@click.option(
    "--population", type=click.IntRange(min=2), default=DEFAULT_POPULATION, show_default=True,
    metavar="N", help="Population of 'evolution', 'steady-evolution' and 'nsga2'.",
)  # fmt: skip
@binding_options
@threads_option
@profile_db_option
@cluster_option("Evaluate variants on a Ray cluster.")
@output_option("--plot", metavar="F.svg", text=_PLOT_HELP)
@json_option
@verbosity_options
def command(
    base: str | None,
    space: str,
    storage: Path | None,
    folder: Path | None,
    binding: Binding,
    cluster: str | None,
    plot: Destination | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Try variants of BASE, and write the best by several objectives as ONNX files.

    The mutators of a space change BASE by choices, which a sampler makes. The result is a variant. Its latency is that
    of what 'optimize' would ship; stages that variants share are measured once. New weights are seeded: training is the
    score command's work.

    A file keeps the study. An interrupted or killed study resumes, a call with a larger --trials continues it, and
    several processes can work on it. No variant is evaluated twice. Ctrl-C on a terminal asks whether to write the best
    variants so far.

    With --cluster, each worker evaluates one variant at a time and runs its score command. DEVICE in latency:DEVICE is
    a device of the cluster, or a GPU that its workers simulate.

    \b
    Examples:
      iosched explore --space builtin:inception --trials 40
      iosched explore base.onnx --space space.py --objective latency:cpu,params --sampler nsga2
      iosched explore --space builtin:pelee --objective max:accuracy,latency:cpu \\
          --score-cmd 'python train.py {model} {params}' --constraint 'latency:cpu<=5000'
      iosched explore --space builtin:pelee --trials 200 --cluster auto
      iosched explore show pelee.explored/study.db
    """
    from iosched.jobs.explore import check_optuna
    from iosched.jobs.exploring.explore_settings import parse_settings
    from iosched.models.spaces.space import find_space

    check_optuna()
    settings = _settings(**options)
    parse_settings(settings)
    where = folder or _folder(base, space)
    check_destinations([plot], inputs=[None if base is None else input_file(base)], as_json=as_json)
    found_space = find_space(space)
    model = None if base is None else read_model(base, binding)
    if model is None and binding != Binding():
        raise UsageError(
            "--batch-size and --input-shape are for BASE, but the space has its own base model: leave them out"
        )
    settings = replace(settings, storage=storage or where / _STUDY)
    with _output_folder(where):
        result, used = _explored(model, found_space, settings, cluster)
        written = {chosen.number: _written(chosen, where) for chosen in result.chosen}
    if plot is not None:
        write(plot, draw_front(result.found).encode())
    left = left_in(where, written)
    if as_json:
        seeds = {**INPUTS_SEED, "study": settings.seed}
        emit_result(as_object(result.found, written, result, left) | cluster_object(used), seeds)
    _report(result, written, left, to_stderr=as_json or (plot is not None and plot.path is None))
    _refuse_nothing(result.found)


def _explored(
    base: Model | None, space: Space, settings: ExploreSettings, cluster: str | None
) -> tuple[ExploreResult, ClusterUse | None]:
    from iosched.jobs.explore import explore

    what = "the best variants"
    if cluster is not None:
        return with_pool(
            *(cluster, settings.optimize.profile_db, settings.optimize.threads),
            lambda pool, view: explore(base, space, settings, view, AskOnce(view, what), pool),
        )
    with progress_bar() as observer:
        return explore(base, space, settings, observer, AskOnce(observer, what)), None


def _folder(base: str | None, space: str) -> Path:
    """Default output folder, named after the base model or the space."""
    name = Path(space.removesuffix(".py") if base is None else base.removesuffix(".onnx")).name
    plain = re.sub(r"[^\w.+-]+", "_", name.rpartition("builtin:")[2].replace(":", "-")).strip(".-")[:100]
    return Path(f"{plain or 'model'}.explored")


@contextmanager
def _output_folder(folder: Path) -> Iterator[None]:
    """Create the folder; remove it after an error if it is new and empty."""
    if not folder.parent.is_dir():
        raise UsageError(f"-o {folder}: there is no folder {folder.parent}: create it first")
    existed = folder.exists()
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"-o {folder}: {error.strerror}") from None
    try:
        yield
    except BaseException:
        with suppress(OSError):  # the folder is not empty
            if not existed:
                folder.rmdir()
        raise


def _written(chosen: Chosen, folder: Path) -> WrittenFiles:
    from iosched.jobs.annotate import annotated
    from iosched.models.export import write_model

    stem, document = f"trial-{chosen.number:04}", chosen.document
    written = WrittenFiles(folder / f"{stem}.onnx", folder / f"{stem}.schedule.json", document.shipped)
    write_model(annotated(chosen.model, document), chosen.model.weights, written.model)
    write(Destination("-o", written.schedule), document.to_json().encode())
    return written


def _report(result: ExploreResult, written: dict[int, WrittenFiles], left: Sequence[Path], *, to_stderr: bool) -> None:
    if quiet():
        return
    print_found(result.found, written, to_stderr=to_stderr)
    for line in result.notes:
        note(line)
    lines = [*remarks_of(result.found), *left_remarks(left)]
    if result.chosen:
        lines.append(f"Next:  iosched run {quote(str(written[result.chosen[0].number].model))} --check")
    for line in lines:
        note(line) if to_stderr else click.echo(line)


def _refuse_nothing(found: StudyHistory) -> None:
    failed = [each.feedback.reason for each in found.individuals if each.state == "failed"]
    if failed and len(failed) == len(found.finished):
        raise ExecutionError(f"all {len(failed)} trials failed; the last: {failed[-1]}")


@command.command(cls=Command, short_help="Print the results of a study.")
@click.argument("study", metavar="STUDY", type=click.Path(path_type=Path))
@output_option("--plot", metavar="F.svg", text=_PLOT_HELP)
@json_option
@verbosity_options
def show(study: Path, plot: Destination | None, as_json: bool) -> None:
    """Print the front of the study in file STUDY; nothing is executed."""
    from iosched.jobs.explore import study_in

    check_destinations([plot], inputs=[study], as_json=as_json)
    found = study_in(study)
    if plot is not None:
        write(plot, draw_front(found).encode())
    if as_json:
        emit_json(as_object(found, {}, None))
    elif plot is None or plot.path is not None:
        print_found(found, {}, to_stderr=False)
        for line in remarks_of(found):
            say(line)
