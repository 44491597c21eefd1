"""Which plans of cuDNN convert their tensors in every run: cuDNN's first choice and the one that is taken untimed.

    python benchmarks/cudnn_layouts.py [--device benchmarks/devices/h100.json] [--precisions fp32,tf32,fp16]
                                       [--batch-sizes 1,16] [--networks squeezenet,...] [-o results.json]
    python benchmarks/cudnn_layouts.py --read results.json ...

Lowers the networks of the zoo in both layouts of images, builds the plans of each different graph for a GPU that is
only described, as the runtime does where nothing may be timed, and prints tables in Markdown: what these plans copy in
their workspaces; that before (cuDNN's first choice in NHWC) and now (the guess in the layout that is preferred); and
the graphs for which no tuned plan goes without copies of tensors. It needs what cudnn_desk.py needs, and nothing with
`--read`.

Options:
    --device: description of a GPU
    --read: results to make tables of
    --output: file for all rows
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cudnn_graphs import Graph, all_graphs, gpu_of, network_of, preferred
from testbed import known_results, markdown_table, read_options, write_results

from iosched.models.errors import IoschedError
from iosched.models.zoo import names
from iosched.runtime.cuda.cudnn.fastest import BUILD_SECONDS, MOST_WORKSPACE_NBYTES
from iosched.runtime.cuda.cudnn.guess import Copied, CudnnPlanGuess, is_generic
from iosched.runtime.cuda.cudnn.plans import BuiltCudnnPlan, build_cudnn_plans
from iosched.runtime.cuda.cudnn.target import GpuDescription, load_cudnn
from iosched.runtime.cuda.layout import Layout
from iosched.scheduler.precision import PRECISIONS

HERE = Path(__file__).parent
KINDS = ("nothing", "slices", "generic", "tensors")
"""What a plan copies, where it is not of a generic engine, which copies nothing; the best first."""

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
    print("\n".join((*table(found), "", *before_and_now(found), "", *left(found))))


def _columns(found: Row) -> Row:
    """What `read` reads."""
    rows = found["graphs"]
    return {"about": found["about"], "columns": list(rows[0]), "graphs": [list(row.values()) for row in rows]}


def read(path: Path) -> Row:
    content = known_results(path)
    rows = [dict(zip(content["columns"], row, strict=True)) for row in content["graphs"]]
    return {"about": content["about"], "graphs": rows}


def _built(options: Namespace) -> Row:
    """One row for each different graph and layout."""
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
        most_workspace_nbytes=MOST_WORKSPACE_NBYTES,
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


def _cells(found: Sequence[Row]) -> Iterator[tuple[str, str, int, str, list[Row]]]:
    """GPU, precision, batch size and layout with their rows."""
    for each in found:
        about, rows = each["about"], each["graphs"]
        for key in dict.fromkeys((row["precision"], row["batch_size"], row["layout"]) for row in rows):
            of_cell = [row for row in rows if (row["precision"], row["batch_size"], row["layout"]) == key]
            yield f"{about['device']}, cuDNN {about['cudnn']}", *key, of_cell


def table(found: Sequence[Row]) -> Iterator[str]:
    headers = ["GPU", "precision", "batch", "layout", "graphs", f"first: {', '.join(KINDS)}", "taken: the same"]
    cells = []
    for gpu, precision, batch_size, layout, rows in _cells(found):
        text = f"**{layout.upper()}**" if rows[0]["preferred"] else layout.upper()
        counts = (_counts(rows, which) for which in ("first", "taken"))
        cells.append([gpu, precision, str(batch_size), text, str(len(rows)), *counts])
    yield from markdown_table(headers, cells).splitlines()


def _counts(rows: Sequence[Row], which: str) -> str:
    counts = Counter(row[f"{which}_copies"] for row in rows)
    return ", ".join(str(counts[kind]) for kind in KINDS)


def before_and_now(found: Sequence[Row]) -> Iterator[str]:
    """Conversions as the runtime was, and as it is."""
    yield "| GPU | precision | graphs before | convert | generic | graphs now | convert | generic |"
    yield "|---|---|---|---|---|---|---|---|"
    for each in found:
        for precision in dict.fromkeys(row["precision"] for row in each["graphs"]):
            rows = [row for row in each["graphs"] if row["precision"] == precision]
            before = [row["first_copies"] for row in rows if row["layout"] == Layout.NHWC.value]
            now = [row["taken_copies"] for row in rows if row["preferred"]]
            counts = (len(before), before.count("tensors"), before.count("generic"),
                      len(now), now.count("tensors"), now.count("generic"))  # fmt: skip
            yield f"| {each['about']['device']} | {precision} | {' | '.join(map(str, counts))} |"


def left(found: Sequence[Row]) -> Iterator[str]:
    """Graphs whose plan copies tensors or is generic, in the layout that is preferred: images and filters."""
    yield "| GPU | precision | network | plan | images, filters |"
    yield "|---|---|---|---|---|"
    graphs: dict[tuple[str, ...], list[str]] = {}
    for each in found:
        for row in each["graphs"]:
            if row["preferred"] and row["taken_copies"] in ("tensors", "generic"):
                key = (each["about"]["device"], row["precision"], row["network"], row["taken_copies"])
                graphs.setdefault(key, []).append(", ".join(_SHAPE.findall(row["graph"])[:2]))
    for key, texts in graphs.items():
        yield f"| {' | '.join(key)} | {'; '.join(texts)} |"


if __name__ == "__main__":
    main()
