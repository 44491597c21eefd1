"""Threads of a block do not race: kernels with barriers under ThreadSanitizer, and in any order of threads."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import gpu_kernels
import pytest
import thread_sanitizer
from barrier_cases import CASES, MORE_CASES, Case, without_barrier
from host_cuda import blank, needs_compiler

from iosched.runtime import cuda
from iosched.runtime.cuda.kernel import CudaCall, Pointer

pytestmark = pytest.mark.skipif(gpu_kernels.ON_GPU, reason="on a GPU it is compute-sanitizer that finds races")

RUNTIME = Path(cuda.__path__[0])
BARRIER = re.compile("__shared__|__sync|__shfl")
SEEDS = range(1, 6)


@pytest.fixture(scope="module")
def sanitizer() -> None:
    """Skips with the reason where ThreadSanitizer is unavailable."""
    if reason := thread_sanitizer.why_not():
        pytest.skip(reason)


def check_for_races(case: Case) -> None:
    report = thread_sanitizer.launch(case.call, case.tensors)
    assert not report, report
    case.compare("(with a thread for each CUDA thread)")


def strings(path: Path) -> Iterator[str]:
    """String literals of a file of Python."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_function_whose_threads_share_memory_is_among_the_cases() -> None:
    found: set[str] = set()
    for path in RUNTIME.rglob("*.py"):
        for text in strings(path):
            if "__global__" in text and BARRIER.search(text):
                found.update(re.findall(r"__global__[^;{]*?void\s+(\w+)\(", text) or [f"a function in {path}"])
    assert found == {make().call.entry for make in CASES.values()}


def test_every_kernel_whose_source_is_put_together_with_barriers_is_among_the_cases() -> None:
    found: set[str] = set()
    for path in (RUNTIME / "kernels").glob("*.py"):
        parts = re.findall(r"from iosched\.runtime\.cuda\.source\.(\w+) import", path.read_text())
        files = [path, *(RUNTIME / "source" / f"{part}.py" for part in parts)]
        if any(BARRIER.search(text) for file in files for text in strings(file)):
            found.add(path.stem)
    assert found == {type(make().kernel).__module__.split(".")[-1] for make in CASES.values()}


@pytest.mark.slow
@pytest.mark.usefixtures("sanitizer")
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_no_two_threads_race(make: Callable[[], Case]) -> None:
    check_for_races(make())


@pytest.mark.slow
@pytest.mark.usefixtures("sanitizer")
@pytest.mark.parametrize("make", MORE_CASES.values(), ids=MORE_CASES)
def test_no_two_threads_race_in_other_tiles(make: Callable[[], Case]) -> None:
    check_for_races(make())


@pytest.mark.usefixtures("sanitizer")
@pytest.mark.parametrize("name", ["copy to float32", "separable fp16 by FMA"])
def test_a_barrier_left_out_is_reported(name: str) -> None:
    case = without_barrier(CASES[name](), 0)
    report = thread_sanitizer.launch(case.call, case.tensors)
    assert "data race" in report
    assert f"{case.call.entry}.cu" in report.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("sanitizer")
def test_an_exchange_within_a_warp_is_no_barrier() -> None:
    source = """
extern "C" __global__ void reversed(int* __restrict__ y) {
  __shared__ unsigned values[32];
  values[threadIdx.x] = threadIdx.x;
  const unsigned first = __shfl_sync(0xffffffffu, threadIdx.x, 0);
  %s
  y[threadIdx.x] = first + values[31 - threadIdx.x];
}
"""
    y = blank((32,), "int32")
    call = CudaCall(source % "", "reversed", (1, 1, 1), (32, 1, 1), (Pointer(0),))
    assert "data race" in thread_sanitizer.launch(call, [y])
    y.poison()
    assert not thread_sanitizer.launch(replace(call, source=source % "__syncthreads();"), [y])
    assert y.array.tolist() == list(range(32))[::-1]


@needs_compiler
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_results_do_not_depend_on_the_order_of_threads(make: Callable[[], Case]) -> None:
    case = make()
    for seed in SEEDS:
        case.run_in_turn(seed)


@needs_compiler
@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_barrier_results_depend_on_the_order_of_threads(seed: int) -> None:
    with pytest.raises(AssertionError, match=f"seed {seed}"):
        without_barrier(CASES["copy to float32"](), 0).run_in_turn(seed)


@needs_compiler
@pytest.mark.parametrize(
    ("constant", "value", "reason"),
    [
        ("_FLAGS", ("-fsanitize=nothing",), "g\\+\\+ has no ThreadSanitizer: .*nothing"),
        ("_PROBE", "int main() { return 2; }", "does not start: a process may not have as many threads .*setarch -R: "),
    ],
)
def test_the_reason_of_skipping_is_named(
    constant: str, value: object, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_sanitizer, constant, value)
    monkeypatch.setattr(thread_sanitizer, "_starter", thread_sanitizer._starter.__wrapped__)
    assert re.search(reason, thread_sanitizer.why_not())
