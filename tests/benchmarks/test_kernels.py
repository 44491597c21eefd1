"""The analytic model's kernels compared with measured ones: how rows are read, split and compared."""

from __future__ import annotations

import csv
import gzip
from math import prod
from pathlib import Path
from statistics import fmean, median
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iosched.profiler.devices.analytic.kernels import ConvolutionGeometry, Kernel, Product, Stream

SAMPLE = Path(__file__).with_name("measured_kernels.csv")
"""A random part of the test shapes, launch subtracted, from NeuSight (github.com/sitar-lab/NeuSight, MIT licence)."""
CONVOLUTIONS = """\
gpu,batch,in_channels,out_channels,kernel,size,stride,pad,latency_us,kernels,winograd,main_kernel
T4,2,8,16,3,7,1,1,70.0,2,1,volta_sgemm_64x64_nn
T4,3,8,16,3,7,1,1,95.0,2,0,implicit_convolve_sgemm
T4,4,8,16,3,7,1,1,90.0,2,1,scudnn_winograd_128x128
"""
PRODUCTS = "gpu,op,batch,m,n,k,latency_us,main_kernel\nT4,linear,1,3,5,7,60.0,volta_sgemm_128x64_tn\n"
ELEMENTWISE = "gpu,op,rows,columns,latency_us\nT4,add,4,8,30.0\nT4,add,8,8,33.0\n"
DEEPBENCH_CONVOLUTIONS = """\
gpu,precision,app,batch,in_channels,width,height,out_channels,kernel_w,kernel_h,pad_w,pad_h,stride_w,stride_h,latency_us,algorithm
T4,fp16,,4,1,700,161,32,20,5,0,0,2,2,142.0,IMPLICIT_PRECOMP_GEMM
"""
DEEPBENCH_PRODUCTS = "gpu,precision,m,n,k,transposed,latency_us\nP100,fp32,1760,16,1024,NN,55.0\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the harness reads, with a few rows each."""
    files = {"conv.csv.gz": CONVOLUTIONS, "matmul.csv.gz": PRODUCTS, "elementwise.csv.gz": ELEMENTWISE}
    for name, text in files.items():
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
        (tmp_path / f"a100_{name}").write_bytes(gzip.compress(text.partition("\n")[0].encode()))
    (tmp_path / "deepbench_conv.csv").write_text(DEEPBENCH_CONVOLUTIONS)
    (tmp_path / "deepbench_gemm.csv").write_text(DEEPBENCH_PRODUCTS)
    return tmp_path


def test_rows_become_kernels_without_launch_time(script, folder: Path) -> None:
    rows = script("measured").read(folder)

    convolutions = [row for row in rows if row.operator == "conv" and row.source == "neusight"]
    assert [row.measured_us for row in convolutions] == [0, 15, 0]  # a line through 70 and 90 is below 95
    assert [row.algorithm for row in convolutions] == ["winograd nonfused", "direct", "winograd"]
    moved = 4 * 2 * 49 * (8 + 16)
    assert convolutions[0].kernel == Product(
        98, 16, 72, 1, moved, 4 * 72 * 16, ConvolutionGeometry(2, 7, 7, 9, winograd=True)
    )
    by_operator = {row.operator: row for row in rows}
    linear, gemm = by_operator["linear"].kernel, by_operator["gemm"].kernel
    assert (linear.rows, linear.columns, linear.inner, linear.transposed) == (3, 7, 5, True)
    assert (gemm.rows, gemm.columns, gemm.inner, gemm.transposed) == (16, 1760, 1024, False)
    assert by_operator["add"].kernel == Stream(3 * 4 * 64)
    speech = by_operator["conv"]
    assert (speech.precision, speech.kernel.rows, speech.kernel.inner) == ("fp16", 4 * 79 * 341, 100)
    assert not speech.kernel.window.winograd


def test_a_missing_file_is_named(script, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"conv\.csv\.gz"):
        script("measured").read(tmp_path)


def test_every_table_can_be_made_from_a_few_rows(script, folder: Path) -> None:
    kernels = script("kernels")
    found = kernels.predict(script("measured").read(folder))

    assert (found.predicted_us > 0).all()
    assert "measured over predicted, quantiles" in kernels.tables(found)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.floats(0, 1000), min_size=1, max_size=12))
def test_the_launch_is_the_largest_convex_function_below(script, values: list[float]) -> None:
    """By definition: at each position, the minimum of all chords between two measurements around it."""
    hull = script("measured")._lower_hull(values)

    def least(at: int) -> float:
        chords = [
            values[a] if a == b else values[a] + (values[b] - values[a]) * (at - a) / (b - a)
            for a in range(at + 1)
            for b in range(at, len(values))
        ]
        return min(chords)

    assert list(hull) == pytest.approx([least(at) for at in range(len(values))], abs=1e-6)


def test_a_shape_is_on_the_same_side_of_the_split_for_all_gpus(script) -> None:
    measured = script("measured")

    def is_test(gpu: str, size: int) -> bool:
        row = measured.Row("neusight", gpu, "fp32", "add", "", (size, 8), float(size), Stream(1))
        return bool(row.is_test)

    sides = [is_test("t4", size) for size in range(2000)]

    assert sides == [is_test("p100pcie", size) for size in range(2000)]
    assert fmean(sides) == pytest.approx(measured.TEST_PART, abs=0.03)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=12))
def test_equal_values_share_their_ranks(script, pairs: list[tuple[int, int]]) -> None:
    one, two = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))

    def ranks(values: np.ndarray) -> list[float]:
        return [sum(other < value for other in values) + sum(values == value) / 2 for value in values]

    found = script("kernels").spearman(one, two)

    if len(set(one)) > 1 and len(set(two)) > 1:
        assert found == pytest.approx(np.corrcoef(ranks(one), ranks(two))[0, 1])


def test_predictions_of_kernels_outside_the_fit_are_close_to_measurements(script) -> None:
    measured, kernels = script("measured"), script("kernels")
    with SAMPLE.open(encoding="utf-8") as file:
        rows = [
            measured.Row("neusight", row["gpu"], "fp32", row["operator"], "", shape, float(row["measured_us"]),
                         _kernel(measured, row["operator"], shape))
            for row in csv.DictReader(file)
            for shape in [tuple(map(int, row["shape"].split()))]
        ]  # fmt: skip
    off: dict[tuple[str, str], list[float]] = {}
    for row, predicted_us in zip(rows, kernels.predict(rows).predicted_us, strict=True):
        off.setdefault((row.gpu, kernels.family(row)), []).append(abs(predicted_us / row.measured_us - 1))

    assert all(row.is_test for row in rows)
    assert len(off) == 9
    assert all(median(errors) < (0.05 if kind == "elementwise" else 0.13) for (_, kind), errors in off.items()), off


def _kernel(measured: ModuleType, operator: str, shape: tuple[int, ...]) -> Kernel:
    if operator == "conv":
        images, channels, filters, size = shape
        made: Kernel = measured.convolution(images, channels, filters, (size, size), (3, 3), (1, 1), (1, 1))
    elif operator in measured.TENSORS:
        made = Stream(4 * prod(shape) * measured.TENSORS[operator])
    else:
        count, rows, inner, columns = shape
        made = measured.product(rows, columns, inner, count, transposed=operator == "linear")
    return made
