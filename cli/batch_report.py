"""What `iosched batch` says of its result: the JSON object, and the tables for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from iosched.cli.intervals import COMPARED
from iosched.cli.objects import json_object
from iosched.cli.tables import print_items, print_pairs
from iosched.cli.words import count_text, latency_text

if TYPE_CHECKING:
    from iosched.cli.optimized_files import OptimizedFiles
    from iosched.jobs.batch import BatchResult, ClusterResult
    from iosched.jobs.batching.plan import ClusterEstimate, Estimate
    from iosched.jobs.batching.result import MemberResult
    from iosched.jobs.row import Row

_DEVICE = "device.kind=device_kind device.name=device_name cost"
_MEMORY = "memory_nbytes.alone=memory.alone_nbytes memory_nbytes.together=memory.together_nbytes"
_OBJECT = f"outputs models {_DEVICE} clusters batched shared rows shipped {_MEMORY} left_out notes seconds"
_CLUSTER = (
    f"models output schedule batched shared rows shipped reason ratio {_MEMORY} estimated_nbytes plan_nbytes notes"
)
_ROW = "name latency_us per_second low=low_us high=high_us after_rest_us=rested_us how"
_ESTIMATED = f"models=names operators alike shared {_MEMORY}"
_MODEL_COLUMNS: list[tuple[str, Callable[[MemberResult], str]]] = [
    ("model", lambda member: member.name),
    ("nodes", lambda member: f"{member.n_nodes:,}"),
    ("alone, by its own schedule", lambda member: latency_text(member.latency_us, unknown="")),
]
_ESTIMATE_COLUMNS: list[tuple[str, Callable[[ClusterEstimate], str]]] = [
    ("models", lambda each: ", ".join(each.names)),
    ("operators", lambda each: f"{each.operators:,}"),
    ("alike at most", lambda each: f"{each.alike:,}"),
    ("shared nodes", lambda each: f"{each.shared:,}"),
    ("memory alone", lambda each: _mb(each.memory.alone_nbytes)),
    ("together", lambda each: _mb(each.memory.together_nbytes)),
]


def as_object(result: BatchResult, outputs: list[OptimizedFiles]) -> dict[str, object]:
    """The object that `batch --json` prints."""
    members = [member for cluster in result.clusters for member in cluster.members]
    return json_object(
        result,
        _OBJECT,
        outputs=[str(each.model) for each in outputs],
        models=[json_object(member, "name nodes=n_nodes latency_us") for member in members],
        clusters=[_cluster_object(*pair) for pair in zip(result.clusters, outputs, strict=True)],
        batched=sum(cluster.batched for cluster in result.clusters),
        shared=sum(cluster.shared for cluster in result.clusters),
        rows=_row_objects(result.rows, result.n_models),
    )


def _cluster_object(cluster: ClusterResult, files: OptimizedFiles) -> dict[str, object]:
    names = [member.name for member in cluster.members]
    rows, ratio = _row_objects(cluster.rows, len(names)), cluster.ratio and json_object(cluster.ratio, COMPARED)
    return json_object(cluster, _CLUSTER, models=names, rows=rows, ratio=ratio, **files.as_object())


def _row_objects(rows: Sequence[Row], n_models: int) -> list[dict[str, object]]:
    return [json_object(row, _ROW, per_second=row.per_second(n_models)) for row in rows]


def print_result(result: BatchResult, *, to_stderr: bool) -> None:
    """Prints the tables of all clusters."""
    for cluster in result.clusters:
        title = f"{', '.join(member.name for member in cluster.members)} on {result.device_name}"
        if result.cost == "analytic":
            title += " (analytic: computed from the GPU's specification, not measured)"
        _print_rows(cluster, title, to_stderr)
        print_items(cluster.members, _MODEL_COLUMNS, to_stderr=to_stderr)
        print_pairs("in all", _pairs(result, cluster), to_stderr=to_stderr)


def _print_rows(cluster: ClusterResult, title: str, to_stderr: bool) -> None:
    count = len(cluster.members)
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("", lambda row: f"{row.name}{' *' if row.name == cluster.shipped else ''}"),
        ("all models", lambda row: latency_text(row.latency_us)),
        ("expected in" if cluster.document.cost == "analytic" else "95 % interval", _interval_text),
        ("after a rest", lambda row: latency_text(row.rested_us, unknown="")),
        ("per model", lambda row: latency_text(row.latency_us / count)),
        ("models a second", lambda row: f"{row.per_second(count) or 0:,.0f}"),
        ("by", lambda row: row.how),
    ]
    print_items(cluster.rows, columns, title=title, to_stderr=to_stderr)


def _interval_text(row: Row) -> str:
    found = row.latency.interval
    return "" if found is None else f"{latency_text(found.low)} to {latency_text(found.high)}"


def _pairs(result: BatchResult, cluster: ClusterResult) -> list[tuple[str, str]]:
    return [
        ("shipped", f"{cluster.shipped} *: {cluster.reason}"),
        ("batched", f"{count_text(cluster.batched, 'operator')} run as one with those of other models"),
        ("shared", f"{count_text(cluster.shared, 'node')} computed by another model already"),
        ("weights", f"{_mb(cluster.memory.alone_nbytes)} alone, {_mb(cluster.memory.together_nbytes)} together"),
        ("memory", _memory_text(cluster)),
        ("time spent", f"{result.seconds:.1f} s"),
    ]


def _memory_text(cluster: ClusterResult) -> str:
    if cluster.plan_nbytes is None:
        return f"about {_mb(cluster.estimated_nbytes)} with tensors, an estimate"
    return f"{_mb(cluster.plan_nbytes)} with tensors, by the plan"


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"


def estimate_object(found: Estimate) -> dict[str, object]:
    """The object that `batch --dry-run --json` prints."""
    clusters = [json_object(each, _ESTIMATED) for each in found.clusters]
    return json_object(found, f"{_DEVICE} policy memory_limit_nbytes clusters", clusters=clusters)


def print_estimate(found: Estimate) -> None:
    """Prints which models come together, and what they have in common."""
    print_items(found.clusters, _ESTIMATE_COLUMNS, title=f"on {found.device_name}: what 'batch' would put together")
