"""`--cluster`: one display for all workers, a line for each lost one, and their entry in `--json`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from iosched.cli.common.errors import printable
from iosched.cli.common.json_objects import json_object
from iosched.cli.common.options import flags_given
from iosched.cli.common.output import note, quiet
from iosched.cli.common.progress import Phases, bar_columns, description_for, end_of
from iosched.cli.common.site_settings import outside_settings
from iosched.models.errors import UsageError
from iosched.models.log import logger

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.progress import Progress

    from iosched.jobs.pool.cluster import ClusterPool, PoolStatus

R = TypeVar("R")

_log = logger(__name__)

_MOST_SHOWN = 12
_WIDTH = 60


class ClusterView:
    """Live display of the workers of a job: a `TerminalObserver` and a `PoolObserver`.

    Without a terminal, only lines are printed; with `-q`, nothing is.
    """

    def __init__(self, *, prints: bool) -> None:
        self._prints = prints
        self._phases = Phases()
        self._live: Live | None = None
        self._bar: Progress | None = None
        self._status: PoolStatus | None = None

    def __rich__(self) -> RenderableType:
        """The bar of the job, and a line for each worker."""
        from rich.console import Group
        from rich.text import Text

        assert self._bar is not None
        return Group(self._bar, *map(Text, lines_of(self._status)))

    def progress(self, done: int, total: int | None, text: str) -> None:
        """Moves the bar."""
        self._phases.say(text)
        if self._bar is not None:
            description = description_for(text, self._bar.console.width)
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, description=description)

    def begin(self, budget_s: float | None) -> None:
        """Shows that the cluster is reached, then the time left of this budget; None for no limit."""
        self.progress(0, None, "the cluster is reached")
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], ends=end_of(budget_s))

    def status(self, status: PoolStatus) -> None:
        """Receives the state of the workers."""
        self._status = status

    def note(self, text: str) -> None:
        """Prints a line unless `-q` was given; always logs it."""
        _log.info("%s", text)
        if not self._prints:
            return
        if self._live is not None and self._live.is_started:
            self._live.console.print(printable(text), markup=False, highlight=False)
        else:
            click.echo(printable(text), err=True)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which nothing is drawn, so that a question can be asked on the terminal."""
        if self._live is None:
            yield
            return
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()

    @contextmanager
    def drawn(self, console: Console) -> Iterator[None]:
        """A context in which the display is drawn."""
        from rich.live import Live
        from rich.progress import Progress

        self._bar = Progress(*bar_columns(console.width), console=console)
        self._bar.add_task("reaching the cluster", total=None)
        self._live = Live(self, console=console, transient=True, refresh_per_second=2)
        with self._live:
            yield


def lines_of(status: PoolStatus | None) -> list[str]:
    """A line for the task of each worker, and the numbers of finished and waiting tasks."""
    if status is None:
        return []
    names = [f"{each.node}, {each.device}" for each in status.workers]
    width = max(map(len, names), default=0)
    lines = [
        printable(f"  {name:{width}}  {each.done:4} done  {each.doing or 'rests'}")[: _WIDTH + width]
        for name, each in zip(names, status.workers, strict=True)
    ]
    if len(lines) > _MOST_SHOWN:
        lines = [*lines[:_MOST_SHOWN], f"  and {len(lines) - _MOST_SHOWN} more"]
    lost = f", {len(status.lost)} lost" if status.lost else ""
    count = len(status.workers)
    return [*lines, f"  {count} worker{'s' * (count != 1)}{lost}; {status.done} done, {status.waiting} waiting"]


@contextmanager
def cluster_view() -> Iterator[ClusterView]:
    """A display on stderr until the context ends; only lines without a terminal, and nothing with `-q`."""
    view = ClusterView(prints=not quiet())
    if quiet() or not sys.stderr.isatty():
        yield view
        return
    from rich.console import Console

    with view.drawn(Console(stderr=True)):
        yield view


@dataclass(frozen=True)
class ClusterUse:
    """A command's use of a cluster: the text of `--cluster`, and the workers' state at the end."""

    text: str
    status: PoolStatus


def with_pool(
    cluster: str,
    profile_db: Path | None,
    threads: int | None,
    do: Callable[[ClusterPool, ClusterView], R],
    budget_s: float | None = None,
) -> tuple[R, ClusterUse]:
    """The result of `do` and the use of the cluster, whose workers end afterwards; `budget_s` is the limit of `do`.

    Raises:
        UsageError: the text is not a cluster, or is a local one with more threads than processors.
        DeviceError: there is no such cluster, or Ray is not installed.
        And what `do` raises.
    """
    from iosched.jobs.pool.cluster import cluster_pool

    with cluster_view() as view, cluster_pool(cluster, profile_db, threads, view) as pool:
        view.begin(budget_s)
        found = do(pool, view)
    return found, ClusterUse(cluster, pool.status())


def cluster_object(used: ClusterUse | None) -> dict[str, object]:
    """The entry of `--json` about the workers at the end of a command; empty if it ran on this machine."""
    if used is None:
        return {}
    workers = Counter(each.device for each in used.status.workers)
    keys = "cluster.address=text cluster.workers cluster.done=status.done cluster.lost=status.lost"
    return json_object(used, keys, workers=workers)


def refuse_cluster(cluster: str | None, why: str) -> None:
    """Refuses `--cluster` for a job on this machine; ignores one from the environment or a settings file, with a note.

    Args:
        cluster: the value of `--cluster`.
        why: why the command runs on this machine, for messages.

    Raises:
        UsageError: the command line names a cluster.
    """
    if cluster is None:
        return
    if flags_given("cluster"):
        raise UsageError(f"{why}: leave --cluster out")
    place = outside_settings(click.get_current_context())["--cluster"].place
    note(f"{why}: the cluster from {place} is passed over.")


def check_known(device: str) -> None:
    """Checks `--device`, except with `--cluster`: only the cluster knows its devices.

    Raises:
        UsageError: there is no such device.
    """
    from iosched.profiler.devices.resolve import check_name

    if click.get_current_context().params.get("cluster") is None:
        check_name(device)
