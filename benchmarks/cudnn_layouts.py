"""Lists cuDNN plans that convert their tensors in every run: cuDNN's first choice, and the plan chosen without timing.

    python benchmarks/cudnn_layouts.py [--device benchmarks/devices/h100.json] [--precisions fp32,tf32,fp16]
                                       [--batch-sizes 1,16] [--networks squeezenet,...] [-o results.json]
    python benchmarks/cudnn_layouts.py --read results.json ...

It lowers the networks of the zoo in both image layouts and builds the plans of each distinct graph for a GPU that is
only described, as the runtime does where timing is impossible. The Markdown tables have the bytes that these plans copy
in their workspaces; the same before (cuDNN's first choice in NHWC) and now (the choice in the preferred layout); and
the graphs for which every tuned plan copies tensors. It needs the libraries of cudnn_desk.py; `--read` needs none.

Options:
    --device: description of a GPU
    --read: results to make tables of
    --output: file for all rows
"""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from command_line import read_options
from result_tables import Table, print_table
from results_files import RESULTS, known_results, write_results

from iosched import Model, Stage, Strategy, load_model
from iosched.models.errors import IoschedError
from iosched.models.zoo import build, names
from iosched.models.zoo.light import NAMES, light_model
from iosched.runtime.cuda.cudnn.cudnn_graph import GpuDescription, load_cudnn
from iosched.runtime.cuda.cudnn.fastest import BUILD_SECONDS, MAX_WORKSPACE_NBYTES
from iosched.runtime.cuda.cudnn.guess import Copied, CudnnPlanGuess, is_generic
from iosched.runtime.cuda.cudnn.plans import BuiltCudnnPlan, build_cudnn_plans
from iosched.runtime.cuda.kernel import CudnnKernel, Gpu, Precision
from iosched.runtime.cuda.kernels.conv import Conv
from iosched.runtime.cuda.layout import Layout, preferred_layout
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import Lowering, lower, lower_stage
from iosched.runtime.plan import View
from iosched.scheduler.baselines import sequential
from iosched.scheduler.precision import PRECISIONS, precision_named
from iosched.scheduler.strategies import merge_classes


@dataclass(frozen=True)
class Graph:
    """A kernel with its tensors, independent of their addresses."""

    kernel: CudnnKernel
    reads: tuple[View, ...]
    writes: tuple[View, ...]

    @property
    def parts(self) -> tuple[CudnnKernel, tuple[View, ...], tuple[View, ...]]:
        """The kernel, its inputs and its outputs."""
        return self.kernel, self.reads, self.writes

    @property
    def is_sliced(self) -> bool:
        """Whether it reads or writes a part of a wider tensor."""
        return any(_is_slice(view) for view in (*self.reads, *self.writes))

    @property
    def text(self) -> str:
        """For people."""
        shapes = " ".join("x".join(map(str, view.shape or ())) for view in (*self.reads[:2], *self.writes))
        return f"{_kernel_text(self.kernel)} {shapes}{' sliced' if self.is_sliced else ''}"


def all_names() -> list[str]:
    """Networks of the zoo, and the onnx package's with drawn weights."""
    return [*names(), *(f"light_{name}" for name in NAMES)]


def network_of(name: str, batch_size: int = 1) -> Model:
    """The network of that name."""
    proto = light_model(name) if name.startswith("light_") else build(name)
    return load_model(proto.SerializeToString(), name=name, batch_size=batch_size)


def gpu_of(device: GpuDescription) -> Gpu:
    """The lowering's view of a described GPU."""
    return Gpu(device.sm_version, json.loads(device.properties)["multiProcessorCount"])


def preferred(precision: str, gpu: Gpu) -> tuple[Precision, Layout]:
    """The precision of that name, and its preferred layout of images.

    Raises:
        UsageError: there is no such precision.
    """
    name = precision_named(precision)
    return Precision(name), preferred_layout(name, gpu)


