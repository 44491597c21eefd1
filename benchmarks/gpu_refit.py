"""Kernels measured by `gpu.py`, and the analytic model fitted to them as in `kernels_fit.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import prod
from typing import Any

import numpy as np
import onnx
from gpu_case import RESULTS, Session
from gpu_cases import KERNEL_PARTS, PIECES
from kernels import agreement, family, predict
from kernels_fit import Fitted, bandwidths, descend
from measured import Row
from onnx import TensorProto, helper, numpy_helper
from results_files import known_results
from testbed import zoo_model

from iosched import Model, load_model
from iosched.profiler.devices.analytic.constants import KERNELS, NODE_US, MeasuredFractions, measured, measured_card
from iosched.profiler.devices.analytic.kernels import ConvolutionGeometry, Kernel, Product, Stream, kernels_of
from iosched.profiler.devices.cuda.gpu_cost import open_cost
from iosched.profiler.devices.gpus import GpuSpec, spec_of
from iosched.runtime.cuda.layout import preferred_layout
from iosched.scheduler.precision import precision_named

ZOO = ("squeezenet", "inception_v3", "googlenet", "resnet50", "densenet121", "bert_mini")
COUNTS = {"conv": 90, "linear": 30, "bmm": 12, "add": 14, "relu": 14}
"""Kernels of each kind and precision. Half of the convolutions and of the linear ones are the zoo's, if it has them."""

LEAST = 200
"""Kernels that a fit needs."""

MOST_FLOPS, MOST_NBYTES = 2e10, 1 << 28
_SEED = 0
_BLOCK = np.random.default_rng(_SEED).standard_normal(1 << 16, np.float32)

Sizes = tuple[int, ...]


