"""Kernels that others measured on real GPUs, as rows to test a model of GPUs against.

The measurements are not in this repository; `benchmarks/README.md` names their sources and columns:

- NeuSight (Lee et al., ASPLOS 2025): PyTorch 2.1, cuDNN 8.9, fp32, one operator at a time on a V100, a T4 and a P100.
  Their latencies include the host's launch, which is taken for the smallest latency around a row and subtracted.
- DeepBench (Baidu Research): cuDNN 7 and cuBLAS called in a loop, so without the host's time.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iosched.profiler.devices.analytic.kernels import ConvolutionGeometry, Kernel, Product, Stream
from iosched.scheduler.precision import PrecisionName

GPUS = {  # names in the files
    "V100-PCIE-32GB": "v100pcie", "T4": "t4", "P100-PCIE-16GB": "p100pcie", "P100": "p100pcie", "TitanXp": "titanxp",
    "A100-PCIE-40GB": "a100pcie40", "A100-PCIE-80GB": "a100pcie80",
}  # fmt: skip
TENSORS = {"add": 3, "mul": 3, "relu": 2}  # that an elementwise operator reads and writes
SPLIT_SEED = "iosched"
TEST_PART = 0.3  # of the shapes
ITEM = 4  # bytes of a value; the model handles half precision

Fields = Mapping[str, str]


@dataclass(frozen=True)
class Row:
    """One measured kernel, or the few of one library call.

    Attributes:
        source: "neusight" or "deepbench".
        gpu: key of the GPU's specification.
        operator: "conv", "linear", "bmm", "gemm", "add", "mul" or "relu".
        algorithm: the choice of the library: "winograd" (in tiles), "winograd nonfused", "direct" (any other
            convolution), the tile of a product as "128x64", or nothing if unknown.
        shape: its sizes, which determine the split between fit and test.
        measured_us: its latency without the host's launch.
        kernel: the input of the model.
    """

    source: str
    gpu: str
    precision: PrecisionName
    operator: str
    algorithm: str
    shape: tuple[int, ...]
    measured_us: float
    kernel: Kernel

    @property
    def is_test(self) -> bool:
        """Whether the row's shape is excluded from every fit. A shape is on the same side on all GPUs."""
        return _hashed(self.operator, self.shape) < TEST_PART


def read(folder: Path) -> list[Row]:
    """All rows of the files in `folder`.

    Raises:
        SystemExit: a file is missing.
    """
    rows = [*_convolutions(folder), *_products(folder), *_elementwise(folder)]
    return [*_without_launch(rows), *_deepbench_convolutions(folder), *_deepbench_products(folder)]


def _without_launch(rows: Sequence[Row]) -> Iterator[Row]:
    """Subtracts the host's launch: the lower convex hull of each operator's latencies in the order of the file.

    For products and elementwise operators it is flat. For convolutions it rises by 0.3 (V100), 0.4 (T4) and 0.7 ms
    (P100) from the first row to the last, for small and large kernels alike, though shapes come in random order:
    the measuring program took longer with every row. No larger convex function leaves all latencies positive.
    """
    series: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        series.setdefault((row.gpu, row.operator), []).append(row)
    for one in series.values():
        launches = _lower_hull([row.measured_us for row in one])
        for row, launch in zip(one, launches, strict=True):
            yield replace(row, measured_us=row.measured_us - float(launch))


def _lower_hull(values: Sequence[float]) -> NDArray[np.float64]:
    """The largest convex function of the position that never exceeds `values` (Andrew's monotone chain)."""
    hull: list[int] = []
    for index, value in enumerate(values):
        while len(hull) > 1:
            (first, middle), start = hull[-2:], values[hull[-2]]
            if (values[middle] - start) * (index - first) < (value - start) * (middle - first):
                break  # the middle one of the three points lies below the line through the others
            hull.pop()
        hull.append(index)
    return np.interp(np.arange(len(values)), hull, [values[index] for index in hull])


