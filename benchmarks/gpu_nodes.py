"""Counts the nodes and edges of the CUDA graphs of the benchmark networks for GPUs that are only described.

    python benchmarks/gpu_nodes.py [--networks squeezenet,...] [--gpus a100,h100] [--precisions fp32,fp16]
                                   [--choose fewest|default|most] [--state now] [-o results/gpu-nodes.json]
    python benchmarks/gpu_nodes.py --read results/gpu-nodes.json

Nodes are those of the sequential schedule at batch 1: tasks of our plan, and kernels that cuDNN's plans add. Plans are
chosen without timing, and the workspaces of a plan reveal its kernels: tables that a kernel fills, copied slices,
tensors that are converted or transformed by Winograd. Edges are those of the greedy schedule. It needs the libraries of
cudnn_desk.py, and cuDNN 9.10 for a V100 (the newest with code for it). Rows of the same commit and cuDNN are reused.

Options:
    --choose: the variant of choices that a GPU makes by timing: fewest or most kernels, or that without timing
    --state: name of the rows in the table; "before" is bf92a3b5
    --again: compute rows again that the file has
    --read: print the table of a file
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from command_line import read_options
from cudnn_layouts import HERE, Graph, gpu_of, graphs_of, network_of, preferred
from result_tables import Table, print_table
from results_files import keep_results, known_results

from iosched.models.errors import IoschedError
from iosched.models.model import Model
from iosched.models.version import iosched_commit
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.cudnn.cudnn_graph import GpuDescription, load_cudnn
from iosched.runtime.cuda.cudnn.fastest import BUILD_SECONDS, MAX_WORKSPACE_NBYTES
from iosched.runtime.cuda.cudnn.guess import Copied, CudnnPlanGuess, copied_in
from iosched.runtime.cuda.cudnn.plans import build_cudnn_plans
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import Lowering, lower_stage
from iosched.runtime.cuda.part_timer import PartTimer
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Stage, Strategy

NETWORKS = (
    "squeezenet", "inception_v3", "googlenet", "randwire", "nasnet_a", "densenet121", "resnet50", "vgg16"
)  # fmt: skip
HIDDEN = ("tables", "slices", "conversions", "winograd")
GPUS = ("v100", "a100", "h100")
KEY = ("state", "choose", "gpu", "network", "precision")

Row = dict[str, Any]


def main() -> None:
    options = read_options(
        __file__, networks=NETWORKS, gpus=(), precisions=("fp32", "fp16"), choose="fewest", state="now", again=False,
        read=Path, output=Path,
    )  # fmt: skip
    if options.read:
        print_table(*table(known_results(options.read)["rows"]))
        return
    try:
        _count(options)
    except IoschedError as error:
        sys.exit(f"{error}")


def _count(options: Namespace) -> None:
    cudnn = str(load_cudnn().backend_version_string())
    gpus = options.gpus or (["v100"] if load_cudnn().backend_version() < 91100 else ["a100", "h100"])
    code = {"cudnn": cudnn, "commit": iosched_commit()}
    known = {_key(row): row for row in known_results(options.output).get("rows", ())}
    for network in options.networks:
        model = network_of(network)
        for gpu in gpus:
            for precision in options.precisions:
                about = dict(zip(KEY, (options.state, options.choose, gpu, network, precision), strict=True))
                before = known.get(_key(about), {})
                if options.again or {name: before.get(name) for name in code} != code:
                    known[_key(about)] = about | code | _row(model, gpu, precision, options.choose)
                    print(known[_key(about)], file=sys.stderr)
        if options.output:
            rows = [known[key] for key in sorted(known)]
            keep_results(options.output, {"rows": rows}, seeds={}, command=options.command, goes_on=True, in_lines=True)


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] for name in KEY)


def _row(model: Model, gpu: str, precision: str, choose: str) -> Row:
    device = _device(gpu)
    found = _backend(model, device, precision, choose)
    one, several = found.lower(sequential(model.graph)), found.lower(greedy(model.graph))
    hidden = Counter(_hidden(graph, device) for graph in graphs_of(one))
    waits = sum(len(task.waits) for task in several.plan.tasks)
    return {
        "tasks": len(one.plan.tasks),
        **{kind: hidden[kind] for kind in HIDDEN},
        "greedy": {"waits": waits, "joins": sum(map(_is_join(several), several.plan.tasks)), "edges": edges(several)},
    }


@cache
def _device(gpu: str) -> GpuDescription:
    return GpuDescription.from_json((HERE / f"devices/{gpu}.json").read_text(encoding="utf-8"))


class _Counting:
    """`Choices` that prefer few or many kernels."""

    times = True

    def choice(self, key: str) -> None:
        del key

    def choose(self, key: str, value: str) -> str:
        del key
        return value

    def fatal(self, key: str) -> frozenset[str]:
        del key
        return frozenset()

    def trying(self, key: str, name: str) -> AbstractContextManager[None]:
        del key, name
        return nullcontext()


def _backend(model: Model, device: GpuDescription, precision: str, choose: str) -> CudaBackend:
    """The backend of the model, with numbers of kernels in place of latencies."""
    gpu = gpu_of(device)
    computed, layout = preferred(precision, gpu)
    driver: Any = SimpleNamespace(gpu=gpu, l2_nbytes=0)

    def price(kernels: int) -> float:
        return float(kernels) if choose == "fewest" else 1 / (1 + kernels)

    def alone_us(timer: PartTimer, network: LoweredModel, names: Sequence[str]) -> float:
        alone = lower_stage(network, Stage(Strategy.CONCURRENT, (tuple(names),)))
        assert alone is not None
        is_concat = model.graph.by_name[names[-1]].type == "Concat"
        hidden = [_hidden(graph, device) for graph in graphs_of(alone)] if is_concat else []
        return price(len(alone.plan.tasks) + sum(map(bool, hidden)))

    def interleaved_us(timer: PartTimer, networks: Sequence[LoweredModel], *_: object) -> list[list[float]]:
        return [[price(sum(map(len, network.calls.values())))] for network in networks]

    doubles: dict[str, Any] = {"alone_us": alone_us, "interleaved_us": interleaved_us, "prepare": lambda *_: None}
    choices: Any = None if choose == "default" else _Counting()
    with patch.multiple(PartTimer, **doubles):
        return CudaBackend(model, driver, _Counting(), computed, layout=layout, choices=choices)  # type: ignore[arg-type]


@cache
def _hidden(graph: Graph, device: GpuDescription) -> str:
    """Purposes of the chosen plan's additional kernels; "" for none."""
    guess = CudnnPlanGuess.of(*graph.parts, device)
    offer = build_cudnn_plans(
        *graph.parts, device, at_most=1, enough=guess.is_settled, deadline_s=BUILD_SECONDS, precompiled=True,
        max_workspace_nbytes=MAX_WORKSPACE_NBYTES,
    )  # fmt: skip
    if not offer.plans:
        raise IoschedError(f"cuDNN has no engine for {graph.text}: {offer.refusal}")
    plan = guess.best(offer.plans)
    if not plan.workspace_nbytes:
        return ""
    if copied_in(plan.workspace_nbytes, guess.images) is Copied.NOTHING:
        return "tables"
    return {Copied.NOTHING: "winograd", Copied.SLICES: "slices"}.get(guess.copied(plan), "conversions")


