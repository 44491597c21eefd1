"""Builds every cuDNN graph that the CUDA runtime makes for the benchmark networks, on a machine without a GPU.

    python benchmarks/cudnn_desk.py [--networks squeezenet,light_resnet50,...] [--precisions fp32,tf32,fp16]
                                    [--device benchmarks/devices/h100.json] [--batch-sizes 1,16] [--variants]
                                    [--stored] [-o results.json]

It needs cuDNN, its Python frontend and a `libcuda.so.1`: a driver, or the compiled `devices/standin_driver.c`, which
answers the few calls of a build. A plan that builds may still fail to run; one that does not build will not run.
`--variants` instead prints cuDNN's plans for single kernels that the runtime could use, as in
reports/cudnn-coverage.md. `--stored` prints the time to choose, rebuild and load plans.

Options:
    --networks: comma-separated; all of the zoo and light_* by default
    --device: description of a GPU
    --at-most: plans to build for each graph
    --variants: single kernels instead of networks
    --stored: time to build, rebuild and load
    --output: file for all rows
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from command_line import read_options
from cudnn_layouts import Graph, all_graphs, all_names, gpu_of, graphs_of, network_of, preferred
from result_tables import print_table, table_of
from results_files import write_results

from iosched.models.errors import IoschedError
from iosched.models.zoo import names
from iosched.runtime.cuda.cudnn.cudnn_graph import GpuDescription, is_aligned, load_cudnn
from iosched.runtime.cuda.cudnn.plans import (
    BuiltCudnnPlan,
    CudnnOffer,
    build_cudnn_plans,
    load_cudnn_plan,
    rebuild_cudnn_plan,
)
from iosched.runtime.cuda.kernel import CudnnKernel, Precision
from iosched.runtime.cuda.kernels.conv import Conv
from iosched.runtime.cuda.kernels.product import Dense, MatMul
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import lower
from iosched.runtime.cuda.source.activation import IDENTITY, RELU
from iosched.runtime.plan import View
from iosched.scheduler.baselines import sequential
from iosched.scheduler.precision import PRECISIONS

HERE = Path(__file__).parent


def main() -> None:
    options = read_options(
        __file__, networks=(), precisions=tuple(PRECISIONS), batch_sizes=(1,), device=HERE / "devices/h100.json",
        at_most=2, variants=False, stored=False, output=Path,
    )  # fmt: skip
    device = GpuDescription.from_json(options.device.read_text(encoding="utf-8"))
    try:
        print(f"cuDNN {load_cudnn().backend_version_string()} for {device.name}", file=sys.stderr)
        if options.variants:
            _print_variants(device, options.precisions)
            return
        rows = _stored(options, device) if options.stored else _check_networks(options, device)
    except IoschedError as error:
        sys.exit(f"{error}")
    about = {"device": device.name, "cudnn": load_cudnn().backend_version_string()}
    write_results(options, {"about": about, "graphs": rows}, seeds={}, in_lines=True)
    sys.exit(not options.stored and any(not row["built"] for row in rows))


def _check_networks(options: Namespace, device: GpuDescription) -> list[dict[str, object]]:
    """Prints one line for each network, batch size and precision; returns one row for each different graph."""
    known: dict[Graph, dict[str, object]] = {}
    gpu = gpu_of(device)
    print(f"{'network':<20} batch precision graphs sliced grouped merged  none misaligned slowest build s")
    for name in options.networks or all_names():
        for batch_size in options.batch_sizes:
            model = network_of(name, batch_size)
            for precision in options.precisions:
                graphs = all_graphs(model, *preferred(precision, gpu), gpu)
                for graph in graphs:
                    if graph not in known:
                        known[graph] = _row(graph, _offer(graph, device, options.at_most))
                    known[graph].setdefault("network", name)
                _print_line(f"{name:<20} {batch_size:5d} {precision:<9}", graphs, known)
    return list(known.values())


def _offer(graph: Graph, device: GpuDescription, at_most: int) -> CudnnOffer:
    if not all(map(is_aligned, (*graph.reads, *graph.writes))):
        return CudnnOffer((), 0, "a tensor does not begin at a multiple of 16 bytes")
    return build_cudnn_plans(graph.kernel, graph.reads, graph.writes, device, at_most=at_most)


def _print_line(title: str, graphs: dict[Graph, bool], known: dict[Graph, dict[str, object]]) -> None:
    rows = [known[graph] for graph in graphs]
    sliced = sum(graph.is_sliced for graph in graphs)
    grouped = sum(isinstance(graph.kernel, Conv) and graph.kernel.groups > 1 for graph in graphs)
    none = sum(not row["built"] for row in rows)
    misaligned = sum(not all(map(is_aligned, (*graph.reads, *graph.writes))) for graph in graphs)
    slowest = max((float(str(row["build_s"])) for row in rows), default=0)
    counts = f"{len(rows):6d} {sliced:6d} {grouped:7d} {sum(graphs.values()):6d} {none:5d} {misaligned:10d}"
    print(f"{title} {counts} {slowest:8.2f}", flush=True)
    for row in rows:
        if not row["built"]:
            print(f"    no engine for {row['graph']}: {row['refusal']}", flush=True)


def _row(graph: Graph, offer: CudnnOffer) -> dict[str, object]:
    first = offer.plans[0] if offer.plans else None
    return {
        "graph": graph.text,
        "precision": graph.kernel.precision.name,
        "offered": offer.offered,
        "built": len(offer.plans),
        "first": first.name if first else None,
        "workspace_nbytes": first.workspace_nbytes if first else 0,
        "build_s": round(sum(plan.build_ms for plan in offer.plans) / 1e3, 3),
        "refusal": offer.refusal,
    }


# Kernels that the runtime could generate, on (1, 64, 28, 28).


def _variants(precision: Precision) -> Iterator[tuple[str, CudnnKernel, tuple[View, ...], tuple[View, ...]]]:
    same = Conv((1, 1), (1, 1, 1, 1), activation=RELU, precision=precision)
    point = replace(same, pads=(0, 0, 0, 0))
    item = 2 if precision.dtype == "float16" else 4
    wide = 256 * item

    def image(pitch: int | None = None, channels: int = 64) -> View:
        shape = (1, channels, 28, 28)
        width = pitch or channels * item
        return _view(shape, precision, (28 * 28 * width, item, 28 * width, width))

    weight, bias = _view((64, 3, 3, 64), precision), _view((64,), precision)
    dense = (image(), weight, bias)
    yield "conv + bias", replace(same, activation=IDENTITY), dense, (image(),)
    yield "conv + bias, ReLU", same, dense, (image(),)
    yield "conv", replace(same, bias=False, activation=IDENTITY), dense[:2], (image(),)
    yield "conv, ReLU without a bias", replace(same, bias=False), dense[:2], (image(),)
    yield "conv + residual + bias, ReLU", replace(same, residual=True), (*dense, image()), (image(),)
    yield "the same, residual in a wider tensor", replace(same, residual=True), (*dense, image(wide)), (image(),)
    yield "conv + bias, ReLU, into a slice of channels", same, dense, (image(wide),)
    yield "conv + bias, ReLU, from a slice of channels", same, (image(wide), weight, bias), (image(),)
    eight, each, ones = (_view(shape, precision) for shape in ((64, 3, 3, 8), (64, 3, 3, 1), (64, 1, 1, 64)))
    before = replace(point, leading_relu=True, activation=IDENTITY)
    yield "conv + bias, ReLU, of 8 groups", replace(same, groups=8), (image(), eight, bias), (image(),)
    yield "depthwise conv + bias, ReLU", replace(same, groups=64), (image(), each, bias), (image(),)
    yield "ReLU before a pointwise conv + bias", before, (image(), ones, bias), (image(),)
    yield from _lines_and_solids(precision)
    for title, operation in _ACTIVATIONS.items():
        yield f"conv + bias, {title}", _InsteadOfRelu(same, operation), dense, (image(),)
    x, w, b, y = (_view(shape, precision) for shape in ((16, 2048), (1000, 2048), (1000,), (16, 1000)))
    yield "dense layer + bias, ReLU", Dense(True, RELU, precision), (x, w, b), (y,)
    batch = _view((12, 64, 64), precision)
    yield "matmul of computed matrices in batches", MatMul(precision), (batch, batch), (batch,)


def _lines_and_solids(precision: Precision) -> Iterator[tuple[str, CudnnKernel, tuple[View, ...], tuple[View, ...]]]:
    """Convolutions of (2, 64, 784) and of (2, 64, 8, 14, 14), which lie row-major, by 3 and by 3x3x3."""
    for title, space in (("line", (784,)), ("solid", (8, 14, 14))):
        axes = len(space)
        kernel = Conv((1,) * axes, (1, 1) * axes, (1,) * axes, activation=RELU, precision=precision)
        y, bias = _view((2, 64, *space), precision), _view((64,), precision)
        reads = y, _view((64, 64, *(3,) * axes), precision), bias
        item = 2 if precision.dtype == "float16" else 4
        strides = [item * prod(space), *(item * prod(space[axis:]) for axis in range(1, axes + 1))]
        wide = replace(y, strides=(128 * strides[0], *strides))
        with_residual = replace(kernel, residual=True)
        yield f"{title}: conv + bias, ReLU", kernel, reads, (y,)
        yield f"{title}: conv", replace(kernel, bias=False, activation=IDENTITY), reads[:2], (y,)
        yield f"{title}: conv + residual + bias, ReLU", with_residual, (*reads, y), (y,)
        yield f"{title}: the same, residual in a wider tensor", with_residual, (*reads, wide), (y,)
        yield f"{title}: conv + bias, ReLU, into a slice of channels", kernel, reads, (wide,)
        for name, groups in (("conv + bias, ReLU, of 8 groups", 8), ("depthwise conv + bias, ReLU", 64)):
            weight = _view((64, 64 // groups, *(3,) * axes), precision)
            yield f"{title}: {name}", replace(kernel, groups=groups), (y, weight, bias), (y,)


_ACTIVATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "ReLU up to 6": lambda graph, x: graph.relu(input=x, lower_clip=0.0, upper_clip=6.0),
    "LeakyRelu": lambda graph, x: graph.relu(input=x, negative_slope=0.1),
    "Sigmoid": lambda graph, x: graph.sigmoid(input=x),
    "Tanh": lambda graph, x: graph.tanh(input=x),
    "Elu": lambda graph, x: graph.elu(input=x),
    "Gelu": lambda graph, x: graph.gelu(input=x),
    "Softplus": lambda graph, x: graph.softplus(input=x),
    "Swish": lambda graph, x: graph.swish(input=x),
}


@dataclass(frozen=True)
class _InsteadOfRelu:
    """The graph of a kernel with another operation where it has its ReLU. See `CudnnKernel`."""

    kernel: Conv
    operation: Callable[[Any, Any], Any]

    @property
    def precision(self) -> Precision:
        return self.kernel.precision

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        raise NotImplementedError("for looking at engines alone")

    def build(self, graph: Any, reads: Sequence[View], writes: Sequence[View]) -> None:
        self.kernel.build(_WithoutRelu(graph, self.operation), reads, writes)


@dataclass(frozen=True)
class _WithoutRelu:
    """A `cudnn.pygraph` that adds another operation when it is asked for a ReLU."""

    graph: Any
    operation: Callable[[Any, Any], Any]

    def relu(self, **given: Any) -> Any:
        return self.operation(self.graph, given["input"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.graph, name)


def _print_variants(device: GpuDescription, precisions: list[str]) -> None:
    """A table in Markdown: engine configurations offered, the engines, seconds to build the first."""
    cells: dict[str, list[str]] = {}
    for precision in precisions:
        for title, kernel, reads, writes in _variants(Precision(precision)):
            # In strict float32, only building shows which configurations are allowed.
            at_most = None if precision == "fp32" else 1
            started = time.perf_counter()
            offer = build_cudnn_plans(kernel, reads, writes, device, at_most=at_most)
            seconds = (time.perf_counter() - started) / max(len(offer.plans), 1)
            cells.setdefault(title, []).append(f"{offer.offered}, {seconds:.1f} s" if offer.plans else "none")
    print_table(["kernel", *precisions], [[title, *row] for title, row in cells.items()])


def _stored(options: Namespace, device: GpuDescription) -> list[dict[str, Any]]:
    """A table in Markdown: seconds to build all candidates, one plan again, or to load it instead."""
    titles = ("network", "precision", "kernels", "plans", "nameless", "all built, s", "one built again, ms",
              "one loaded, ms", "KB")  # fmt: skip
    rows, gpu = [], gpu_of(device)
    for name in options.networks or names():
        model = network_of(name)
        for precision in options.precisions:
            lowering = lower(LoweredModel(model, *preferred(precision, gpu), gpu=gpu), sequential(model.graph))
            cells = _stored_cells(list(dict.fromkeys(graphs_of(lowering))), device)
            rows.append(dict(zip(titles, (name, precision, *cells), strict=True)))
    print_table(*table_of(rows))
    return rows


def _stored_cells(graphs: list[Graph], device: GpuDescription) -> tuple[str, ...]:
    started = time.perf_counter()
    offers = [build_cudnn_plans(*graph.parts, device, at_most=12, precompiled=True) for graph in graphs]
    built = time.perf_counter()
    first = [offer.plans[0] for offer in offers]
    again = [rebuild_cudnn_plan(*graph.parts, device, plan.name) for graph, plan in zip(graphs, first, strict=True)]
    rebuilt = time.perf_counter()
    stored = [plan.serialize() for plan in again]
    serialized = time.perf_counter()
    for graph, plan, content in zip(graphs, first, stored, strict=True):
        loaded = load_cudnn_plan(plan.name, content, graph.kernel.precision, device)
        assert loaded.workspace_nbytes == plan.workspace_nbytes
    end = time.perf_counter()
    n_kernels, n_plans = len(graphs), sum(len(offer.plans) for offer in offers)
    again_ms, loaded_ms = (1e3 * seconds / n_kernels for seconds in (rebuilt - built, end - serialized))
    kilobytes = sum(map(len, stored)) / n_kernels / 1e3
    numbers = (f"{built - started:.1f}", f"{again_ms:.1f}", f"{loaded_ms:.1f}", f"{kilobytes:.1f}")
    n_nameless = sum(_has_nameless_knobs(plan) for offer in offers for plan in offer.plans)
    return (str(n_kernels), str(n_plans), str(n_nameless), *numbers)


def _has_nameless_knobs(plan: BuiltCudnnPlan) -> bool:
    """Whether the frontend cannot identify a plan by its engine and knobs."""
    _, knobs = plan._graph.get_engine_and_knobs_at_index(plan._index)
    return any(kind.name == "NOT_SET" for kind in knobs)


def _view(shape: tuple[int, ...], precision: Precision, strides: tuple[int, ...] | None = None) -> View:
    return View("", precision.dtype, shape, strides=strides)


if __name__ == "__main__":
    main()
