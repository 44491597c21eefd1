"""Models that serve several threads while models are added, replaced, removed and closed; and the errors."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from shipped import optimized_file
from small_models import branches, chain, data, run

import iosched
from iosched.jobs.loading.loaded_model import LoadedModel
from iosched.jobs.serving.served_models import ServedModels
from iosched.models.errors import BusyError, ExecutionError, UsageError
from iosched.runtime.executor import Executor

X = {"x": np.random.default_rng(0).standard_normal((1, 8, 6, 6), np.float32)}
Z = {"x": np.random.default_rng(0).standard_normal((1, 4, 12, 12), np.float32)}
PATIENCE_S = 60.0


@pytest.fixture
def optimized(tmp_path: Path) -> Path:
    return optimized_file(tmp_path / "branches.iosched.onnx", branches())


@pytest.fixture
def served(optimized: Path) -> Iterator[ServedModels]:
    all_cores = ((math.inf, 2),)
    models = {"a": iosched.ModelPolicy(all_cores, most_waiting=2), "b": iosched.ModelPolicy(all_cores)}
    policy = iosched.ServingPolicy(models)
    with iosched.serve_together({"a": optimized, "b": data(chain())}, policy, threads=2) as served:
        yield served


class Held:
    """Runs of a model that end only once released."""

    def __init__(self, served: ServedModels, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_end, self.error = threading.Semaphore(0), threading.Event(), None
        model = served.models[name]
        assert isinstance(model, LoadedModel)
        on: dict[Any, Executor] = model._executor.runnable.on  # type: ignore[attr-defined]
        monkeypatch.setattr(model._executor.runnable, "on", {block: Slow(self, each) for block, each in on.items()})


class Slow:
    def __init__(self, held: Held, inner: Executor) -> None:
        self.held, self.inner = held, inner

    def run(self, inputs: Any) -> Any:
        self.held.begun.release()
        assert self.held.may_end.wait(PATIENCE_S)
        return self.inner.run(inputs)

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as callers:
        yield callers


def wait_for(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S * 1000)):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError


def fill(
    served: ServedModels, monkeypatch: pytest.MonkeyPatch, callers: ThreadPoolExecutor, waiting: int
) -> tuple[Held, list[Future[Any]]]:
    """Requests of "a" on all cores, and others that wait."""
    held = Held(served, "a", monkeypatch)
    runs = [callers.submit(served.run, "a", X)]
    assert held.begun.acquire(timeout=PATIENCE_S)
    runs += [callers.submit(served.run, "a", X) for _ in range(waiting)]
    wait_for(lambda: len(served._pool._dispatcher.waiting) == waiting)
    return held, runs


def test_optimized_and_plain_models_compute_the_same_as_onnxruntime(served: ServedModels) -> None:
    np.testing.assert_allclose(served.run("a", X)["y"], run(data(branches()), X)["y"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(served.run("b", Z)["y"], run(data(chain()), Z)["y"], rtol=1e-4, atol=1e-5)
    assert served.run("b", {"x": Z["x"].tolist()})["y"].dtype == np.float32
    assert {name: (model.is_scheduled, model.in_flight) for name, model in served.models.items()} == {
        "a": (True, 2),
        "b": (False, 2),
    }
    assert served.cores == 2


def test_an_exported_plan_is_served(optimized: Path, tmp_path: Path) -> None:
    iosched.export(optimized, tmp_path / "plan", threads=1)
    with iosched.serve_together({"a": tmp_path / "plan"}, threads=2) as served:
        np.testing.assert_allclose(served.run("a", X)["y"], run(data(branches()), X)["y"], rtol=1e-4, atol=1e-5)


def test_a_file_for_several_batch_sizes_is_served_at_each(tmp_path: Path) -> None:
    iosched.optimize_batches(data(branches("n")), (1, 3), device="v100").save(tmp_path / "m.onnx")
    images = {size: np.random.default_rng(size).standard_normal((size, 8, 6, 6), np.float32) for size in (1, 2, 3)}
    with iosched.serve_together({"a": tmp_path / "m.onnx"}, threads=2) as served:
        for x in images.values():
            expected = run(data(branches(len(x))), {"x": x})["y"]
            np.testing.assert_allclose(served.run("a", {"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


def test_opening_a_model_measures_it_on_each_number_of_cores(optimized: Path) -> None:
    with iosched.serve_together({"a": optimized, "b": data(chain())}, threads=2) as served:
        for name in "ab":
            times = served._pool._dispatcher._times_of(name)
            assert times.run_s.keys() == {1, 2}
            assert times.work_s == min(times.run_s[1], 2 * times.run_s[2])


@pytest.mark.parametrize(
    ("name", "inputs", "text"),
    [
        ("z", X, "there is no model 'z': there are 'a', 'b'"),
        ("a", {}, "input 'x' is missing"),
        ("a", Z, "shape"),
        ("a", {"x": X["x"].astype(np.float64)}, "float32"),
    ],
)
def test_a_wrong_request_is_refused_before_it_is_queued(
    served: ServedModels, name: str, inputs: dict[str, np.ndarray], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        served.run(name, inputs)
    assert served._pool._dispatcher._arrivals == 0


def test_a_full_queue_is_an_error_at_once(
    served: ServedModels, monkeypatch: pytest.MonkeyPatch, callers: ThreadPoolExecutor
) -> None:
    held, runs = fill(served, monkeypatch, callers, waiting=2)
    with pytest.raises(BusyError, match="2 requests of 'a' wait already"):
        served.run("a", X)
    other = callers.submit(served.run, "b", Z)  # has a queue of its own
    held.may_end.set()
    assert len([each.result(PATIENCE_S) for each in (*runs, other)]) == 4


def test_a_request_whose_caller_gives_up_is_dropped_and_a_running_one_ends(
    served: ServedModels, monkeypatch: pytest.MonkeyPatch, callers: ThreadPoolExecutor
) -> None:
    held = Held(served, "a", monkeypatch)
    running = callers.submit(served.run, "a", X, timeout=0.01)
    assert held.begun.acquire(timeout=PATIENCE_S)
    with pytest.raises(BusyError, match="in time"):
        served.run("b", Z, timeout=0.01)
    assert served._pool._dispatcher.waiting == ()
    held.may_end.set()
    assert "y" in running.result(PATIENCE_S)


def test_models_are_added_replaced_and_removed_under_load(served: ServedModels, callers: ThreadPoolExecutor) -> None:
    """Each request gets the outputs of the model that it found."""
    versions = [data(branches()), data(scaled())]
    expected = [run(each, X)["y"] for each in versions]
    stop, found = threading.Event(), [0, 0]

    def ask() -> int:
        count = 0
        while not stop.is_set():
            y = served.run("a", X)["y"]
            which = [np.allclose(y, each, rtol=1e-4, atol=1e-5) for each in expected]
            assert sum(which) == 1
            found[which.index(True)] += 1
            served.run("b", Z)
            count += 1
        return count

    asking = [callers.submit(ask) for _ in range(2)]
    for number in range(6):
        served.replace("a", versions[number % 2])
        served.add("c", versions[0])
        np.testing.assert_allclose(served.run("c", X)["y"], expected[0], rtol=1e-4, atol=1e-5)
        served.remove("c")
        with pytest.raises(UsageError, match="no model 'c'"):
            served.run("c", X)
    stop.set()
    assert sum(each.result(PATIENCE_S) for each in asking) == sum(found)
    assert min(found) > 0
    assert set(served.models) == {"a", "b"}


def scaled() -> onnx.ModelProto:
    """The same structure with other weights."""
    proto = branches()
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 3, tensor.name))
    return proto


def test_earlier_requests_end_on_the_replaced_model(
    served: ServedModels, monkeypatch: pytest.MonkeyPatch, callers: ThreadPoolExecutor
) -> None:
    held, runs = fill(served, monkeypatch, callers, waiting=1)
    old = served.models["a"]
    replacing = callers.submit(served.replace, "a", data(chain()))
    wait_for(lambda: served.models["a"] is not old)
    new = callers.submit(served.run, "a", Z)
    held.may_end.set()
    assert [each.result(PATIENCE_S)["y"].shape for each in runs] == [(1, 16, 6, 6)] * 2
    assert new.result(PATIENCE_S)["y"].shape == (1, 4, 12, 12)
    replacing.result(PATIENCE_S)
    with pytest.raises(UsageError, match="closed"):
        old.run(X)


def test_a_request_that_finds_a_model_just_before_it_is_replaced_runs_on_the_new_one(
    served: ServedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = served.models["a"]
    served.replace("a", data(branches()))
    found = iter((old, served.models["a"]))
    monkeypatch.setattr(served, "_named", lambda name: next(found))
    assert "y" in served.run("a", X)
    assert list(found) == []


def test_names_are_checked(served: ServedModels) -> None:
    with pytest.raises(UsageError, match="there is a model 'a' already"):
        served.add("a", data(chain()))
    for change in (served.remove, lambda name: served.replace(name, data(chain()))):
        with pytest.raises(UsageError, match="there is no model 'z'"):
            change("z")


def test_closing_lets_waiting_requests_run(
    served: ServedModels, monkeypatch: pytest.MonkeyPatch, callers: ThreadPoolExecutor
) -> None:
    held, runs = fill(served, monkeypatch, callers, waiting=2)
    closing = callers.submit(served.close)
    wait_for(lambda: served._is_closed)
    with pytest.raises(UsageError, match="closed"):
        served.run("a", X)
    held.may_end.set()
    assert len([each.result(PATIENCE_S) for each in runs]) == 3
    closing.result(PATIENCE_S)
    for call in (lambda: served.run("a", X), lambda: served.add("c", data(chain()))):
        with pytest.raises(UsageError, match="closed"):
            call()
    served.close()


def test_closing_waits_for_requests_of_a_file_for_several_batch_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callers: ThreadPoolExecutor
) -> None:
    iosched.optimize_batches(data(branches("n")), (1, 2), device="v100").save(tmp_path / "m.onnx")
    served = iosched.serve_together({"a": tmp_path / "m.onnx"}, threads=1)
    begun, may_end = threading.Event(), threading.Event()
    cores = served._pool.cores

    def held(name: str) -> Any:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        return cores(name)

    monkeypatch.setattr(served._pool, "cores", held)
    with cores("a"):
        run = callers.submit(served.run, "a", X)
        assert begun.wait(PATIENCE_S)
        closing = callers.submit(served.close)
        may_end.set()
        wait_for(lambda: len(served._pool._dispatcher.waiting) == 1)
        assert not closing.done()
    assert "y" in run.result(PATIENCE_S)
    closing.result(PATIENCE_S)
    assert served._pool._dispatcher.running == {}


def test_closing_without_draining_refuses_waiting_requests_and_lets_running_ones_end(
    served: ServedModels, monkeypatch: pytest.MonkeyPatch, callers: ThreadPoolExecutor
) -> None:
    held, (running, *waiting) = fill(served, monkeypatch, callers, waiting=2)
    closing = callers.submit(served.close, drain=False)
    for each in waiting:
        with pytest.raises(UsageError, match="closed"):
            each.result(PATIENCE_S)
    held.may_end.set()
    assert "y" in running.result(PATIENCE_S)
    closing.result(PATIENCE_S)


def test_a_model_that_cannot_be_opened_leaves_the_others_open(served: ServedModels) -> None:
    for change in (lambda: served.add("c", b"no model"), lambda: served.replace("a", b"no model")):
        with pytest.raises(iosched.InvalidModelError):
            change()
    assert "y" in served.run("a", X)
    assert set(served.models) == {"a", "b"}
    with pytest.raises(iosched.InvalidModelError):
        iosched.serve_together({"a": b"no model"})


def test_a_request_that_fails_in_its_kernel_frees_its_cores(
    served: ServedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Slow):
        def run(self, inputs: Any) -> Any:
            raise ExecutionError("as told")

    with monkeypatch.context() as context:
        context.setattr(f"{__name__}.Slow", Failing)
        Held(served, "a", context)
        for _ in range(5):
            with pytest.raises(ExecutionError, match="as told"):
                served.run("a", X)
    assert "y" in served.run("a", X)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_child_gets_an_error_and_can_open_its_own(optimized: Path) -> None:
    code = (
        "import os, signal, sys, threading; import iosched, numpy as np\n"
        "x = {'x': np.ones((1, 8, 6, 6), np.float32)}\n"
        "served = iosched.serve_together({'a': sys.argv[1]}, threads=2); served.run('a', x)\n"
        "served._pool._lock.acquire()\n"  # as a thread of the parent may hold it
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    signal.alarm(50); served.close()\n"
        "    try: served.run('a', x)\n"
        "    except iosched.ExecutionError:\n"
        "        with iosched.serve_together({'a': sys.argv[1]}, threads=2) as own: own.run('a', x)\n"
        "        os._exit(7)\n"
        "    os._exit(1)\n"
        "served._pool._lock.release()\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7; served.run('a', x); served.close()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(optimized)], check=True, timeout=120)