def _is_join(lowering: Lowering) -> Any:
    return lambda task: type(lowering.kernels[task.kernel]).__name__ == "JoinNode"


def edges(lowering: Lowering) -> int:
    """Edges of the captured graph: a task follows the previous one in its lane and its waits, or only a join."""
    lanes, is_join = lowering.plan.lanes, _is_join(lowering)

    def before() -> Iterator[list[Any]]:
        for tasks in lanes:
            for step, task in enumerate(tasks):
                own = tasks[step - 1 : step] if step else ()
                yield [*own, *(lanes[wait.lane][wait.steps - 1] for wait in task.waits)]

    return sum(1 if any(map(is_join, tasks)) else len(tasks) for tasks in before())


def table(rows: Sequence[Row]) -> Table:
    """Tasks and kernels added by cuDNN, by network, state, and variant of the timed choices if these differ."""
    columns = sorted({(row["gpu"], row["precision"]) for row in rows}, key=lambda each: (GPUS.index(each[0]), each[1]))
    cells: dict[tuple[int, str, str], dict[tuple[str, str], str]] = {}
    for row in rows:
        line = (NETWORKS.index(row["network"]), row["state"], row["choose"])
        cells.setdefault(line, {})[row["gpu"], row["precision"]] = _cell(row)
    lines = []
    for (network, state, choose), found in sorted(cells.items()):
        if choose == "fewest" or found != cells.get((network, state, "fewest")):
            lines.append([NETWORKS[network], state, choose, *(found.get(column, "") for column in columns)])
    return ["network", "state", "choices", *(" ".join(column) for column in columns)], lines


def _cell(row: Row) -> str:
    return f"{row['tasks']}{''.join(f'+{row[kind]}{kind[0]}' for kind in HIDDEN if row[kind])}"


def edge_table(rows: Sequence[Row]) -> Table:
    """The greedy schedule by network and state, in fp32 on an H100, without timed choices."""
    found = [row for row in rows if (row["gpu"], row["precision"], row["choose"]) == ("h100", "fp32", "default")]
    found.sort(key=lambda row: (NETWORKS.index(row["network"]), row["state"]))
    lines = [[row["network"], row["state"], *map(str, row["greedy"].values())] for row in found]
    return ["network", "state", "waits between lanes", "empty nodes", "edges"], lines


if __name__ == "__main__":
    main()