def convolution(
    images: int, channels: int, filters: int, source: tuple[int, int], taps: tuple[int, int], pads: tuple[int, int],
    strides: tuple[int, int],
) -> Product:  # fmt: skip
    """A dense convolution with sizes as (height, width)."""
    sizes = zip(source, taps, pads, strides, strict=True)
    height, width = ((size + 2 * pad - tap) // stride + 1 for size, tap, pad, stride in sizes)
    rows, inner = images * height * width, channels * taps[0] * taps[1]
    moved = ITEM * (images * channels * source[0] * source[1] + rows * filters)
    window = ConvolutionGeometry(images, height, width, taps[0] * taps[1], taps == (3, 3) and strides == (1, 1))
    return Product(rows, filters, inner, 1, moved, ITEM * inner * filters, window)


def product(rows: int, columns: int, inner: int, count: int = 1, *, transposed: bool = False) -> Product:
    """`count` matrix products."""
    moved, weights = ITEM * count * rows * (inner + columns), ITEM * count * inner * columns
    return Product(rows, columns, inner, count, moved, weights, transposed=transposed)


def _convolutions(folder: Path) -> Iterator[Row]:
    for fields in _neusight_fields(folder, "conv"):
        images, channels, filters, size, kernel, pad, stride = _integers(
            fields, "batch", "in_channels", "out_channels", "size", "kernel", "pad", "stride"
        )
        made = convolution(images, channels, filters, (size,) * 2, (kernel,) * 2, (pad,) * 2, (stride,) * 2)
        algorithm = "direct" if fields["winograd"] == "0" else "winograd nonfused"
        algorithm = "winograd" if "winograd" in fields["main_kernel"] else algorithm
        shape = images, channels, filters, size
        yield _neusight(fields, "conv", algorithm, shape, made)


def _products(folder: Path) -> Iterator[Row]:
    for fields in _neusight_fields(folder, "matmul"):
        # The files' columns are (m, n) times (n, k): the grids show that k columns are computed.
        count, rows, inner, columns = _integers(fields, "batch", "m", "n", "k")
        tile = next((part for part in fields["main_kernel"].split("_") if "x" in part and part[0].isdigit()), "")
        shape = count, rows, inner, columns
        made = product(rows, columns, inner, count, transposed=fields["op"] == "linear")
        yield _neusight(fields, fields["op"], tile, shape, made)


def _elementwise(folder: Path) -> Iterator[Row]:
    for fields in _neusight_fields(folder, "elementwise"):
        rows, columns = _integers(fields, "rows", "columns")
        moved = ITEM * rows * columns * TENSORS[fields["op"]]
        yield _neusight(fields, fields["op"], "", (rows, columns), Stream(moved))


def _neusight(fields: Fields, operator: str, algorithm: str, shape: tuple[int, ...], kernel: Kernel) -> Row:
    latency = float(fields["latency_us"])
    return Row("neusight", GPUS[fields["gpu"]], "fp32", operator, algorithm, shape, latency, kernel)


def _deepbench_convolutions(folder: Path) -> Iterator[Row]:
    names = (
        "batch", "in_channels", "out_channels", "height", "width", "kernel_h", "kernel_w", "pad_h", "pad_w", "stride_h",
        "stride_w",
    )  # fmt: skip
    for fields in _fields(folder / "deepbench_conv.csv"):
        shape = _integers(fields, *names)
        made = convolution(*shape[:3], shape[3:5], shape[5:7], shape[7:9], shape[9:11])  # type: ignore[arg-type]
        chosen = fields["algorithm"].lower().replace("_", " ")
        algorithm = chosen if chosen.startswith("winograd") else "direct"
        yield _deepbench(fields, "conv", algorithm, shape, made)


def _deepbench_products(folder: Path) -> Iterator[Row]:
    for fields in _fields(folder / "deepbench_gemm.csv"):
        # Column-major there: an (m, k) times a (k, n) matrix is what is (n, k) times (k, m) here.
        columns, rows, inner = _integers(fields, "m", "n", "k")
        yield _deepbench(fields, "gemm", fields["transposed"], (rows, columns, inner), product(rows, columns, inner))


def _deepbench(fields: Fields, operator: str, algorithm: str, shape: tuple[int, ...], kernel: Kernel) -> Row:
    precision: PrecisionName = "fp16" if fields["precision"] == "fp16" else "fp32"
    gpu, latency = GPUS[fields["gpu"]], float(fields["latency_us"])
    return Row("deepbench", gpu, precision, operator, algorithm, shape, latency, kernel)


def _neusight_fields(folder: Path, name: str) -> Iterator[Fields]:
    yield from _fields(folder / f"{name}.csv.gz")
    yield from _fields(folder / f"a100_{name}.csv.gz")


def _fields(path: Path) -> Iterable[Fields]:
    if not path.exists():
        raise SystemExit(f"no {path}: benchmarks/README.md says where the measurements come from")
    text = path.read_bytes()
    yield from csv.DictReader(io.StringIO((gzip.decompress(text) if path.suffix == ".gz" else text).decode()))


def _integers(fields: Fields, *names: str) -> tuple[int, ...]:
    return tuple(round(float(fields[name])) for name in names)


@cache
def _hashed(operator: str, shape: tuple[int, ...]) -> float:
    """A number from 0 to 1 that is the same for this operator and shape everywhere."""
    text = f"{SPLIT_SEED} {operator} {shape}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
