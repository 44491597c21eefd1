"""Requests of several threads in 10,000 orders: each gets its own outputs, whatever happens to others and to models."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from interleaving import Gate, Interleaving
from shipped import optimized_file
from small_models import FLOAT, branches, node, proto_of, run, weight

import iosched
from iosched.jobs.loading.loaded_model import LoadedModel
from iosched.jobs.serving.core_pool import CorePool
from iosched.jobs.serving.policy import ModelPolicy, ServingPolicy
from iosched.jobs.serving.served_models import ServedModels
from iosched.models.errors import BusyError, ExecutionError, UsageError
from iosched.runtime.compare import compare
from iosched.runtime.executor import Executor
from iosched.runtime.plan_files import PlanInterface
from iosched.runtime.shared_cores import Block

CORES = 4
Arrays = dict[str, np.ndarray]


def gathers() -> onnx.ModelProto:
    """Its kernel fails if the index is too large."""
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Gather", ["a", "i"], ["y"], axis=1)]
    inputs = {"x": [4, 8], "i": (onnx.TensorProto.INT64, [2])}
    return proto_of(nodes, inputs, {"y": FLOAT}, {"w": weight(8, 8)}, name="gathers")


PROTOS = {"a": branches(), "b": gathers(), "c": branches(channels=4)}


def inputs_of(name: str, seed: int) -> Arrays:
    if name == "b":
        x = np.random.default_rng(seed).standard_normal((4, 8), np.float32)
        return {"x": x, "i": np.array([seed % 8, 3], np.int64)}
    channels = 8 if name == "a" else 4
    return {"x": np.random.default_rng(seed).standard_normal((1, channels, 6, 6), np.float32)}


TOO_LARGE = {"x": np.ones((4, 8), np.float32), "i": np.array([0, 99], np.int64)}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("served")
    onnx.save(PROTOS["c"], folder / "c.onnx")
    optimized = {name: optimized_file(folder / f"{name}.iosched.onnx", PROTOS[name]) for name in "ab"}
    return optimized | {"c": folder / "c.onnx"}


@pytest.fixture(scope="module")
def served(paths: dict[str, Path]) -> Iterator[ServedModels]:
    with iosched.serve_together(paths, threads=CORES) as served:
        yield served


@pytest.fixture(scope="module")
def alone(served: ServedModels) -> dict[tuple[str, Block, int], Arrays]:
    """The outputs of each plan, when nothing else runs."""
    return {
        (name, block, seed): executor.run(inputs_of(name, seed))
        for name in PROTOS
        for block, executor in on_blocks(served, name).items()
        for seed in range(8)
    }


def on_blocks(served: ServedModels, name: str) -> dict[Block, Any]:
    model = served.models[name]
    assert isinstance(model, LoadedModel)
    return model._executor.runnable.on  # type: ignore[attr-defined]


def test_each_plan_computes_the_same_as_onnxruntime(alone: dict[tuple[str, Block, int], Arrays]) -> None:
    assert {len(block) for _, block, _ in alone} == {1, 2, 4}
    for (name, _, seed), outputs in alone.items():
        assert compare(outputs, run(PROTOS[name].SerializeToString(), inputs_of(name, seed))).passed


@dataclass(eq=False)
class Asked:
    """A request, and how it ended."""

    name: str
    seed: int
    timeout_s: float | None = None
    fails: bool = False
    found: LoadedModel | None = None  # when it arrived
    ran_on: Any = None
    block: Block | None = None
    outputs: Arrays | None = None
    error: Exception | None = None


@dataclass(eq=False)
class Case:
    """Requests of threads that a seed interleaves."""

    served: ServedModels
    threads: Interleaving
    asked: list[Asked] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    own: threading.local = field(default_factory=threading.local)

    def ask(self, request: Asked) -> None:
        self.asked.append(request)
        self.threads.spawn(partial(self._ask, request))

    def _ask(self, request: Asked) -> None:
        self.own.request, request.found = request, self.served._models.get(request.name)  # type: ignore[assignment]
        inputs = TOO_LARGE if request.fails else inputs_of(request.name, request.seed)
        try:
            request.outputs = self.served.run(request.name, inputs, request.timeout_s)
        except iosched.IoschedError as error:
            request.error = error

    def replace(self) -> None:
        self.served.replace("a", "a")

    def remove_and_add(self) -> None:
        self.served.remove("c")
        self.threads.pause()
        self.served.add("c", "c")

    def version(self, name: str, runnable: Any) -> Version:
        """A model of this name, which leaves its plans open for other cases."""
        executor = Executor(Kept(runnable, self), "kept")
        interface = PlanInterface(runnable.model.inputs, runnable.model.outputs)
        found = Version.of_plan(executor, name, interface, lambda: (runnable.model.model, None))
        found.case = self
        self.versions.append(found)
        return found


class Version(LoadedModel):
    """A model whose `close` lets other threads continue while it waits for runs."""

    case: Case

    def close(self) -> None:
        self.case.threads.pause(lambda: not self._runs._going)
        super().close()


@dataclass(eq=False)
class Kept:
    """The plans of a model, of which one version closes nothing."""

    inner: Any
    case: Case
    going: int = 0
    closed: int = 0

    def run(self, inputs: Arrays) -> Arrays:
        assert not self.closed
        self.case.own.request.ran_on = self
        self.going += 1
        try:
            found: Arrays = self.inner.run(inputs)
            return found
        finally:
            self.going -= 1

    def close(self) -> None:
        assert not self.going
        self.closed += 1


@dataclass(eq=False)
class Observed:
    """An executor that lets other threads continue before and after it runs."""

    inner: Any
    block: Block
    case: Case | None = None

    def run(self, inputs: Arrays) -> Arrays:
        assert self.case is not None
        self.case.own.request.block = self.block
        self.case.threads.pause()
        try:
            found: Arrays = self.inner.run(inputs)
            return found
        finally:
            self.case.threads.pause()


Cases = Callable[[Interleaving, CorePool], Case]


@pytest.fixture
def observed(served: ServedModels, monkeypatch: pytest.MonkeyPatch) -> Cases:
    """Makes a case of the models, on a separate pool."""
    models: dict[str, Any] = dict(served.models)
    runnables = {name: model._executor.runnable for name, model in models.items()}
    executors = []
    for name, found in runnables.items():
        own = {block: Observed(each, block) for block, each in found.on.items()}
        monkeypatch.setattr(found, "on", own)
        monkeypatch.setattr(found, "model", models[name], raising=False)
        executors += own.values()

    def made(threads: Interleaving, pool: CorePool) -> Case:
        case = Case(served, threads)
        for each in executors:
            each.case = case
        for found in runnables.values():
            monkeypatch.setattr(found, "pool", pool)
        monkeypatch.setattr(served, "_pool", pool)
        monkeypatch.setattr(served, "_opened", lambda name, _: case.version(name, runnables[name]))
        monkeypatch.setattr(served, "_models", {name: case.version(name, own) for name, own in runnables.items()})
        return case

    return made


def check(case: Case, alone: dict[tuple[str, Block, int], Arrays]) -> None:
    """Each request has its own outputs, bit by bit, of the model that it found, or an error of its own."""
    for version in case.versions:
        kept = version._executor.runnable
        assert isinstance(kept, Kept)
        assert kept.closed == (version not in case.served._models.values())
    for request in case.asked:
        if request.found is None:
            assert isinstance(request.error, UsageError)
            assert request.name == "c"
            continue
        assert request.ran_on is request.found._executor.runnable
        if request.outputs is None:
            expected = (BusyError, ExecutionError) if request.fails else BusyError
            assert isinstance(request.error, expected)
            assert request.fails or request.timeout_s is not None or "wait already" in str(request.error)
            continue
        assert not request.fails
        assert request.block is not None
        for name, array in alone[request.name, request.block, request.seed].items():
            np.testing.assert_array_equal(request.outputs[name], array, strict=True)


def interleave(made: Cases, seed: int) -> tuple[Case, CorePool]:
    threads = Interleaving(seed)
    policy = ServingPolicy({"c": ModelPolicy(priority=seed % 3, most_waiting=1)})
    pool = CorePool(CORES, policy, clock=threads.clock, new_gate=partial(Gate, threads))
    case, draw = made(threads, pool), threads.random
    for _ in range(draw.randrange(2, 10)):
        name = draw.choice("aabc")
        timeout_s = draw.choice((None, None, 0.0, 0.05))
        case.ask(Asked(name, draw.randrange(8), timeout_s, fails=name == "b" and draw.random() < 0.5))
    for change in draw.sample((case.replace, case.replace, case.remove_and_add), draw.randrange(4)):
        threads.spawn(change)
    threads.run()
    return case, pool


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_each_request_gets_what_its_plan_computes_alone(
    observed: Cases, alone: dict[tuple[str, Block, int], Arrays], count: int
) -> None:
    ended = Counter[str]()
    for seed in range(count):
        case, pool = interleave(observed, seed)
        check(case, alone)
        assert not pool._dispatcher.running
        assert not pool._dispatcher.waiting
        assert len(pool._dispatcher._free) == CORES
        ended.update("ran" if each.error is None else type(each.error).__name__ for each in case.asked)
    assert min(ended[kind] for kind in ("ran", "BusyError", "ExecutionError", "UsageError")) > count / 20
