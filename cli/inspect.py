"""`iosched inspect`: how large the search is, before it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import click

from iosched.cli.options import (
    Binding,
    binding_options,
    gathered,
    given,
    json_option,
    model_argument,
    pruning_asked,
    pruning_options,
    verbosity_options,
)
from iosched.cli.output import emit_json
from iosched.cli.source import read_model
from iosched.cli.tables import print_columns

if TYPE_CHECKING:
    from iosched.models.model import Model
    from iosched.scheduler.counts import Counts
    from iosched.scheduler.pruning import Pruning

_COUNTS = ("operators", "width", "states", "transitions", "schedules", "stages", "signatures")


@click.command(name="inspect", short_help="Count blocks, operators, states and schedules of MODEL.")
@model_argument
@binding_options
@pruning_options
@click.option(
    "--published-endings",
    is_flag=True,
    help="Count only stages each group of which starts with a single operator, as the thesis's table 3.1 was printed; "
    "without pruning unless -r or -s is given.",
)
@json_option
@verbosity_options
@gathered("pruning", pruning_asked)
def command(
    model: str,
    binding: Binding,
    pruning: Pruning,
    published_endings: bool,
    as_json: bool,
) -> None:
    """Show the blocks of MODEL and how large the search in each is; runs nothing.

    n is the number of operators of a block, d its width: the most operators that can run side by side.
    """

    from iosched.scheduler.blocks import partition
    from iosched.scheduler.counts import count_blocks

    if published_endings and not given("r", "s"):
        pruning = replace(pruning, r=None, s=None)
    loaded = read_model(model, binding)
    blocks = [part.operators for part in partition(loaded.graph)]
    counts = list(count_blocks(loaded.graph, blocks, pruning, single_source=published_endings))
    found = _Inspected(loaded, pruning, published_endings, counts)
    if as_json:
        emit_json(as_object(found))
        return
    _print(found)


@dataclass(frozen=True, eq=False)
class _Inspected:
    """The counts of each block of a model, and the limits on stages that they were counted under."""

    model: Model
    pruning: Pruning
    published_endings: bool
    blocks: Sequence[Counts]


def as_object(found: _Inspected) -> dict[str, object]:
    """The object that `inspect --json` prints; scripts rely on its keys."""
    return {
        "model": found.model.name,
        "operators": len(found.model.graph.operators),
        "nodes": len(found.model.proto.graph.node),
        "flops": found.model.flops,
        "params": found.model.n_parameters,
        "pruning": asdict(found.pruning),
        "endings": "published" if found.published_endings else "all",
        "blocks": [{"index": index, **asdict(counts)} for index, counts in enumerate(found.blocks)],
    }


def _print(found: _Inspected) -> None:
    model, pruning = found.model, found.pruning
    limits = "no pruning" if pruning.r is None and pruning.s is None else f"pruning r={pruning.r} s={pruning.s}"
    if found.published_endings:
        limits += ", endings as published"
    title = (
        f"{model.name}: {len(model.graph.operators):,} operators ({len(model.proto.graph.node):,} nodes), "
        f"{found.model.flops / 1e9:.2f} GFLOP, {found.model.n_parameters / 1e6:.1f} M parameters; {limits}"
    )
    rows = [
        [str(index), *(_number(getattr(counts, key)) for key in _COUNTS), f"{counts.upper_bound:.3g}"]
        for index, counts in enumerate(found.blocks)
    ]
    headers = ["block", "n", "d", "states", "transitions", "schedules", "stages", "signatures", "upper bound"]
    print_columns(headers, rows, title=title)


def _number(value: int) -> str:
    return f"{value:,}" if value < 10**12 else f"{value:.3e}"