def all_graphs(model: Model, precision: Precision, layout: Layout, gpu: Gpu) -> dict[Graph, bool]:
    """Every distinct graph of the model under any schedule, and whether it is of merged convolutions."""
    network = LoweredModel(model, precision, layout, gpu=gpu)
    found = dict.fromkeys(graphs_of(lower(network, sequential(model.graph))), False)
    for members in merge_classes(model.graph, model.graph.by_name):
        lowering = lower_stage(network, Stage(Strategy.MERGE, tuple((name,) for name in members)))
        for graph in graphs_of(lowering) if lowering else ():
            found.setdefault(graph, True)
    return found


def graphs_of(lowering: Lowering) -> Iterator[Graph]:
    """The graphs of a plan, in its order."""
    for task in (task for lane in lowering.plan.lanes for task in lane):
        kernel = lowering.kernels[task.kernel]
        if isinstance(kernel, CudnnKernel):
            yield Graph(kernel, tuple(map(_anywhere, task.reads)), tuple(map(_anywhere, task.writes)))


def _anywhere(view: View) -> View:
    """The view with its alignment instead of its address."""
    return replace(view, buffer="", offset=view.offset % 16)


def _is_slice(view: View) -> bool:
    item = 2 if view.dtype == "float16" else 4
    return view.strides is not None and view.strides not in {each.strides_of(view.shape or (), item) for each in Layout}


def _kernel_text(kernel: CudnnKernel) -> str:
    if not isinstance(kernel, Conv):
        return type(kernel).__name__
    parts = [f"Conv stride {kernel.strides} pads {kernel.pads}"]
    parts += [f"groups {kernel.groups}"] if kernel.groups > 1 else []
    parts += ["+ residual"] if kernel.residual else []
    parts += ["+ bias"] if kernel.bias else []
    parts += [kernel.activation.type] if kernel.activation.type else []
    return " ".join(parts)


HERE = Path(__file__).parent
KINDS = ("nothing", "slices", "generic", "tensors")
"""Copies of a plan, best first; a generic engine copies nothing."""

_SHAPE = re.compile(r"[0-9]+(?:x[0-9]+)+")

Row = dict[str, Any]


def main() -> None:
    several = {"type": Path, "nargs": "+", "default": []}
    options = read_options(
        __file__, networks=tuple(names()), precisions=tuple(PRECISIONS), batch_sizes=(1, 16), read=several,
        device=HERE / "devices/h100.json", output=Path,
    )  # fmt: skip
    try:
        found = [read(path) for path in options.read] or [_built(options)]
    except IoschedError as error:
        sys.exit(f"{error}")
    write_results(options, _columns(found[0]), seeds={}, in_lines=True)
    for each in (table, before_and_now, left):
        print_table(*each(found))


def _columns(found: Row) -> Row:
    """The content of a results file, which `read` reads."""
    rows = found["graphs"]
    return {"about": found["about"], "columns": list(rows[0]), "graphs": [list(row.values()) for row in rows]}


def read(path: Path) -> Row:
    content = known_results(path)
    rows = [dict(zip(content["columns"], row, strict=True)) for row in content["graphs"]]
    return {"about": content["about"], "graphs": rows}


def _built(options: Namespace) -> Row:
    """One row for each distinct graph and layout."""
    device = GpuDescription.from_json(options.device.read_text(encoding="utf-8"))
    gpu, known, rows = gpu_of(device), set[Graph](), list[Row]()
    for name in options.networks:
        for batch_size in options.batch_sizes:
            model = network_of(name, batch_size)
            for text in options.precisions:
                precision, better = preferred(text, gpu)
                for layout in Layout:
                    new = [graph for graph in all_graphs(model, precision, layout, gpu) if graph not in known]
                    known.update(new)
                    about = {"network": name, "batch_size": batch_size, "precision": text, "layout": layout.value}
                    about["preferred"] = layout is better
                    rows += [about | _row(graph, device) for graph in new]
            print(f"{name}, batch {batch_size}: {len(rows)} graphs and layouts so far", file=sys.stderr)
    return {"about": {"device": device.name, "cudnn": load_cudnn().backend_version_string()}, "graphs": rows}


