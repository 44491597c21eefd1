"""Both executors compute hand-written plans bit by bit like numpy and plain onnxruntime."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.errors import DeviceError, ExecutionError, UsageError
from iosched.runtime import arena
from iosched.runtime.cpu import library
from iosched.runtime.cpu.kernels import EXTERNAL_LOCATION, Copy, Kernel, Program
from iosched.runtime.cpu.native import NativeExecutor, NativeRuntime, supports
from iosched.runtime.cpu.python_executor import PythonExecutor
from iosched.runtime.hazards import CheckedPlan
from iosched.runtime.plan import Buffer, ExecutionPlan, MemorySpace, PlanTask, View, Wait

needs_native = pytest.mark.skipif(not library.available(), reason=f"no compiled executor: {library.missing()}")
EXECUTORS = [pytest.param(NativeExecutor, marks=needs_native, id="native"), pytest.param(PythonExecutor, id="python")]
both = pytest.mark.parametrize("executor", EXECUTORS)
AnyExecutor = Callable[..., NativeExecutor | PythonExecutor]
ONNX_TYPE = {"float32": 1, "int64": 7, "bool": 9, "float16": 10, "float64": 11, "uint8": 2, "string": 8}
Shape = tuple[int, ...] | None


def program(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[str, Shape]],
    outputs: dict[str, tuple[str, Shape]],
    weights: dict[str, np.ndarray] | None = None,
    location: str = EXTERNAL_LOCATION,
) -> Program:
    values = [
        [onnx.helper.make_tensor_value_info(name, ONNX_TYPE[dtype], shape) for name, (dtype, shape) in group.items()]
        for group in (inputs, outputs)
    ]
    initializers = []
    for name, array in (weights or {}).items():
        tensor = onnx.TensorProto(name=name, data_type=ONNX_TYPE[array.dtype.name], dims=array.shape)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        initializers.append(tensor)
    graph = onnx.helper.make_graph(list(nodes), "g", *values, initializers)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return Program(model.SerializeToString, tuple(inputs), tuple(outputs), tuple((weights or {}).items()))


def binary(kind: str, dtype: str = "float32", shape: tuple[int, ...] = (16,)) -> Program:
    node = onnx.helper.make_node(kind, ["a", "b"], ["c"])
    return program([node], {"a": (dtype, shape), "b": (dtype, shape)}, {"c": (dtype, shape)})


def seen(name: str, shape: tuple[int, ...] = (16,), dtype: str = "float32", offset: int = 0) -> View:
    return View(name, dtype, shape, offset, int(np.prod(shape)) * np.dtype(dtype).itemsize)


def task(name: str, kernel: int, reads: list[View], writes: list[View], *waits: tuple[int, int]) -> PlanTask:
    return PlanTask(name, kernel, tuple(reads), tuple(writes), tuple(Wait(*wait) for wait in waits))


def planned(
    lanes: Sequence[Sequence[PlanTask]], buffers: Sequence[Buffer], outputs: tuple[View, ...] = ()
) -> CheckedPlan:
    frozen = tuple(map(tuple, lanes))
    return CheckedPlan(ExecutionPlan(frozen, *arena.place(frozen, buffers), outputs))


def with_outputs(checked: CheckedPlan, *outputs: View) -> CheckedPlan:
    return CheckedPlan(replace(checked.plan, outputs=outputs))


X = np.linspace(-2, 3, 16, dtype=np.float32)
XY = (Buffer("x", MemorySpace.INPUT, 64), Buffer("y", MemorySpace.OUTPUT, 64))


def diamond() -> tuple[CheckedPlan, tuple[Kernel, ...]]:
    """y = (x + x) * (x - x/2...): two lanes that meet in slices of one buffer."""
    lanes = (
        (
            task("double", 0, [seen("x"), seen("x")], [seen("d")]),
            task("y", 1, [seen("d"), seen("s")], [seen("y")], (1, 1)),
        ),
        (task("square", 1, [seen("x"), seen("x")], [seen("s")]),),
    )
    buffers = (*XY, Buffer("d", MemorySpace.ARENA, 64), Buffer("s", MemorySpace.ARENA, 64))
    return planned(lanes, buffers), (binary("Add"), binary("Mul"))


@both
def test_lanes_wait_for_each_other(executor: AnyExecutor) -> None:
    plan, kernels = diamond()
    with executor(plan, kernels) as ready:
        for _ in range(200):
            np.testing.assert_array_equal(ready.run({"x": X})["y"], (X + X) * (X * X))


@needs_native
def test_a_run_ends_while_a_worker_thread_is_suspended() -> None:
    plan, kernels = diamond()
    with NativeExecutor(plan, kernels) as ready:
        before = _thread_ids()
        expected = ready.run({"x": X})["y"]
        (worker,) = _thread_ids() - before
        with _stopped(worker):
            found: list[np.ndarray] = []
            _in_threads([lambda: found.extend(ready.run({"x": X})["y"] for _ in range(20))])
        np.testing.assert_array_equal(found, [expected] * 20)
        np.testing.assert_array_equal(ready.run({"x": X})["y"], expected)


_SLEEPS = "voluntary_ctxt_switches"


@contextmanager
def _stopped(thread: int) -> Iterator[None]:
    """Keeps a thread in the handler of a signal."""
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    previous = libc.signal(signal.SIGUSR1, ctypes.cast(libc.pause, ctypes.c_void_p))
    other = signal.signal(signal.SIGUSR2, lambda *_: None)  # ends the pause
    while not _status(thread)["State"].startswith("S"):
        time.sleep(0.001)
    _deliver(libc, thread, signal.SIGUSR1)
    try:
        yield
    finally:
        _deliver(libc, thread, signal.SIGUSR2)
        libc.signal(signal.SIGUSR1, ctypes.c_void_p(previous))
        signal.signal(signal.SIGUSR2, other)


def _deliver(libc: ctypes.CDLL, thread: int, number: int) -> None:
    """Returns when the thread sleeps again."""
    before = _status(thread)[_SLEEPS]
    assert libc.tgkill(os.getpid(), thread, number) == 0
    while _status(thread)[_SLEEPS] == before:
        time.sleep(0.001)


def _status(thread: int) -> dict[str, str]:
    lines = Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
    return {key: value for key, _, value in (line.partition(":\t") for line in lines)}


def library_between_lanes() -> tuple[CheckedPlan, tuple[Kernel, ...]]:
    """y = exp(x + x) * (x * x) + ...: both lanes, then a kernel over all of their cores, then both lanes again."""
    spanning = replace(binary("Mul"), cores=2)
    lanes = (
        (
            task("double", 0, [seen("x"), seen("x")], [seen("d")]),
            task("all", 2, [seen("d"), seen("s")], [seen("m")], (1, 1)),
            task("y", 0, [seen("m"), seen("e")], [seen("y")], (1, 2)),
        ),
        (
            task("square", 1, [seen("x"), seen("x")], [seen("s")]),
            task("again", 0, [seen("m"), seen("m")], [seen("e")], (0, 2)),
        ),
    )
    buffers = (*XY, *(Buffer(name, MemorySpace.ARENA, 64) for name in "dsme"))
    return planned(lanes, buffers), (binary("Add"), binary("Mul"), spanning)


@both
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "unpinned"])
def test_a_library_kernel_runs_between_tasks_of_both_lanes(executor: AnyExecutor, pinned: bool) -> None:
    plan, kernels = library_between_lanes()
    with executor(plan, kernels, cpus=sorted(os.sched_getaffinity(0)) if pinned else (-1, -2)) as ready:
        for _ in range(50):
            np.testing.assert_array_equal(ready.run({"x": X})["y"], (X + X) * (X * X) * 3)


@both
def test_a_library_that_fails_stops_all_lanes(executor: AnyExecutor) -> None:
    plan, kernels = library_between_lanes()
    narrow = replace(binary("Mul", shape=(8,)), cores=2)
    with executor(plan, [*kernels[:2], narrow]) as ready:
        for _ in range(3):
            with pytest.raises(ExecutionError):
                ready.run({"x": X})


@both
def test_results_are_new_arrays_and_inputs_stay(executor: AnyExecutor) -> None:
    plan, kernels = diamond()
    x = X.copy()
    with executor(plan, kernels) as ready:
        first = ready.run({"x": x})["y"]
        kept = first.copy()
        ready.run({"x": x * 2})
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(x, X)


@both
@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_a_chain_that_changes_lanes_at_every_step_is_in_order(executor: AnyExecutor, lanes: int) -> None:
    length, tasks = 40, [[] for _ in range(lanes)]
    for i in range(length):
        before, after = "x" if i == 0 else f"t{i - 1}", "y" if i == length - 1 else f"t{i}"
        other = (i - 1) % lanes
        waits = [(other, len(tasks[other]))] if i and lanes > 1 else []
        tasks[i % lanes].append(task(after, 0, [seen(before), seen("x")], [seen(after)], *waits))
    buffers = (*XY, *(Buffer(f"t{i}", MemorySpace.ARENA, 64) for i in range(length - 1)))
    plan = planned(tasks, buffers)
    assert plan.plan.arena_nbytes == 128
    expected = X.copy()
    for _ in range(length):
        expected = expected + X
    with executor(plan, [binary("Add")], cpus=sorted(os.sched_getaffinity(0))) as ready:
        for _ in range(20):
            np.testing.assert_array_equal(ready.run({"x": X})["y"], expected)


@both
@pytest.mark.parametrize("location", [EXTERNAL_LOCATION, "weights"])
def test_convolutions_write_slices_with_shared_weights(executor: AnyExecutor, location: str) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 4, 3, 3)).astype(np.float32)
    x = rng.standard_normal((1, 4, 6, 6)).astype(np.float32)
    node = onnx.helper.make_node("Conv", ["a", "w"], ["c"], pads=[1, 1, 1, 1])

    def conv(weight: np.ndarray) -> Program:
        shapes = {"a": ("float32", (1, 4, 6, 6))}, {"c": ("float32", (1, len(weight), 6, 6))}
        return program([node], *shapes, {"w": weight}, location)

    half = seen("y", (1, 4, 6, 6)), seen("y", (1, 4, 6, 6), offset=4 * 36 * 4)
    source = seen("x", (1, 4, 6, 6))
    lanes = ((task("top", 0, [source], [half[0]]),), (task("bottom", 1, [source], [half[1]]),))
    buffers = (Buffer("x", MemorySpace.INPUT, x.nbytes), Buffer("y", MemorySpace.OUTPUT, 2 * x.nbytes))
    plan = planned(lanes, buffers, (seen("y", (1, 8, 6, 6)),))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(_with_payload(conv(w)), options)
    with executor(plan, [conv(w[:4]), conv(w[4:])]) as ready:
        np.testing.assert_array_equal(ready.run({"x": x})["y"], session.run(None, {"a": x})[0])


def _with_payload(kernel: Program) -> bytes:
    model = onnx.load_from_string(kernel.model)
    del model.graph.initializer[:]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in kernel.weights)
    return model.SerializeToString()


@both
def test_an_output_written_in_parts_needs_its_shape(executor: AnyExecutor) -> None:
    lane = (
        task("a", 0, [seen("x"), seen("x")], [seen("y")]),
        task("b", 0, [seen("x"), seen("x")], [seen("y", offset=64)]),
    )
    plan = planned(
        (lane,),
        (Buffer("x", MemorySpace.INPUT, 64), Buffer("y", MemorySpace.OUTPUT, 128), Buffer("z", MemorySpace.OUTPUT, 0)),
    )
    with pytest.raises(ValueError, match="shape of its output 'y'"):
        executor(plan, [binary("Add")])
    with pytest.raises(ValueError, match="omit 'y'"):
        executor(with_outputs(plan, seen("z", (0,))), [binary("Add")])
    with executor(with_outputs(plan, seen("y", (2, 16)), seen("z", (0,))), [binary("Add")]) as ready:
        np.testing.assert_array_equal(ready.run({"x": X})["y"], np.stack([X + X, X + X]))


@both
@pytest.mark.parametrize("dtype", ["float16", "int64", "float64"])
def test_other_number_types(executor: AnyExecutor, dtype: str) -> None:
    x = np.arange(16).astype(dtype)
    nbytes = x.nbytes
    lane = (task("y", 0, [seen("x", dtype=dtype), seen("x", dtype=dtype)], [seen("y", dtype=dtype)]),)
    plan = planned((lane,), (Buffer("x", MemorySpace.INPUT, nbytes), Buffer("y", MemorySpace.OUTPUT, nbytes)))
    with executor(plan, [binary("Mul", dtype)]) as ready:
        np.testing.assert_array_equal(ready.run({"x": x})["y"], x * x)


@both
def test_booleans_scalars_and_empty_tensors(executor: AnyExecutor) -> None:
    nodes = [onnx.helper.make_node("Not", ["a"], ["c"])]
    kernels = [program(nodes, {"a": ("bool", shape)}, {"c": ("bool", shape)}) for shape in ((3,), (), (0, 2))]
    shapes: list[tuple[int, ...]] = [(3,), (), (0, 2)]
    lane = [task(f"y{i}", i, [seen(f"x{i}", s, "bool")], [seen(f"y{i}", s, "bool")]) for i, s in enumerate(shapes)]
    spaces = {"x": MemorySpace.INPUT, "y": MemorySpace.OUTPUT}
    sized = [(i, int(np.prod(shape))) for i, shape in enumerate(shapes)]
    buffers = [Buffer(f"{k}{i}", space, nbytes) for k, space in spaces.items() for i, nbytes in sized]
    inputs = {"x0": np.array([True, False, True]), "x1": np.array(True), "x2": np.zeros((0, 2), np.bool_)}
    with executor(planned((lane,), buffers), kernels) as ready:
        result = ready.run(inputs)
    for i, shape in enumerate(shapes):
        assert result[f"y{i}"].shape == shape
        np.testing.assert_array_equal(result[f"y{i}"], ~inputs[f"x{i}"])


@both
def test_copies(executor: AnyExecutor) -> None:
    lane = (task("a", 0, [seen("x")], [seen("a")]), task("y", 0, [seen("a", (8,), offset=32)], [seen("y", (8,))]))
    buffers = (
        Buffer("x", MemorySpace.INPUT, 64),
        Buffer("y", MemorySpace.OUTPUT, 32),
        Buffer("a", MemorySpace.ARENA, 64),
    )
    with executor(planned((lane,), buffers), [Copy()]) as ready:
        np.testing.assert_array_equal(ready.run({"x": X})["y"], X[8:])


def nonzero() -> tuple[CheckedPlan, tuple[Kernel, ...]]:
    """Lane 0 finds the indices of what is not zero; lane 1 casts them; both are graph outputs."""
    find = program([onnx.helper.make_node("NonZero", ["a"], ["i"])], {"a": ("float32", (16,))}, {"i": ("int64", None)})
    cast = program(
        [onnx.helper.make_node("Cast", ["i"], ["f"], to=1)], {"i": ("int64", None)}, {"f": ("float32", None)}
    )
    found, as_float = View("i", "int64", None), View("f", "float32", None)
    lanes = ((task("i", 0, [seen("x")], [found]),), (task("f", 1, [found], [as_float], (0, 1)),))
    buffers = (XY[0], Buffer("i", MemorySpace.DYNAMIC, 0), Buffer("f", MemorySpace.DYNAMIC, 0))
    return planned(lanes, buffers, (found, as_float)), (find, cast)


@both
def test_sizes_known_only_at_run_time(executor: AnyExecutor) -> None:
    plan, kernels = nonzero()
    with executor(plan, kernels) as ready:
        for count in (3, 0, 16):
            x = np.zeros(16, np.float32)
            x[:count] = 1
            result = ready.run({"x": x})
            np.testing.assert_array_equal(result["i"], np.arange(count)[None])
            assert result["f"].dtype == np.float32
            assert result["f"].shape == (1, count)
        assert len(ready.time({"x": x}, 5)) == 5
        np.testing.assert_array_equal(ready.run({"x": x})["i"], np.arange(16)[None])


@both
def test_inner_sequence_and_dynamic_read_with_static_write(executor: AnyExecutor) -> None:
    split = onnx.helper.make_node("SplitToSequence", ["a"], ["s"], axis=0, keepdims=0)
    sequence = onnx.helper.make_tensor_sequence_value_info("s", 1, None)
    tensor = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in (("a", (16,)), ("c", (16,)))]
    stack = onnx.helper.make_node("ConcatFromSequence", ["s"], ["c"], axis=0, new_axis=1)
    graphs = [([split], [tensor[0]], [sequence]), ([stack], [sequence], [tensor[1]])]
    opset = [onnx.helper.make_opsetid("", 17)]
    models = [onnx.helper.make_model(onnx.helper.make_graph(n, "g", i, o), opset_imports=opset) for n, i, o in graphs]
    for model in models:
        model.ir_version = 8
    kernels = [
        Program(models[0].SerializeToString, ("a",), ("s",)),
        Program(models[1].SerializeToString, ("s",), ("c",)),
    ]
    held = View("s", "seq(tensor(float))", None)
    lanes = ((task("s", 0, [seen("x")], [held]),), (task("y", 1, [held], [seen("y")], (0, 1)),))
    plan = planned(lanes, (*XY, Buffer("s", MemorySpace.DYNAMIC, 0)), (seen("y"),))
    with executor(plan, kernels) as ready:
        np.testing.assert_array_equal(ready.run({"x": X})["y"], X)
    if executor is PythonExecutor:
        with executor(with_outputs(plan, held, seen("y")), kernels) as ready:
            np.testing.assert_array_equal(np.stack(ready.run({"x": X})["s"]), X)


@needs_native
def test_native_executor_names_unsupported_outputs() -> None:
    plan, _ = diamond()
    assert supports(plan.plan)
    assert supports(nonzero()[0].plan)
    for dtype in ("string", "seq(tensor(float))"):
        assert not supports(replace(plan.plan, outputs=(View("y", dtype, None),)))


def test_strings_go_through_python() -> None:
    node = onnx.helper.make_node("Identity", ["a"], ["c"])
    kernel = program([node], {"a": ("string", (2,))}, {"c": ("string", (2,))})
    lane = (task("y", 0, [View("x", "string", (2,))], [View("y", "string", (2,))]),)
    plan = ExecutionPlan((lane,), (Buffer("x", MemorySpace.INPUT, 0), Buffer("y", MemorySpace.DYNAMIC, 0)), 0)
    assert not supports(plan)
    with PythonExecutor(CheckedPlan(plan), [kernel]) as ready:
        assert ready.run({"x": np.array(["one", "two"])})["y"].tolist() == ["one", "two"]


# --- errors ---------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("failing_lane", [0, 1, 2])
def test_an_error_in_the_middle_stops_all_lanes_and_leaves_the_executor_usable(
    executor: AnyExecutor, failing_lane: int
) -> None:
    gather = program(
        [onnx.helper.make_node("Gather", ["a", "i"], ["c"])],
        {"a": ("float32", (16,)), "i": ("int64", (16,))},
        {"c": ("float32", (16,))},
    )
    index = seen("i", dtype="int64")
    order = [failing_lane, (failing_lane + 1) % 3, (failing_lane + 2) % 3]
    lanes: list[list[PlanTask]] = [[], [], []]
    lanes[order[0]].append(task("pick", 1, [seen("x"), index], [seen("a")]))
    lanes[order[1]].append(task("b", 0, [seen("a"), seen("a")], [seen("b")], (order[0], 1)))
    lanes[order[2]].append(task("y", 0, [seen("b"), seen("b")], [seen("y")], (order[1], 1)))
    lanes[order[0]].append(task("z", 0, [seen("y"), seen("y")], [seen("z")], (order[2], 1)))
    arrays = (*XY, Buffer("i", MemorySpace.INPUT, 128), Buffer("z", MemorySpace.OUTPUT, 64))
    plan = planned(lanes, (*arrays, Buffer("a", MemorySpace.ARENA, 64), Buffer("b", MemorySpace.ARENA, 64)))
    good, bad = np.arange(16), np.full(16, 99)
    with executor(plan, [binary("Add"), gather]) as ready:
        for _ in range(20):
            with pytest.raises(ExecutionError, match="Gather"):
                ready.run({"x": X, "i": bad})
            np.testing.assert_array_equal(ready.run({"x": X, "i": good})["z"], X * 8)
        with pytest.raises(ExecutionError, match="Gather"):
            ready.time({"x": X, "i": bad}, 3)


@both
@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "'x' is missing"),
        ({"x": X.astype(np.float64)}, "must be float32"),
        ({"x": X[:8]}, r"shape \(16,\)"),
        ({"x": X.reshape(4, 4)}, r"not float32 of shape \(4, 4\)"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(executor: AnyExecutor, inputs: dict[str, np.ndarray], words: str) -> None:
    plan, kernels = diamond()
    with executor(plan, kernels) as ready:
        with pytest.raises(UsageError, match=words):
            ready.run(inputs)
        strided = np.repeat(X, 2)[::2]
        assert not strided.flags.c_contiguous
        np.testing.assert_array_equal(ready.run({"x": strided})["y"], (X + X) * (X * X))


@both
def test_broken_plans_and_programs_are_refused(executor: AnyExecutor) -> None:
    plan, kernels = diamond()
    with pytest.raises(ExecutionError):
        executor(plan, [kernels[0], replace(kernels[1], write=lambda: b"no model")])
    with pytest.raises(ValueError, match="names kernel 1 of 1"):
        executor(plan, kernels[:1])
    with pytest.raises(ValueError, match="does not fit"):
        executor(plan, [Copy(), kernels[1]])


@both
def test_closed_executor_raises(executor: AnyExecutor) -> None:
    plan, kernels = diamond()
    ready = executor(plan, kernels)
    ready.close()
    ready.close()
    with pytest.raises(ValueError, match="closed"):
        ready.run({"x": X})


# --- threads, sharing, life time --------------------------------------------------------------------------------------


@both
def test_several_threads_use_one_executor(executor: AnyExecutor) -> None:
    plan, kernels = diamond()
    wrong: list[int] = []
    with executor(plan, kernels) as ready:

        def work(factor: int) -> None:
            x = X * factor
            for _ in range(30):
                if not np.array_equal(ready.run({"x": x})["y"], (x + x) * (x * x)):
                    wrong.append(factor)

        _in_threads([lambda factor=factor: work(factor) for factor in range(4)])
    assert not wrong


@needs_native
def test_executors_share_one_runtime_or_run_side_by_side() -> None:
    plan, kernels = diamond()
    chain, chain_kernels = nonzero()
    with NativeRuntime() as one, NativeRuntime() as two:
        runs = []
        for runtime in (one, one, two):
            diamonds = NativeExecutor(plan, kernels, runtime=runtime)
            found = NativeExecutor(chain, chain_kernels, runtime=runtime)
            runs.append(lambda d=diamonds: [d.run({"x": X}) for _ in range(50)])
            runs.append(lambda f=found: [f.run({"x": X}) for _ in range(50)])
        _in_threads(runs)
        np.testing.assert_array_equal(NativeExecutor(plan, kernels, runtime=one).run({"x": X})["y"], 2 * X * (X * X))


def _in_threads(jobs: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@needs_native
def test_equal_programs_share_a_session_until_sessions_are_dropped() -> None:
    weight = np.ones(16, np.float32)
    node = [onnx.helper.make_node("Add", ["a", "w"], ["c"])]
    shape = {"a": ("float32", (16,))}, {"c": ("float32", (16,))}
    with NativeRuntime() as runtime:
        (first,) = runtime.kernels([program(node, *shape, {"w": weight})])
        assert runtime.kernels([program(node, *shape, {"w": weight})]) == [first]
        assert runtime.kernels([program(node, *shape, {"w": weight.copy()})]) != [first]
        runtime.drop_sessions()
        assert runtime.kernels([program(node, *shape, {"w": weight})]) != [first]


@needs_native
def test_a_closed_runtime_serves_existing_executors_but_no_new_ones() -> None:
    plan, kernels = diamond()
    runtime = NativeRuntime()
    ready = NativeExecutor(plan, kernels, runtime=runtime)
    runtime.close()
    runtime.close()
    np.testing.assert_array_equal(ready.run({"x": X})["y"], 2 * X * (X * X))
    with pytest.raises(ValueError, match="closed"):
        NativeExecutor(plan, kernels, runtime=runtime)


@needs_native
def test_weights_are_not_copied() -> None:
    weight = np.ones((2048, 2048), np.float32)
    node = [onnx.helper.make_node("Add", ["a", "w"], ["c"])]
    with NativeRuntime() as runtime:
        before = _resident_nbytes()
        for index in range(8):
            node[0].name = f"distinct{index}"
            runtime.kernels([program(node, {"a": ("float32", (1,))}, {"c": ("float32", (2048, 2048))}, {"w": weight})])
        assert _resident_nbytes() - before < 2 * weight.nbytes, "8 copies would be 128 MiB"


@pytest.mark.slow
@needs_native
def test_executors_leave_no_threads_and_no_memory_behind() -> None:
    plan, kernels = diamond()

    def cycle() -> None:
        with NativeExecutor(plan, kernels) as ready:
            ready.run({"x": X})

    gc.collect()  # threads of executors that other tests left behind
    for _ in range(20):
        cycle()
    threads, memory = len(_thread_ids()), _resident_nbytes()
    for _ in range(200):
        cycle()
    assert len(_thread_ids()) == threads
    assert _resident_nbytes() - memory < 8 << 20


def _resident_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _thread_ids() -> set[int]:
    return {int(each.name) for each in Path("/proc/self/task").iterdir()}


@needs_native
def test_lanes_that_share_a_core_wait_without_spinning() -> None:
    """Neither they nor their idle threads spin, so they use less processor time."""
    first, second = task("0", 0, [seen("x"), seen("x")], [seen("s")]), task("1", 0, [seen("s"), seen("x")], [seen("y")])
    lanes = [[first], *([replace(second, name=str(n), writes=(seen(f"y{n}"),), waits=(Wait(0, 1),))] for n in range(3))]
    outputs = [Buffer(f"y{n}", MemorySpace.OUTPUT, 64) for n in range(3)]
    plan = planned(lanes, [XY[0], Buffer("s", MemorySpace.ARENA, 64), *outputs])

    def busy_s(cpus: list[int]) -> float:
        with NativeExecutor(plan, (binary("Add"),), cpus=cpus) as ready:
            ready.run({"x": X})
            before = time.process_time() - time.thread_time()
            for _ in range(60):
                ready.run({"x": X})
                time.sleep(0.001)
            return time.process_time() - time.thread_time() - before

    shared, apart = (min(busy_s(cpus) for _ in range(3)) for cpus in ([-1, -1, -1, -1], [-1, -2, -3, -4]))
    assert shared < apart / 2


@needs_native
def test_the_caller_keeps_its_affinity() -> None:
    plan, kernels = diamond()
    before = os.sched_getaffinity(0)
    for executor in (NativeExecutor, PythonExecutor):
        with executor(plan, kernels, cpus=[min(before)]) as ready:
            ready.run({"x": X})
        with executor(plan, kernels, cpus=[100_000]) as ready:
            ready.run({"x": X})
        assert os.sched_getaffinity(0) == before


@needs_native
def test_forked_child_raises_and_parent_continues() -> None:
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from test_executors import *\n"
        "plan, kernels = diamond(); ready = NativeExecutor(plan, kernels); ready.run({'x': X})\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try: ready.run({'x': X})\n"
        "    except ExecutionError as error: os._exit(7 if 'forked' in str(error) else 1)\n"
        "    os._exit(1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7; ready.run({'x': X})\n"
    )
    subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], check=True, timeout=60)


@pytest.mark.slow
@needs_native
def test_child_forked_during_a_run_raises_too() -> None:
    code = (
        "import os, signal, sys, threading; sys.path.insert(0, sys.argv[1]); from test_executors import *\n"
        "plan, kernels = diamond(); ready = NativeExecutor(plan, kernels); took = ready.time({'x': X}, 100)\n"
        "runs = threading.Thread(target=ready.time, args=({'x': X}, int(5e5 / max(sum(took) / 100, 1))))\n"
        "runs.start()\n"
        "while not ready._lock.locked(): pass\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    signal.alarm(20)\n"
        "    ready.close()\n"
        "    try: ready.run({'x': X})\n"
        "    except ExecutionError as error: os._exit(7 if 'forked' in str(error) else 1)\n"
        "    os._exit(1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7; runs.join()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], check=True, timeout=60)


@pytest.fixture
def _no_cached_library() -> Iterator[None]:
    library.missing.cache_clear()
    library._found.cache_clear()
    yield
    library.missing.cache_clear()
    library._found.cache_clear()


@pytest.mark.usefixtures("_no_cached_library")
def test_without_the_library_the_error_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    assert not library.available()
    assert "not built" in str(library.missing())
    with pytest.raises(DeviceError, match="not built"):
        NativeRuntime()


@pytest.mark.usefixtures("_no_cached_library")
@needs_native
def test_library_of_another_version_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_ABI_VERSION", -1)
    assert not library.available()
    assert "built for another version of iosched; rebuild it with 'pip install -e .'" in str(library.missing())


@pytest.mark.usefixtures("_no_cached_library")
def test_library_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    (tmp_path / "_executor.so").write_bytes(b"no library")
    assert "(_executor.so) does not load; rebuild it" in str(library.missing())


@needs_native
def test_the_library_exports_its_interface_alone() -> None:
    found = library.compiled()
    assert isinstance(found, ctypes.CDLL)
    assert not hasattr(found, "_ZN12_GLOBAL__N_18ExecutorE")


# --- random plans -----------------------------------------------------------------------------------------------------


@st.composite
def dataflows(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], list[int], int]:
    """For every node its kernel and two operands (0 is x, i+1 is node i), and its lane."""
    n = draw(st.integers(1, 16))
    nodes = [(draw(st.integers(0, 2)), draw(st.integers(0, i)), draw(st.integers(0, i))) for i in range(n)]
    lanes = draw(st.integers(1, 4))
    return nodes, [draw(st.integers(0, lanes - 1)) for _ in range(n)], lanes


RANDOM_KERNELS = (binary("Add"), binary("Mul"), binary("Min"))
NUMPY = (np.add, np.multiply, np.minimum)


def random_plan(nodes: list[tuple[int, int, int]], lane_of: list[int], n_lanes: int) -> CheckedPlan:
    lanes: list[list[PlanTask]] = [[] for _ in range(n_lanes)]
    step: list[int] = []
    names = ["x", *(f"t{i}" for i in range(len(nodes) - 1)), "y"]
    for index, (kernel, *operands) in enumerate(nodes):
        need: dict[int, int] = {}
        for operand in operands:
            if operand and lane_of[operand - 1] != lane_of[index]:
                need[lane_of[operand - 1]] = max(need.get(lane_of[operand - 1], 0), step[operand - 1])
        reads = [seen(names[operand]) for operand in operands]
        lane = lanes[lane_of[index]]
        lane.append(task(names[index + 1], kernel, reads, [seen(names[index + 1])], *need.items()))
        step.append(len(lane))
    return planned(lanes, (*XY, *(Buffer(name, MemorySpace.ARENA, 64) for name in names[1:-1])))


@needs_native
def test_random_dataflow_on_random_lanes_equals_numpy() -> None:
    x = np.random.default_rng(1).standard_normal(16).astype(np.float32)
    with NativeRuntime() as runtime:

        @given(dataflows())
        def check(flow: tuple[list[tuple[int, int, int]], list[int], int]) -> None:
            values = [x]
            with np.errstate(over="ignore", invalid="ignore"):
                for kernel, a, b in flow[0]:
                    values.append(NUMPY[kernel](values[a], values[b]))
            with NativeExecutor(random_plan(*flow), RANDOM_KERNELS, runtime=runtime) as ready:
                for _ in range(5):
                    np.testing.assert_array_equal(ready.run({"x": x})["y"], values[-1])

        check()


@both
def test_a_cache_flush_changes_no_inputs_or_outputs(executor: AnyExecutor) -> None:
    plan, kernels = diamond()
    x, most = X.copy(), 1 << 26
    with executor(plan, kernels) as ready:
        before = resident_nbytes()
        assert len(ready.time({"x": x}, 3, flush_nbytes=most)) == 3
        if executor is NativeExecutor:  # which keeps its flush buffer for the next time
            assert resident_nbytes() - before > 0.9 * most
        np.testing.assert_array_equal(x, X)
        np.testing.assert_array_equal(ready.run({"x": x})["y"], (X + X) * (X * X))


@needs_native
def test_read_only_inputs_are_refused_by_a_cache_flush() -> None:
    plan, kernels = diamond()
    x = X.copy()
    x.flags.writeable = False
    with NativeExecutor(plan, kernels) as ready:
        assert len(ready.time({"x": x}, 2)) == 2
        with pytest.raises(ValueError, match="needs writable inputs"):
            ready.time({"x": x}, 2, flush_nbytes=1)


def resident_nbytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@both
def test_one_time_is_returned_for_each_run(executor: AnyExecutor) -> None:
    plan, kernels = diamond()
    with executor(plan, kernels) as ready:
        times_us = ready.time({"x": X}, 50)
    assert len(times_us) == 50
    assert all(0 < time_us < 1e6 for time_us in times_us)


@both
def test_trace_has_begin_and_end_of_each_task(executor: AnyExecutor) -> None:
    plan, kernels = diamond()
    names = [task.name for task in plan.plan.tasks]
    with executor(plan, kernels) as ready:
        times_us, spans_us = ready.trace({"x": X}, 20)
        np.testing.assert_array_equal(ready.run({"x": X})["y"], (X + X) * (X * X))
    assert len(times_us) == 20
    assert spans_us.shape == (20, len(names), 2)
    assert (np.diff(spans_us) > 0).all(), "a task ends after it began"
    ends, begins = spans_us[:, :, 1], spans_us[:, names.index("y"), 0]
    assert (ends[:, names.index("double")] <= begins).all(), "in the order of the lane"
    assert (ends[:, names.index("square")] <= begins).all(), "after what it waits for"
    assert (ends.max(axis=1) <= times_us).all()
    assert (spans_us > 0).all()