def shapes() -> list[str]:
    """All kernels by name: an operator and its sizes.

    conv: images, channels, filters, height, width, kernel height and width, padding of each, stride;
    linear: rows, inner, columns; bmm: count, rows, inner, columns; add, relu: rows, columns.
    """
    zoo = sorted({name for network in ZOO for name in _of_model(zoo_model(network))})
    rng = np.random.default_rng(_SEED)
    zoo = [zoo[index] for index in rng.permutation(len(zoo))]
    found: list[str] = []
    for kind, count in COUNTS.items():
        own = [name for name in zoo if name.split()[0] == kind][: count // 2]
        while len(own) < count:
            name = _drawn(kind, rng)
            own += [name] if name not in own else []
        found += own
    return found


def _of_model(model: Model) -> Iterator[str]:
    for operator in model.graph.operators:
        source, result = (model.graph.tensor[name].shape or () for name in (operator.inputs[0], operator.name))
        one_conv = operator.node_types.count("Conv") == 1 and max(operator.integer("group"), 1) == 1
        if one_conv and len(source) == 4 and len(operator.inputs) == 1:
            taps, (stride, *_) = operator.integers("kernel_shape"), operator.integers("strides") or (1,)
            pads = [
                ((out - 1) * stride + tap - size + 1) // 2
                for out, tap, size in zip(result[2:], taps, source[2:], strict=True)
            ]
            channels, filters = operator.integer("in_channels"), operator.integer("out_channels")
            yield _name(
                "conv", source[0], channels, filters, *source[2:], *taps, *(max(pad, 0) for pad in pads), stride
            )
        elif operator.integer("out_features"):
            features = operator.integer("in_features"), operator.integer("out_features")
            yield _name("linear", prod(result[:-1]), *features)


def _drawn(kind: str, rng: np.random.Generator) -> str:
    def power(low: int, high: int) -> int:
        """Roughly uniform on a logarithmic scale; a multiple of eight from 16 on."""
        size = round(float(2 ** rng.uniform(np.log2(low), np.log2(high))))
        return size if size < 16 else size // 8 * 8

    if kind == "conv":
        tap = int(rng.choice((1, 1, 3, 3, 3, 5, 7)))
        images, channels, filters, size = power(1, 16), power(16, 1024), power(16, 1024), power(7, 112)
        sizes: Sizes = (images, channels, filters, size, size, tap, tap, tap // 2, tap // 2, int(rng.choice((1, 1, 2))))
        flops, nbytes = 2 * images * size**2 * channels * filters * tap**2, 4 * images * size**2 * (channels + filters)
    elif kind == "linear":
        sizes = power(1, 2048), power(64, 4096), power(64, 4096)
        flops, nbytes = 2 * prod(sizes), 4 * sizes[1] * sizes[2]
    elif kind == "bmm":
        sizes = power(4, 64), power(16, 512), power(16, 512), power(16, 512)
        flops, nbytes = 2 * prod(sizes), 4 * sizes[0] * sizes[1] * sizes[3]
    else:
        sizes = power(32, 8192), power(4096, 16384)
        flops, nbytes = 0, 4 * prod(sizes)
    return _name(kind, *sizes) if flops <= MOST_FLOPS and nbytes <= MOST_NBYTES else _drawn(kind, rng)


def _name(kind: str, *sizes: int) -> str:
    return " ".join(map(str, (kind, *sizes)))


def model_of(names: Sequence[str]) -> Model:
    """One model with an operator for each kernel, with the name of the kernel and its own inputs and weights.

    In a model of this size, stages are measured with weights out of the cache, as in a large network.
    """
    nodes, inputs, weights = list[onnx.NodeProto](), dict[str, Sizes](), dict[str, np.ndarray]()
    for name in names:
        kind, *sizes = name.split()
        operands, kept, attributes = _operands(kind, [int(size) for size in sizes])
        words = [f"{name} {place}" for place in range(len(operands) + len(kept))]
        inputs |= zip(words, operands, strict=False)
        weights |= ((word, np.resize(_BLOCK, shape)) for word, shape in zip(words[len(operands) :], kept, strict=True))
        types = {"conv": "Conv", "linear": "Gemm", "bmm": "MatMul", "add": "Add", "relu": "Relu"}
        nodes.append(helper.make_node(types[kind], words, [name], **attributes))
    graph = helper.make_graph(
        nodes, "kernels",
        [helper.make_tensor_value_info(word, TensorProto.FLOAT, shape) for word, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names],
        [numpy_helper.from_array(array, word) for word, array in weights.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load_model(proto.SerializeToString(), name="kernels")


def _operands(kind: str, sizes: Sequence[int]) -> tuple[list[Sizes], list[Sizes], dict[str, Any]]:
    """Shapes of inputs and of weights, and attributes."""
    match kind, sizes:
        case "conv", [images, channels, filters, height, width, *taps, pad_h, pad_w, stride]:
            attributes = {"pads": [pad_h, pad_w] * 2, "strides": [stride] * 2}
            return [(images, channels, height, width)], [(filters, channels, *taps), (filters,)], attributes
        case "linear", [rows, inner, columns]:
            return [(rows, inner)], [(columns, inner), (columns,)], {"transB": 1}
        case "bmm", [count, rows, inner, columns]:
            return [(count, rows, inner), (count, inner, columns)], [], {}
    return [tuple(sizes)] * (2 if kind == "add" else 1), [], {}


def kernels(session: Session) -> None:
    """Latencies of one part of the kernels, each in a CUDA graph of many runs, with the input of the model."""
    names = shapes()[session.case.part :: KERNEL_PARTS]
    model, gpu = model_of(names), session.gpu
    precision = precision_named(session.case.precision)
    cost = open_cost(gpu, model, precision, session.database, layout=preferred_layout(precision, gpu.driver.gpu))
    session.found["precision"] = precision

    def timed(name: str) -> dict[str, Any]:
        (kernel,) = kernels_of(model.graph, model.graph.by_name[name])
        return {"us": round(cost.operator_latency_us(name), 3), "kernel": asdict(kernel)}

    session.each("measured", names, timed)


def refit(session: Session) -> None:
    """The model's constants of this GPU, and its error on kernels outside of the fit, before and after."""
    session.wait()
    cases = known_results(session.folder / RESULTS)["cases"]
    found = [each["found"] for each in cases.values() if "measured" in (each["found"] or {})]
    gpu = next((str(each["gpu"]) for each in found), "")
    if (spec := spec_of(gpu)) is None:
        raise ValueError(f"the table of GPUs has no {gpu or 'GPU that kernels were measured on'}")
    rows = rows_of(found, spec)
    if len(rows) < LEAST:
        raise ValueError(f"{len(rows)} kernels are measured, and a fit needs {LEAST}")
    session.found |= fitted(rows, spec)
    needed = [each.key for each in PIECES["refit"].cases if each is not session.case]
    left = [key for key in needed if cases.get(key, {}).get("state") != "done"]
    session.keep(complete=not left, error=f"fitted without all of {', '.join(left)}" if left else "")


def rows_of(found: Sequence[Mapping[str, Any]], spec: GpuSpec) -> list[Row]:
    """Measured kernels, without the start of a node of their graph."""
    rows = []
    for each in found:
        for name, row in each["measured"].items():
            kind, *sizes = name.split()
            if us := row.get("us"):
                alone_us, shape = max(us - NODE_US, us / 2), tuple(map(int, sizes))
                kernel = _kernel(row["kernel"])
                rows.append(Row("here", spec.key, each["precision"], kind, "", shape, alone_us, kernel))
    return rows


def _kernel(values: Mapping[str, Any]) -> Kernel:
    if "rows" not in values:
        return Stream(**values)
    window = values["window"] and ConvolutionGeometry(**values["window"])
    return Product(**{**values, "window": window})


def fitted(rows: Sequence[Row], spec: GpuSpec) -> dict[str, Any]:
    """The clock and the memory's bandwidth as fractions of the specification, as `kernels_fit.py` finds them."""
    card, before = measured_card(spec.key), measured(spec)
    fit = [row for row in rows if not row.is_test]
    streams = [row for row in fit if family(row) == "elementwise" and _nbytes(row) > spec.l2_nbytes]
    dram = bandwidths(streams, (card,))[card].dram if streams else before.dram
    start = Fitted(KERNELS, {card: MeasuredFractions(before.clock, dram)}, 0.0)
    products = [row for row in fit if family(row) != "elementwise"]
    after = descend(start, (f"clock {card}",), products, quiet=True).attained[card]
    test = [row for row in rows if row.is_test]
    groups = {"all": test} | {
        f"{kind}, {precision}": own
        for kind in ("convolution", "product", "elementwise")
        for precision in ("fp32", "fp16")
        if (own := [row for row in test if (family(row), row.precision) == (kind, precision)])
    }
    errors = {
        name: {"kernels": len(own)}
        | {key: agreement(predict(own, KERNELS, {card: each}))["mean_error"]
           for key, each in (("before", before), ("after", after))}
        for name, own in groups.items()
    }  # fmt: skip
    constants = {key: {name: round(value, 3) for name, value in asdict(each).items()}
                 for key, each in (("before", before), ("after", after))}  # fmt: skip
    return {"card": card, "fit": len(fit), "held_out": len(test), "constants": constants, "mean_error": errors}


def _nbytes(row: Row) -> float:
    return (row.kernel.activation_nbytes + row.kernel.weight_nbytes) * (0.5 if row.precision == "fp16" else 1.0)