def _row(graph: Graph, device: GpuDescription) -> Row:
    guess = CudnnPlanGuess.of(*graph.parts, device)
    offer = build_cudnn_plans(
        *graph.parts, device, at_most=1, enough=guess.is_settled, deadline_s=BUILD_SECONDS, precompiled=True,
        max_workspace_nbytes=MAX_WORKSPACE_NBYTES,
    )  # fmt: skip
    if not offer.plans:
        raise IoschedError(f"cuDNN has no engine for {graph.text}: {offer.refusal}")
    first, taken = offer.plans[0], guess.best(offer.plans)
    return {
        "graph": graph.text,
        "offered": offer.offered,
        "built": len(offer.plans),
        "build_ms": round(sum(plan.build_ms for plan in offer.plans), 1),
        **_facts("first", first, guess),
        **_facts("taken", taken, guess),
    }


def _facts(which: str, plan: BuiltCudnnPlan, guess: CudnnPlanGuess) -> Row:
    copied = guess.copied(plan)
    return {
        which: plan.name,
        f"{which}_workspace_nbytes": plan.workspace_nbytes,
        f"{which}_copies": "generic" if is_generic(plan.name) and copied is Copied.NOTHING else copied.name.lower(),
        f"{which}_tensor_cores": guess.uses_tensor_cores is not None and guess.uses_tensor_cores(plan),
    }


def of_gpus(kind: str, *gpus: str) -> Table:
    """One of the tables for the results of some GPUs."""
    made = {"before and now": before_and_now, "left": left}.get(kind, table)
    headers, rows = made([read(RESULTS / f"cudnn-layouts-{gpu}.json") for gpu in gpus])
    return headers, [row for row in rows if kind != "fp32" or row[1] == "fp32"]


def _cells(found: Sequence[Row]) -> Iterator[tuple[str, str, int, str, list[Row]]]:
    """GPU, precision, batch size and layout with their rows."""
    for each in found:
        about, rows = each["about"], each["graphs"]
        for key in dict.fromkeys((row["precision"], row["batch_size"], row["layout"]) for row in rows):
            of_cell = [row for row in rows if (row["precision"], row["batch_size"], row["layout"]) == key]
            yield f"{about['device']}, cuDNN {about['cudnn']}", *key, of_cell


def table(found: Sequence[Row]) -> Table:
    headers = ["GPU", "precision", "batch", "layout", "graphs", f"first: {', '.join(KINDS)}", "taken: the same"]
    cells = []
    for gpu, precision, batch_size, layout, rows in _cells(found):
        text = f"**{layout.upper()}**" if rows[0]["preferred"] else layout.upper()
        counts = (_counts(rows, which) for which in ("first", "taken"))
        cells.append([gpu, precision, str(batch_size), text, str(len(rows)), *counts])
    return headers, cells


def _counts(rows: Sequence[Row], which: str) -> str:
    counts = Counter(row[f"{which}_copies"] for row in rows)
    return ", ".join(str(counts[kind]) for kind in KINDS)


def before_and_now(found: Sequence[Row]) -> Table:
    """Conversions of the earlier and of the current runtime."""
    cells = []
    for each in found:
        for precision in dict.fromkeys(row["precision"] for row in each["graphs"]):
            rows = [row for row in each["graphs"] if row["precision"] == precision]
            before = [row["first_copies"] for row in rows if row["layout"] == Layout.NHWC.value]
            now = [row["taken_copies"] for row in rows if row["preferred"]]
            counts = (n for part in (before, now) for n in (len(part), part.count("tensors"), part.count("generic")))
            cells.append([each["about"]["device"], precision, *map(str, counts)])
    headers = ["GPU", "precision", "graphs before", "convert", "generic", "graphs now", "convert", "generic"]
    return headers, cells


def left(found: Sequence[Row]) -> Table:
    """Graphs whose plan copies tensors or is generic, in the preferred layout: images and filters."""
    graphs: dict[tuple[str, ...], list[str]] = {}
    for each in found:
        for row in each["graphs"]:
            if row["preferred"] and row["taken_copies"] in ("tensors", "generic"):
                key = (each["about"]["device"], row["precision"], row["network"], row["taken_copies"])
                graphs.setdefault(key, []).append(", ".join(_SHAPE.findall(row["graph"])[:2]))
    rows = [[*key, "; ".join(texts)] for key, texts in graphs.items()]
    return ["GPU", "precision", "network", "plan", "images, filters"], rows


if __name__ == "__main__":
    main()
