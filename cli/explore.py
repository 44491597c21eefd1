"""`iosched explore`: variants of a model, and the best of them."""

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

from iosched.cli.cluster import ClusterUse, cluster_object, with_pool
from iosched.cli.complete import complete_file, complete_model
from iosched.cli.explore_report import Written, as_object, left_in, left_remarks, print_found, remarks_of
from iosched.cli.further import WithFurther
from iosched.cli.interrupt import AskOnce
from iosched.cli.options import (
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
from iosched.cli.output import INPUTS_SEED, Destination, check_destinations, emit_json, emit_result, note, quiet, write
from iosched.cli.pictures.front import draw_front
from iosched.cli.progress import progress_bar
from iosched.cli.source import input_file, read_model
from iosched.cli.terminal import say
from iosched.jobs.exploring.objectives import DEFAULT_OBJECTIVE, DEFAULT_POPULATION, DEFAULT_SAMPLER, SAMPLER_NAMES
from iosched.jobs.ranking.measures import DEFAULT_MEASURE, MEASURES
from iosched.models.errors import ExecutionError, UsageError

if TYPE_CHECKING:
    from iosched.jobs.exploring.result import Chosen, ExploreResult, Found
    from iosched.jobs.exploring.settings import ExploreSettings
    from iosched.models.model import Model
    from iosched.models.spaces.space import Space

_STUDY = Path("study.db")
_PLOT_HELP = "Draw the front, or with one objective the trials, as SVG; '-' is stdout."


def _settings(
    objectives: tuple[str, ...], budget: float | None, threads: int | None, profile_db: Path | None, **own: Any
) -> ExploreSettings:
    """The settings that the options ask for, but for the study's file, whose default depends on the base model."""
    from iosched.jobs.exploring.settings import ExploreSettings
    from iosched.jobs.settings import OptimizeSettings

    optimize = OptimizeSettings(threads=threads, profile_db=profile_db)
    objectives = objectives or (DEFAULT_OBJECTIVE,)
    return ExploreSettings(_STUDY, objectives=objectives, budget_s=budget, optimize=optimize, **own)


def _complete_sampler(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    named = [CompletionItem(name) for name in SAMPLER_NAMES if name.startswith(incomplete)]
    return named or complete_file(ctx, param, incomplete)


_at_least_one = click.IntRange(min=1)


@click.command("explore", cls=WithFurther, short_help="Try variants of BASE, and write the best as ONNX files.")
@click.argument("base", metavar="[BASE]", required=False, shell_complete=complete_model)
@click.option(
    "--space", required=True, shell_complete=complete_file, metavar="SPACE",
    help="How BASE may vary: a file of Python that defines 'space', which is executed; or 'builtin:NAME', one of those "
    "in the box: mnasnet, nasnet, darts, enas, spos, inception, pelee. These bring a base model for images of 64 "
    "pixels in width and height, or of as many as 'builtin:NAME:PIXELS' says, so BASE may be left out.",
)  # fmt: skip
@click.option(
    "--sampler", default=DEFAULT_SAMPLER, show_default=True, metavar="SAMPLER", shell_complete=_complete_sampler,
    help="'random'; 'grid': every variant once; 'evolution': generations by roulette, crossover and mutation, as "
    "published for EA-NAS; 'steady-evolution': the same without generations; 'tpe' and 'nsga2': those of Optuna; or a "
    "class that derives from optuna.samplers.BaseSampler: 'FILE.py:CLASS' or 'MODULE:CLASS', which is executed.",
)  # fmt: skip
@click.option(
    "--trials", type=_at_least_one, default=100, show_default=True, metavar="N",
    help="How many trials the study has when it is done, those of earlier calls included.",
)  # fmt: skip
@budget_option("Begin no trial once trials have taken so many seconds, those of earlier calls included.")
@click.option(
    "--objective", "objectives", multiple=True, metavar="[min:|max:]NAME,…",
    help="What is to be small or large. 'latency:DEVICE' in microseconds, 'flops' and 'params' are minimised. A key of "
    f"what the score command prints is maximised. Repeat for several. Default: {DEFAULT_OBJECTIVE}.",
)  # fmt: skip
@click.option(
    "--constraint", "constraints", multiple=True, metavar="NAME<=NUMBER,…",
    help="A bound, '<=' or '>=', that variants on the front keep to. A variant that violates one is not scored, as far "
    "as that is known before.",
)  # fmt: skip
@click.option(
    "--score-cmd", "score_command", metavar="COMMAND",
    help="A program that prints a number, or JSON with several, for a variant: {model} is replaced by the path of its "
    "ONNX file, {params} by its choices as JSON. It is run without a shell, and never while this machine measures.",
)  # fmt: skip
@click.option(
    "--score-timeout", "score_timeout_s", type=click.FloatRange(min=0, min_open=True), default=3600.0,
    show_default=True, metavar="SECONDS", help="How long the score command may take for one variant.",
)  # fmt: skip
@click.option(
    "--score-batch", type=_at_least_one, default=1, show_default=True, metavar="K",
    help="Give the score command K variants at a time as one model, and their choices as JSON by the members' names. "
    "What is alike in the variants is one operator. The command prints a JSON object by these names.",
)  # fmt: skip
@click.option(
    "--prune", "prunes", is_flag=True,
    help='End the score command if lines like {"step": 3, "accuracy": 0.9} that it prints are worse than the '
    "median of other trials after as many steps. Only with one objective, which the command prints.",
)  # fmt: skip
@click.option(
    "--measure", type=click.Choice(MEASURES), default=DEFAULT_MEASURE, show_default=True,
    help="On a device that is here: 'models' as 'optimize' ships them; the 'stages' of their schedules, whose sum is "
    "an estimate; or 'none', from the profile database alone.",
)  # fmt: skip
@click.option(
    "--storage", type=click.Path(path_type=Path, dir_okay=False), metavar="study.db",
    help="The SQLite file that keeps the study. If it is there already, the study goes on. "
    f"Default: {_STUDY} in the folder of -o.",
)  # fmt: skip
@click.option(
    "--top", type=click.IntRange(min=0), default=5, show_default=True, metavar="N",
    help="How many of the best variants to write as ONNX files, with their schedules.",
)  # fmt: skip
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="The folder to write to; made if it is not there. Default: STEM.explored in the working folder.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
    help="Seed of all choices.",
)  # fmt: skip
@click.option(
    "--population", type=click.IntRange(min=2), default=DEFAULT_POPULATION, show_default=True,
    metavar="N", help="Individuals that 'evolution', 'steady-evolution' and 'nsga2' breed from.",
)  # fmt: skip
@binding_options
@threads_option
@profile_db_option
@cluster_option(
    "Evaluate variants on the workers of a cluster, one on each at a time; DEVICE in latency:DEVICE is one of its "
    "devices, or a GPU that they simulate, and score commands run there too."
)
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
    """Try variants of BASE on this device, and write those as ONNX files that are best by several measures.

    A space has mutators, which change BASE by choices, and a sampler makes the choices. The result is a variant. Its
    latency is that of what 'optimize' would ship; stages that variants share are measured once. New weights are seeded,
    so a variant has yet to be trained. The score command may do that, and says how good the variant is.

    The study is kept in a file. It goes on where it was stopped, also by force. A second call with a larger --trials
    goes on with it, and several processes may work on one study. Variants that were seen before are not evaluated
    again. Ctrl-C on a terminal asks whether to write the best found so far.

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
    from iosched.jobs.exploring.settings import asked
    from iosched.models.spaces.space import find_space

    check_optuna()
    settings = _settings(**options)
    asked(settings)
    where = folder or _folder(base, space)
    check_destinations([plot], inputs=[None if base is None else input_file(base)], as_json=as_json)
    found_space = find_space(space)
    model = None if base is None else read_model(base, binding)
    if model is None and binding != Binding():
        raise UsageError("--batch-size and --input-shape are for BASE, and the space brings its own: leave them out")
    settings = replace(settings, storage=storage or where / _STUDY)
    with _made(where):
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
    """The folder to write to by default, named after the base model or, without one, after the space."""
    name = Path(space.removesuffix(".py") if base is None else base.removesuffix(".onnx")).name
    plain = re.sub(r"[^\w.+-]+", "_", name.rpartition("builtin:")[2].replace(":", "-")).strip(".-")[:100]
    return Path(f"{plain or 'model'}.explored")


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """A context in which the folder is there; one that was made for it and has nothing in it goes after an error."""
    if not folder.parent.is_dir():
        raise UsageError(f"-o {folder}: there is no folder {folder.parent}: create it first")
    was_there = folder.exists()
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"-o {folder}: {error.strerror}") from None
    try:
        yield
    except BaseException:
        with suppress(OSError):  # as where something was kept in it
            if not was_there:
                folder.rmdir()
        raise


def _written(chosen: Chosen, folder: Path) -> Written:
    """Writes the model of a variant and its schedule."""
    from iosched.jobs.annotate import annotated
    from iosched.models.export import write_model

    stem, document = f"trial-{chosen.number:04}", chosen.document
    written = Written(folder / f"{stem}.onnx", folder / f"{stem}.schedule.json", document.shipped)
    write_model(annotated(chosen.model, document), chosen.model.weights, written.model)
    write(Destination("-o", written.schedule), document.to_json().encode())
    return written


def _report(result: ExploreResult, written: dict[int, Written], left: Sequence[Path], *, to_stderr: bool) -> None:
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


def _refuse_nothing(found: Found) -> None:
    """Ends with an error where every trial has failed."""
    failed = [each.feedback.reason for each in found.individuals if each.state == "failed"]
    if failed and len(failed) == len(found.finished):
        raise ExecutionError(f"all {len(failed)} trials failed; the last: {failed[-1]}")


@command.command(short_help="Print what is known of a study.")
@click.argument("study", metavar="STUDY", type=click.Path(path_type=Path))
@output_option("--plot", metavar="F.svg", text=_PLOT_HELP)
@json_option
@verbosity_options
def show(study: Path, plot: Destination | None, as_json: bool) -> None:
    """Print the front of the study in file STUDY, as 'explore' keeps it; nothing is tried, and nothing executed."""
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
