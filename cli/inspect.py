"""`iosched inspect`: how large the search is, before it is made."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
    from iosched.models.graph import ComputationGraph
    from iosched.models.model import Model
    from iosched.scheduler.lattice import Pruning

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

    if published_endings and not given("r", "s"):
        pruning = replace(pruning, r=None, s=None)
    found = inspection(read_model(model, binding), pruning, published_endings=published_endings)
    if as_json:
        emit_json(found)
        return
    _print(found)


def inspection(model: Model, pruning: Pruning, *, published_endings: bool = False) -> dict[str, Any]:
    """`inspect --json`: keys that scripts rely on."""
    graph = model.graph
    return {
        "model": model.name,
        "operators": len(graph.operators),
        "nodes": len(model.proto.graph.node),
        "flops": sum(operator.flops for operator in graph.operators),
        "params": sum(array.size for array in model.weights.values()),
        "pruning": {"r": pruning.r, "s": pruning.s},
        "endings": "published" if published_endings else "all",
        "blocks": _blocks(graph, pruning, published_endings),
    }


def _blocks(graph: ComputationGraph, pruning: Pruning, published_endings: bool) -> list[dict[str, Any]]:
    from iosched.scheduler.blocks import partition
    from iosched.scheduler.counts import count_blocks

    found = []
    blocks = [part.operators for part in partition(graph)]
    counted = count_blocks(graph, blocks, pruning, single_source=published_endings)
    for index, (operators, counts) in enumerate(zip(blocks, counted, strict=True)):
        found.append(
            {
                "index": index,
                "operators": len(operators),
                "width": counts.width,
                "upper_bound": counts.upper_bound,
                "pruned_growth": counts.pruned_growth,
                "states": counts.states,
                "transitions": counts.transitions,
                "schedules": counts.schedules,
                "stages": counts.stages,
                "signatures": counts.signatures,
            }
        )
    return found


def _print(found: dict[str, Any]) -> None:
    r, s = found["pruning"]["r"], found["pruning"]["s"]
    pruning = "no pruning" if r is None and s is None else f"pruning r={r} s={s}"
    if found["endings"] == "published":
        pruning += ", endings as published"
    title = (
        f"{found['model']}: {found['operators']:,} operators ({found['nodes']:,} nodes), "
        f"{found['flops'] / 1e9:.2f} GFLOP, {found['params'] / 1e6:.1f} M parameters; {pruning}"
    )
    rows = [
        [str(block["index"]), *(_number(block[key]) for key in _COUNTS), f"{block['upper_bound']:.3g}"]
        for block in found["blocks"]
    ]
    headers = ["block", "n", "d", "states", "transitions", "schedules", "stages", "signatures", "upper bound"]
    print_columns(headers, rows, title=title)


def _number(value: int) -> str:
    return f"{value:,}" if value < 10**12 else f"{value:.3e}"
