"""Which GPUs and which driver there are is known from the driver's library alone, whatever is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import standin_driver
from host_cuda import needs_compiler

from iosched.runtime.cuda.gpu import library
from iosched.runtime.cuda.gpu.library import Seen, SeenGpu, look

V100 = "Tesla V100-SXM2-16GB:70"


@needs_compiler
def test_gpus_are_seen_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    standin_driver.install(monkeypatch, V100, "NVIDIA B200:100", cuda=12080)
    assert look() == Seen(12080, (SeenGpu("Tesla V100-SXM2-16GB", 70), SeenGpu("NVIDIA B200", 100)))


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    standin_driver.none(monkeypatch)
    assert look() == Seen(problem="no NVIDIA driver was found")


def test_a_library_that_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_text("this is no library")
    monkeypatch.setattr(library, "LIBRARY", str(path))
    found = look()
    assert (found.cuda, found.gpus) == (0, ())
    assert "the driver does not load" in found.problem
    assert str(path) in found.problem


@needs_compiler
def test_a_library_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    other = standin_driver.compiled('extern "C" int cuDriverGetVersion(int *v) { *v = 12000; return 0; }')
    monkeypatch.setattr(library, "LIBRARY", str(other))
    assert "not NVIDIA's" in look().problem
    assert "cuInit" in look().problem


@needs_compiler
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (100, "finds no GPU: there is none, or CUDA_VISIBLE_DEVICES hides it"),
        (803, "does not start: system has unsupported display driver / cuda driver combination (status 803 of cuInit)"),
        (999, "does not start: no reason given (status 999 of cuInit)"),
    ],
)
def test_a_driver_that_does_not_start(monkeypatch: pytest.MonkeyPatch, status: int, words: str) -> None:
    standin_driver.install(monkeypatch, V100, status=status)
    found = look()
    assert (found.cuda, found.gpus) == (13000, ())
    assert words in found.problem


@needs_compiler
def test_a_driver_that_starts_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    standin_driver.install(monkeypatch)
    assert (look().cuda, look().gpus) == (13000, ())
    assert "finds no GPU" in look().problem


def test_what_to_do_is_said_for_one_gpu_or_for_most_of_them() -> None:
    seen = Seen(13000, (SeenGpu("V100", 70), SeenGpu("H100", 90)))
    assert seen.way_to_run().endswith("pip install '.[cuda12]'")  # which runs on both
    assert seen.way_to_run(0).endswith("pip install '.[cuda12]'")
    assert seen.way_to_run(1).endswith("pip install '.[cuda]'")
    assert Seen(13000, (SeenGpu("K80", 37),)).way_to_run().endswith("they need 7.0 or newer")
    unseen = Seen(problem="no NVIDIA driver was found")
    assert unseen.way_to_run().endswith(
        "not seen here (no NVIDIA driver was found), run in a clone of iosched: pip install '.[cuda]'"
    )
    assert unseen.way_to_run(1) == unseen.way_to_run()
