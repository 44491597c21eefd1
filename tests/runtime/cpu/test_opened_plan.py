"""The C interface of plan files, as C programs call it; and the class that calls it from Python."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from plan_files import LANES, dynamic, plan_of
from small_models import branches, feeds_for, loaded

from iosched.models.errors import UsageError
from iosched.runtime.cpu import library, opened_plan
from iosched.runtime.cpu.arrays import address
from iosched.runtime.cpu.opened_plan import OpenedPlan, OpenedProgram

pytestmark = pytest.mark.skipif(not library.available(), reason=f"no compiled executor: {library.missing()}")


class Interface:
    """The five functions, and a plan that they opened."""

    def __init__(self, path: Path) -> None:
        found, onnxruntime = library.compiled(), library.onnxruntime_path()
        assert found is not None
        assert onnxruntime is not None
        self.library, self.base = found, library.api_base(onnxruntime)
        self.plan = self.open(path)

    def open(self, path: Path, base: int | None = None, options: object = None) -> int | None:
        found: int | None = self.library.iosched_plan_open(os.fsencode(path), base or self.base, options)
        return found

    def describe(self, program: int, size: int | None = None) -> tuple[int, opened_plan._Description]:
        about = opened_plan._Description(size=ctypes.sizeof(opened_plan._Description) if size is None else size)
        return self.library.iosched_plan_describe(self.plan, program, ctypes.byref(about)), about

    def run(self, program: int, inputs: list[int | None] | None, outputs: list[int | None] | None) -> int:
        arrays = [None if each is None else (ctypes.c_void_p * len(each))(*each) for each in (inputs, outputs)]
        return int(self.library.iosched_plan_run(self.plan, program, *arrays, None, None))

    @property
    def error(self) -> str:
        return str(self.library.iosched_plan_error().decode())


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[Interface]:
    path = tmp_path / "branches.plan"
    path.write_bytes(plan_of([loaded(branches("N"), batch_size=size) for size in (1, 3)]))
    opened = Interface(path)
    assert (opened.error, opened.plan is None) == ("", False)
    yield opened
    opened.library.iosched_plan_close(opened.plan)


def test_programs_are_described(plan: Interface) -> None:
    for program, batch in enumerate((1, 3)):
        failed, about = plan.describe(program)
        assert (failed, about.n_programs, about.n_lanes, about.n_inputs, about.n_outputs) == (0, 2, LANES, 1, 1)
        assert (about.inputs[0].name, about.inputs[0].type, about.inputs[0].rank) == (b"x", 1, 4)
        assert about.inputs[0].shape[:4] == [batch, 8, 6, 6]
        assert about.outputs[0].nbytes == batch * 16 * 36 * 4
        assert about.model_sha256 == b"0" * 64


def test_wrong_calls_are_errors(plan: Interface) -> None:
    x, y = np.zeros((1, 8, 6, 6), np.float32), np.zeros((1, 16, 6, 6), np.float32)
    assert plan.describe(2)[0] != 0
    assert plan.error == "the plan has no such program"
    assert plan.describe(0, size=8)[0] != 0
    assert plan.error == "the description has another size"
    assert plan.run(2, [address(x)], [address(y)]) != 0
    assert plan.error == "the plan has no such program"
    for inputs, outputs in (([None], [address(y)]), (None, [address(y)]), ([address(x)], None)):
        assert plan.run(0, inputs, outputs) != 0
        assert plan.error == "an input of the plan, or the array of its outputs, is null"
    assert plan.run(0, [address(x)], [None]) != 0
    assert plan.error == "there is no memory for an output of the plan"
    assert plan.run(0, [address(x)], [address(y)]) == 0
    assert plan.error == ""


def test_invalid_files_and_options_are_errors(plan: Interface, tmp_path: Path) -> None:
    options = opened_plan._Options(8, None, 0)
    assert plan.open(tmp_path / "branches.plan", options=ctypes.byref(options)) is None
    assert plan.error == "the options of the plan have another size"
    cpus = (ctypes.c_int32 * (LANES + 1))()
    options = opened_plan._Options(ctypes.sizeof(opened_plan._Options), cpus, LANES + 1)
    assert plan.open(tmp_path / "branches.plan", options=ctypes.byref(options)) is None
    assert plan.error == "the plan has another number of lanes"
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("text" * 100)
    for name in ("fifo", "empty", "text", "."):
        assert plan.open(tmp_path / name) is None
        assert plan.error == f"{tmp_path / name} is not a plan file"
    assert plan.open(tmp_path / "none") is None
    assert plan.error == f"{tmp_path / 'none'}: No such file or directory"
    plan.library.iosched_plan_close(None)


def test_threads_run_one_plan_and_have_their_own_errors(plan: Interface) -> None:
    model = loaded(branches("N"), batch_size=1)
    found: list[list[np.ndarray]] = [[] for _ in range(4)]
    errors: list[str] = [""] * 4
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        x = feeds_for(model, seed=number)["x"]
        for _ in range(50):
            y = np.zeros((1, 16, 6, 6), np.float32)
            assert plan.run(0, [address(x)], [address(y)]) == 0
            found[number].append(y)
        if number % 2:
            plan.describe(7)
        start.wait()
        errors[number] = plan.error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == ["", "the plan has no such program"] * 2
    assert plan.error == ""
    for outputs in found:
        assert len(outputs) == 50
        assert all(np.array_equal(each, outputs[0]) for each in outputs)
    assert not np.array_equal(found[0][0], found[1][0])


def test_a_forked_child_cannot_use_the_plan(plan: Interface) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        x, y = np.zeros((1, 8, 6, 6), np.float32), np.zeros((1, 16, 6, 6), np.float32)
        codes = plan.run(0, [address(x)], [address(y)]), plan.describe(0)[0]
        plan.library.iosched_plan_close(plan.plan)
        os.write(writer, f"{codes} {plan.error}".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "(1, 1) the plan was opened before the process forked: open it again"
    assert os.waitpid(child, 0)[1] == 0
    assert plan.describe(0)[0] == 0


def test_a_plan_runs_from_python(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.plan"
    path.write_bytes(plan_of([loaded(dynamic())]))
    model = OpenedPlan(path)
    assert [(spec.name, spec.shape) for spec in model.programs[0].outputs] == [
        ("found", None),
        ("c", (3,)),
        ("y", (4, 8)),
        ("same", (4, 8)),
    ]
    assert model.number_of({"x": (4, 8), "unused": (3,)}) is None
    assert model.number_of({"x": (4, 8), "unused": (2,)}) == 0
    program = OpenedProgram(model, 0)
    feeds = feeds_for(loaded(dynamic()))
    for scale in (1, 0, -1):
        given = {**feeds, "x": feeds["x"] * np.float32(scale)}
        found = program.run(given)
        np.testing.assert_array_equal(found["found"], np.nonzero(np.maximum(given["x"], 0)))
        np.testing.assert_array_equal(found["same"], given["x"])
    assert len(program.time(feeds, 3)) == 3
    with pytest.raises(UsageError, match="unused"):
        program.run({"x": feeds["x"]})
    model.close()
    model.close()
    with pytest.raises(ValueError, match="closed"):
        program.run(feeds)
