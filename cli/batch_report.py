"""What `iosched batch` says of its result: the JSON object, and the tables for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from iosched.cli.tables import print_columns, print_pairs
from iosched.cli.words import count_text, latency_text

if TYPE_CHECKING:
    from iosched.cli.output import Destination
    from iosched.jobs.batch import BatchResult, ClusterResult
    from iosched.jobs.batching.estimate import ClusterEstimate, Estimate
    from iosched.jobs.batching.result import Row
    from iosched.models.composition.compose import WeightsMemory


@dataclass(frozen=True)
class Written:
    """Where a model and its schedule are written; the schedule is inside the model, too."""

    model: Destination
    schedule: Destination | None


def as_object(result: BatchResult, outputs: list[Written]) -> dict[str, object]:
    """The object that `batch --json` prints; scripts rely on its keys."""
    clusters = zip(result.clusters, outputs, strict=True)
    return {
        "outputs": [str(each.model) for each in outputs],
        "models": [
            {"name": member.name, "nodes": member.n_nodes, "latency_us": member.latency_us}
            for cluster in result.clusters
            for member in cluster.members
        ],
        "device": {"kind": result.device_kind, "name": result.device_name},
        "cost": result.cost,
        "clusters": [_cluster_object(cluster, files) for cluster, files in clusters],
        "batched": sum(cluster.batched for cluster in result.clusters),
        "shared": sum(cluster.shared for cluster in result.clusters),
        "rows": [_row_object(row, result.n_models) for row in result.rows],
        "shipped": result.shipped,
        "memory_nbytes": _memory_object(result.memory),
        "left_out": dict(result.left_out),
        "notes": list(result.notes),
        "seconds": result.seconds,
    }


def _cluster_object(cluster: ClusterResult, files: Written) -> dict[str, object]:
    return {
        "models": [member.name for member in cluster.members],
        "output": str(files.model),
        "schedule": None if files.schedule is None else str(files.schedule),
        "batched": cluster.batched,
        "shared": cluster.shared,
        "rows": [_row_object(row, len(cluster.members)) for row in cluster.rows],
        "shipped": cluster.shipped,
        "reason": cluster.reason,
        "ratio": None if cluster.ratio is None else asdict(cluster.ratio),
        "memory_nbytes": _memory_object(cluster.memory),
        "estimated_nbytes": cluster.estimated_nbytes,
        "plan_nbytes": cluster.plan_nbytes,
        "notes": list(cluster.notes),
    }


def _row_object(row: Row, n_models: int) -> dict[str, object]:
    return {
        "name": row.name,
        "latency_us": row.latency_us,
        "per_second": per_second(row, n_models),
        "low": row.low_us,
        "high": row.high_us,
        "after_rest_us": row.rested_us,
        "how": row.how,
    }


def _memory_object(memory: WeightsMemory) -> dict[str, object]:
    return {"alone": memory.alone_nbytes, "together": memory.together_nbytes}


def per_second(row: Row, n_models: int) -> float | None:
    """How many times a model runs each second, of all that run once in a row's latency."""
    return n_models / row.latency_us * 1e6 if row.latency_us else None


def print_result(result: BatchResult, *, to_stderr: bool) -> None:
    """Prints the tables of all clusters."""
    for cluster in result.clusters:
        title = f"{', '.join(member.name for member in cluster.members)} on {result.device_name}"
        if result.cost == "analytic":
            title += " (analytic: computed from the GPU's specification, not measured)"
        _print_rows(cluster, title, to_stderr)
        _print_models(cluster, to_stderr)
        print_pairs("in all", _pairs(result, cluster), to_stderr=to_stderr)


def _print_rows(cluster: ClusterResult, title: str, to_stderr: bool) -> None:
    count = len(cluster.members)
    headers = ["", "all models", "95 % interval", "after a rest", "per model", "models a second", "by"]
    if cluster.document.cost == "analytic":
        headers[2] = "expected in"
    rows = [
        [
            f"{row.name}{' *' if row.name == cluster.shipped else ''}",
            latency_text(row.latency_us),
            "" if row.low_us is None else f"{latency_text(row.low_us)} to {latency_text(row.high_us)}",
            "" if row.rested_us is None else latency_text(row.rested_us),
            latency_text(row.latency_us / count),
            f"{per_second(row, count) or 0:,.0f}",
            row.how,
        ]
        for row in cluster.rows
    ]
    print_columns(headers, rows, title=title, to_stderr=to_stderr)


def _print_models(cluster: ClusterResult, to_stderr: bool) -> None:
    rows = [
        [member.name, f"{member.n_nodes:,}", latency_text(member.latency_us, unknown="")] for member in cluster.members
    ]
    print_columns(["model", "nodes", "alone, by its own schedule"], rows, to_stderr=to_stderr)


def _pairs(result: BatchResult, cluster: ClusterResult) -> list[tuple[str, str]]:
    return [
        ("shipped", f"{cluster.shipped} *: {cluster.reason}"),
        ("batched", f"{count_text(cluster.batched, 'operator')} run as one with those of other models"),
        ("shared", f"{count_text(cluster.shared, 'node')} computed by another model already"),
        ("weights", _weights_text(cluster.memory)),
        ("memory", _memory_text(cluster)),
        ("time spent", f"{result.seconds:.1f} s"),
    ]


def _weights_text(memory: WeightsMemory) -> str:
    return f"{memory.alone_nbytes / 1e6:,.1f} MB alone, {memory.together_nbytes / 1e6:,.1f} MB together"


def _memory_text(cluster: ClusterResult) -> str:
    if cluster.plan_nbytes is None:
        return f"about {cluster.estimated_nbytes / 1e6:,.1f} MB with tensors, an estimate"
    return f"{cluster.plan_nbytes / 1e6:,.1f} MB with tensors, by the plan"


def estimate_object(found: Estimate) -> dict[str, object]:
    """The object that `batch --dry-run --json` prints; scripts rely on its keys."""
    return {
        "device": {"kind": found.device_kind, "name": found.device_name},
        "cost": found.cost,
        "policy": found.policy,
        "memory_limit_nbytes": found.memory_limit_nbytes,
        "clusters": [
            {
                "models": list(each.names),
                "operators": each.operators,
                "alike": each.alike,
                "shared": each.shared,
                "memory_nbytes": {"alone": each.alone_nbytes, "together": each.together_nbytes},
            }
            for each in found.clusters
        ],
    }


def print_estimate(found: Estimate) -> None:
    """Prints which models come together, and what they have in common."""
    headers = ["models", "operators", "alike at most", "shared nodes", "memory alone", "together"]
    title = f"on {found.device_name}: what 'batch' would put together"
    print_columns(headers, [_estimate_row(each) for each in found.clusters], title=title)


def _estimate_row(each: ClusterEstimate) -> list[str]:
    memory = (f"{nbytes / 1e6:,.1f} MB" for nbytes in (each.alone_nbytes, each.together_nbytes))
    return [", ".join(each.names), *(f"{count:,}" for count in (each.operators, each.alike, each.shared)), *memory]
