"""CuPy itself under the executor, on a GPU that is simulated in host memory: its types, its order of calls, its errors.

Streams, events, graphs, the memory pool, NVRTC and the packing of arguments are CuPy's own; see `desk_cupy`.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import desk_cudnn
import desk_cupy
import numpy as np
import pytest
from desk_cuda import EMPTY, FILL, KERNEL, DeskCuda
from gpu_plans import expected_outputs, relative_error
from host_driver import HostChoice
from lowering import random_schedule
from networks import zoo_model
from onnx import helper
from scripted import fire
from small_models import FLOAT, crossed, loaded, proto_of, separable_operators, separables

from iosched.jobs.optimize import optimize
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError
from iosched.models.model import Model
from iosched.profiler.devices.cuda.attached import attach
from iosched.profiler.devices.cuda.cudnn_plans import KnownCudnnPlans, StoredCudnnPlans
from iosched.profiler.devices.cuda.facts import usable_names
from iosched.profiler.devices.cuda.gpu_cost import CudaStageCost
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.compare import rtol_of
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.cudnn import fastest
from iosched.runtime.cuda.cudnn.fastest import CudnnHandles
from iosched.runtime.cuda.cudnn.plans import load_cudnn_plan
from iosched.runtime.cuda.gpu import empty_node
from iosched.runtime.cuda.gpu.cupy import CupyDriver
from iosched.runtime.cuda.kernel import CudaCall, Gpu, Pointer, Precision
from iosched.runtime.cuda.layout import Layout, preferred_layout
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.timed_choices import fusion_key
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Stage, Strategy

_MISSING = desk_cupy.missing()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=_MISSING or "")
if _MISSING is None:
    desk_cupy.install()  # before anybody imports CuPy

V100 = Gpu(capability=70, processors=80)
needs_cudnn = pytest.mark.skipif(desk_cudnn.missing() is not None, reason=desk_cudnn.missing() or "")


@pytest.fixture
def desk() -> Iterator[DeskCuda]:
    """One GPU."""
    with desk_cupy.one_gpu() as found:
        yield found


@pytest.fixture
def two_gpus() -> Iterator[DeskCuda]:
    with desk_cupy.two_gpus() as found:
        yield found


@pytest.fixture
def cudnn(desk: DeskCuda, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The open handles of cuDNN."""
    return desk_cudnn.install(monkeypatch, desk)


class _Launcher:
    """The methods of a driver that a `HostPlan` calls, on the desk."""

    def __init__(self, desk: DeskCuda) -> None:
        self.desk, self.launches = desk, desk.launched

    def _add(self, stream: Any, run: Any, touches: Any = ()) -> None:
        self.desk.enqueue(stream.ptr, run)


def backend(desk: DeskCuda, model: Model, precision: str = "fp32") -> CudaBackend:
    """The model on CuPy, without cuDNN: its plans are computed in numpy."""
    return CudaBackend(model, CupyDriver(), HostChoice(_Launcher(desk)), Precision(precision))  # type: ignore[arg-type]


def plain_model() -> Model:
    """All of it runs in kernels of our own."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("AveragePool", ["x"], ["q"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Add", ["p", "q"], ["s"]),
        helper.make_node("Sigmoid", ["q"], ["t"]),
        helper.make_node("Concat", ["s", "t"], ["c"], axis=1),
        helper.make_node("GlobalAveragePool", ["c"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Softmax", ["f"], ["y"], axis=1),
        helper.make_node("Transpose", ["c"], ["z"], perm=[0, 2, 3, 1]),
    ]
    return loaded(proto_of(nodes, {"x": [2, 5, 9, 9]}, {"y": FLOAT, "z": FLOAT}))


def check(found: CudaBackend, model: Model, tolerance: float, seed: int = 0) -> None:
    for schedule in (sequential(model.graph), greedy(model.graph), random_schedule(model.graph, seed)):
        for barriers in (True, False):
            with_graph = found.compile(schedule, barriers=barriers)
            for number in range(2):
                inputs = random_inputs(model.graph.inputs, seed=number)
                with_graph.executor.poison()
                error = relative_error(with_graph.run(inputs), expected_outputs(model, inputs))
                assert error < tolerance


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_model_of_our_own_kernels_computes_the_same(desk: DeskCuda, precision: str) -> None:
    model = plain_model()
    check(backend(desk, model, precision), model, 1e-5 if precision == "fp32" else 2e-2)
    assert "cudnn" not in desk.launched
    assert {"pool", "softmax"} <= set(desk.launched)


@pytest.mark.parametrize("seed", range(3))
def test_groups_are_forked_and_joined_in_one_graph(desk: DeskCuda, seed: int) -> None:
    model = fire(batch=2)
    desk.reset(seed)
    desk.count = 1
    check(backend(desk, model), model, 1e-5, seed)
    assert desk.calls.count("graphInstantiate") == 6
    assert desk.calls.count("streamWaitEvent") > 6


@pytest.mark.parametrize("is_known", [True, False])
def test_a_join_is_one_empty_node_if_the_driver_supports_it(
    desk: DeskCuda, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Events alone make no nodes: three lanes follow three others by nine edges, and by six through an empty node."""
    model, inputs = crossed(3, 3), random_inputs(crossed(3, 3).graph.inputs)
    if not is_known:
        monkeypatch.setattr(empty_node, "LIBRARY", "libno-driver.so.1")
    compiled = backend(desk, model).compile(greedy(model.graph))
    (graph,) = compiled.executor.graphs
    kernels = compiled.kernel_count
    stages = 2 * (6 if is_known else 9)
    assert sorted(desk.nodes(graph.graph)) == [KERNEL] * kernels + [EMPTY] * (2 * is_known)
    assert kernels == 10
    assert desk.edges(graph.graph) == stages + 3  # the sum follows three
    compiled.executor.poison()
    assert relative_error(compiled.run(inputs), expected_outputs(model, inputs)) < 1e-5
    compiled.executor.time_many(1, 3)


def test_an_empty_node_is_added_only_after_several_nodes_of_a_capture(desk: DeskCuda) -> None:
    driver = CupyDriver()
    stream = driver.new_stream()
    driver.join([stream])
    driver.begin_capture(stream)
    driver.join([stream])
    driver.fill(driver.allocate(16).ptr, 0, 16, stream)
    driver.join([stream])
    assert desk.nodes(driver.end_capture(stream).graph) == [FILL]


@pytest.mark.slow
def test_a_whole_network(desk: DeskCuda) -> None:
    model = zoo_model("squeezenet")
    compiled = backend(desk, model).compile(greedy(model.graph))
    compiled.executor.poison()
    inputs = random_inputs(model.graph.inputs)
    assert relative_error(compiled.run(inputs), expected_outputs(model, inputs)) < 1e-4
    assert desk.calls.count("graphInstantiate") == 1


def test_a_run_is_one_launch_of_a_graph(desk: DeskCuda) -> None:
    model = fire(batch=2)
    executor = backend(desk, model).compile(greedy(model.graph)).executor
    desk.calls.clear()
    assert executor.time_launches(3) == pytest.approx((10.0,) * 3)
    assert desk.calls.count("graphLaunch") == 3
    assert "malloc" not in desk.calls
    assert "launchKernel" not in desk.calls


def test_only_the_launch_is_between_the_events(desk: DeskCuda) -> None:
    model = fire(batch=2)
    executor = backend(desk, model).compile(greedy(model.graph)).executor
    executor.time_many(1, 4)
    desk.calls.clear()
    assert executor.time_many(2, 4) == pytest.approx((2.5,) * 2)
    first = desk.calls.index("eventRecord")
    assert desk.calls[first : first + 5] == ["eventRecord", *["graphLaunch", "eventRecord"] * 2]
    assert "streamBeginCapture" not in desk.calls


def test_weights_are_read_from_memory_where_the_model_is_larger_than_the_cache(desk: DeskCuda) -> None:
    desk.l2_nbytes = 1000
    found = backend(desk, fire(batch=2))
    assert found.driver.l2_nbytes == 1000
    executor = found.compile_stage(next(iter(greedy(found.graph).stages)))
    assert executor is not None
    executor.time_many(1, 4)
    desk.calls.clear()
    assert executor.time_many(2, 4) == pytest.approx((2.5,) * 2)
    first = desk.calls.index("launchKernel")
    once = ["launchKernel", "graphLaunch", "eventRecord", "graphLaunch", "eventRecord"]
    assert [each for each in desk.calls[first:] if each in once] == 2 * once


def test_freed_memory_is_reused(desk: DeskCuda) -> None:
    model = fire(batch=2)
    found = backend(desk, model)
    stages = [stage for block in greedy(model.graph).blocks for stage in block.stages]
    nbytes = []
    for _ in range(3):
        for stage in stages:
            executor = found.compile_stage(stage)
            assert executor is not None
            executor.close()
        nbytes.append(desk.allocated_nbytes)
    assert nbytes[0] == nbytes[1] == nbytes[2]


def test_memory_in_a_cycle_is_collected_before_the_gpu_is_called_full(desk: DeskCuda) -> None:
    driver = CupyDriver()
    desk.limit = desk.allocated_nbytes + (3 << 20)

    def leave_behind() -> None:
        cycle: list[Any] = [driver.allocate(2 << 20)]
        cycle.append(cycle)

    gc.disable()
    try:
        leave_behind()
        driver.allocate(2 << 20)
    finally:
        gc.enable()


def test_an_executor_in_a_cycle_is_not_collected_inside_a_capture(desk: DeskCuda) -> None:
    """Where it would destroy its graph."""
    model = fire(batch=2)
    found = backend(desk, model)

    def leave_behind() -> None:
        cycle: list[Any] = [found.compile(greedy(model.graph))]
        cycle.append(cycle)

    leave_behind()
    found.compile(greedy(model.graph))
    assert gc.isenabled()
    gc.collect()


EVERY_TYPE = """
extern "C" __global__ void every_type(const float* x, float* y, int i, long long l, float f, unsigned int u, int last) {
  y[0] = x[0]; y[1] = i; y[2] = l; y[3] = f; y[4] = u; y[5] = last;
}
"""


def test_arguments_arrive_as_they_are_declared(desk: DeskCuda) -> None:
    driver = CupyDriver()
    stream = driver.new_stream()
    x, y = driver.allocate(4), driver.allocate(24)
    driver.upload(x.ptr, np.float32([7.5]), stream)
    numbers = (np.int32(-3), np.int64(-(2**40)), np.float32(0.25), np.uint32(2**31), np.int32(9))
    call = CudaCall(EVERY_TYPE, "every_type", (1, 1, 1), (1, 1, 1), (Pointer(0), Pointer(1), *numbers))
    driver.launch(driver.load(call), call, [x.ptr, y.ptr, *numbers], stream)
    found = np.empty(6, np.float32)
    driver.download(y.ptr, found, stream)
    np.testing.assert_array_equal(found, np.float32([7.5, -3, -(2**40), 0.25, 2**31, 9]))


def test_calls_of_one_source_share_a_function(desk: DeskCuda) -> None:
    driver = CupyDriver()
    call = CudaCall(EVERY_TYPE, "every_type", (1, 1, 1), (1, 1, 1), ())
    assert driver.load(call) is driver.load(call)


def test_the_desk_refuses_what_cuda_refuses(desk: DeskCuda) -> None:
    driver = CupyDriver()
    one, two, event = driver.new_stream(), driver.new_stream(), driver.new_event()
    driver.begin_capture(one)
    driver.record(event, one)
    driver.wait(two, event)
    driver.fill(driver.allocate(16).ptr, 0, 16, two)
    with pytest.raises(ExecutionError, match="Unjoined"):
        driver.end_capture(one)
    driver.begin_capture(one)
    with pytest.raises(ExecutionError, match="Unsupported"):
        driver.synchronize(two)
    with pytest.raises(ExecutionError, match="Invalidated"):
        driver.end_capture(one)
    timed, plain = driver.new_event(timing=True), driver.new_event()
    for each in (timed, plain):
        driver.record(each, one)
    with pytest.raises(ExecutionError, match="InvalidResourceHandle"):
        driver.elapsed_us(timed, plain)
    with pytest.raises(DeviceLostError, match="IllegalAddress"):
        driver.fill(64, 0, 16, one)


def test_a_compilation_error_names_the_mistake(desk: DeskCuda) -> None:
    call = CudaCall('extern "C" __global__ void f() { undefined(); }', "f", (1, 1, 1), (1, 1, 1), ())
    with pytest.raises(ExecutionError, match='identifier "undefined" is undefined'):
        CupyDriver().load(call)


def test_sources_are_compiled_together_and_errors_are_raised_on_load(desk: DeskCuda) -> None:
    driver = CupyDriver()
    sources = [f"// {number}\n{EVERY_TYPE}" for number in range(8)]
    calls = [CudaCall(source, "every_type", (1, 1, 1), (1, 1, 1), ()) for source in sources]
    wrong = CudaCall('extern "C" __global__ void f() { undefined(); }', "f", (1, 1, 1), (1, 1, 1), ())
    driver.prepare([*calls, wrong, *calls])
    prepared = dict(driver._functions)
    assert len(prepared) == len(calls)
    assert all(driver.load(call) is prepared[call.source, call.entry] for call in calls)
    with pytest.raises(ExecutionError, match="undefined"):
        driver.load(wrong)


def test_a_full_gpu_is_an_error_that_suggests_a_smaller_batch(desk: DeskCuda) -> None:
    model = fire(batch=2)
    found = backend(desk, model)
    desk.limit = desk.allocated_nbytes + 1000
    with pytest.raises(DeviceError, match="smaller batch"):
        found.compile(sequential(model.graph))
    desk.limit = 1 << 30
    found.compile(sequential(model.graph))


@pytest.mark.parametrize("call", ["launchKernel", "graphInstantiate", "graphLaunch", "streamEndCapture"])
def test_a_stage_that_fails_is_no_candidate_and_the_next_one_runs(desk: DeskCuda, call: str) -> None:
    with ProfileDatabase(":memory:") as database:
        cost = CudaStageCost(backend(desk, plain_model()), database, "desk")
        desk.fail(call, 701)
        assert cost.stage_latency_us(Stage(Strategy.CONCURRENT, (("p",), ("q",)))) == np.inf
        assert re.search("(?i)out_?of_?resources", cost.dropped["p+q"])
        assert cost.stage_latency_us(Stage(Strategy.CONCURRENT, (("t",),))) < np.inf


@pytest.mark.parametrize("call", ["launchKernel", "streamSynchronize", "eventSynchronize", "graphLaunch"])
def test_a_gpu_that_is_lost_ends_the_search(desk: DeskCuda, call: str, capfd: pytest.CaptureFixture[str]) -> None:
    with ProfileDatabase(":memory:") as database:
        cost = CudaStageCost(backend(desk, plain_model()), database, "desk")
        desk.fail(call, 719, after=1)
        with pytest.raises(DeviceLostError, match=r"(?i)launch_?fail"):
            cost.stage_latency_us(Stage(Strategy.CONCURRENT, (("p",), ("q",))))
        assert database.stats().measurements == 0
    assert "Exception ignored" not in capfd.readouterr().err


COMMAND = """
import sys
import desk_cudnn, desk_cupy, pytest
desk = desk_cupy.install()
desk.count = 1
desk_cudnn.install(pytest.MonkeyPatch(), desk)
desk.fail(*FAILURE)
from iosched.cli.main import main
main()
"""


def optimized_with(call: str, status: int, after: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """`iosched optimize` in a separate process, in which the call fails after it succeeded `after` times."""
    original = fire().original
    assert isinstance(original, bytes)
    (folder / "fire.onnx").write_bytes(original)
    paths = [str(Path(entry).absolute()) for entry in sys.path if entry]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    code = f"FAILURE = {(call, status, after)!r}\n{COMMAND}"
    command = [sys.executable, "-c", code, "optimize", "fire.onnx", "--device", "cuda", "--profile-db", "p.db"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@needs_cudnn
def test_a_plan_that_breaks_the_gpu_is_skipped_by_the_next_process(tmp_path: Path) -> None:
    done = optimized_with("cudnnBackendExecute", 700, 4, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: the GPU stopped working")
    done = optimized_with("cudnnBackendExecute", 0, 0, tmp_path)
    assert done.returncode == 0
    assert re.search(r"cuDNN\s+plans\s+skipped.*before:\s+1\s+\(first:\s+'eng", done.stderr + done.stdout, re.DOTALL)


@needs_cudnn
def test_a_lost_gpu_ends_the_command_with_a_short_message(tmp_path: Path) -> None:
    """Also at the end of the process, when all that was on the GPU is freed."""
    done = optimized_with("graphLaunch", 719, 20, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: the GPU stopped working: cudaErrorLaunchFailure")
    assert len(done.stderr.splitlines()) == 2
    assert {path.name for path in tmp_path.iterdir()} <= {"fire.onnx", "p.db", "p.db-wal", "p.db-shm"}


@pytest.mark.parametrize(
    ("status", "driver", "words"),
    [(35, 0, "no NVIDIA driver"), (35, 12040, "update the NVIDIA driver"), (100, 13000, "finds no GPU")],
)
def test_without_a_gpu_the_error_names_the_reason(desk: DeskCuda, status: int, driver: int, words: str) -> None:
    desk.fail("getDeviceCount", status)
    desk.driver_version = driver
    with pytest.raises(DeviceError, match=words):
        CupyDriver()


def test_the_driver_describes_the_attached_gpu(desk: DeskCuda) -> None:
    driver = CupyDriver()
    assert driver.gpu == driver.facts(0).gpu == Gpu(capability=90, processors=132)


def test_a_gpu_number_that_does_not_exist_is_refused(desk: DeskCuda) -> None:
    with pytest.raises(DeviceError, match="no GPU 1: this machine has 1"):
        CupyDriver(1)


@needs_cudnn
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_a_model_with_cudnn_graphs_computes_the_same(desk: DeskCuda, cudnn: list[Any], precision: str) -> None:
    """Its plans are built for a simulated H100, and evaluated according to their graphs."""
    model = fire(batch=2)
    found = attach().backend(model, precision)
    check(found, model, 1e-5 if precision == "fp32" else rtol_of(precision))
    assert "cudnn" in desk.launched
    assert 1 < len(cudnn) < 10


def has_cuda_13() -> bool:
    return int(CupyDriver().facts().versions["cuda"]) >= 13000


def test_a_v100_under_cuda_13_is_refused_with_the_extra_that_it_needs(desk: DeskCuda) -> None:
    desk.gpu = V100
    if not has_cuda_13():
        pytest.skip("this CuPy is for CUDA 12")
    with pytest.raises(DeviceError, match=r"7\.0, but CUDA 13 needs 7\.5 or newer.*\.\[cuda12\]"):
        attach()


@needs_cudnn
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_v100_under_cuda_12(desk: DeskCuda, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """Kernels are compiled for 7.0, and plans of cuDNN built for a described V100."""
    desk.gpu = V100
    desk_cudnn.install(monkeypatch, desk, "v100")
    if has_cuda_13():
        pytest.skip("this CuPy is for CUDA 13, which has no code for a V100")
    compiler = importlib.import_module("cupy.cuda.compiler")
    monkeypatch.setattr(compiler, "_get_arch", lambda: "70")  # CuPy remembers what GPU 0 was before
    model, tolerance = separables(), 1e-5 if precision == "fp32" else 2e-2
    gpu = attach()
    network = LoweredModel(model, Precision(precision), preferred_layout(precision, V100), gpu=V100)
    pinned = {fusion_key(network, name): "one kernel, variant 0" for name in separable_operators(model)}
    check(gpu.backend(model, precision, KnownCudnnPlans({})), model, tolerance)
    check(gpu.backend(model, precision, KnownCudnnPlans(pinned)), model, tolerance)
    assert compiler._get_arch_for_options_for_nvrtc()[0] == "-arch=sm_70"
    assert {"cudnn", "separable"} <= {*desk.launched}


@needs_cudnn
def test_tf32_outputs_exceed_the_fp32_tolerance_and_are_accepted(desk: DeskCuda, cudnn: list[Any]) -> None:
    """Rounding factors to tf32 alone exceeds the tolerance of fp32."""
    model = fire(batch=2)
    found = attach().backend(model, "tf32").compile(sequential(model.graph))
    inputs = random_inputs(model.graph.inputs)
    assert relative_error(found.run(inputs), expected_outputs(model, inputs)) > rtol_of("fp32")
    assert optimize(model, OptimizeSettings(device="cuda", precision="tf32")).document.precision == "tf32"


@needs_cudnn
def test_two_gpus_run_in_turn_and_none_stays_current(two_gpus: DeskCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, cudnn, model = two_gpus, desk_cudnn.install(monkeypatch, two_gpus), fire(batch=2)
    gpus = [attach(1), attach(0)]
    check(gpus[1].backend(model, "fp32"), model, 1e-5)
    check(gpus[0].backend(model, "fp32"), model, 1e-5)
    check(gpus[1].backend(model, "fp32"), model, 1e-5)
    assert {handle._ordinal for handle in cudnn} == {0, 1}
    assert desk.get_device() == 0
    desk.set_device(1)
    assert usable_names() == ("NVIDIA Desk",) * 2
    assert desk.get_device() == 1


@needs_cudnn
def test_the_second_gpu_runs_in_any_thread(two_gpus: DeskCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    desk_cudnn.install(monkeypatch, two_gpus)
    model = fire(batch=2)
    found = attach(1).backend(model, "fp32", KnownCudnnPlans({}))
    compiled = found.compile(greedy(model.graph))
    with ThreadPoolExecutor(1) as thread:
        thread.submit(check, found, model, 1e-5).result()
        timed = thread.submit(compiled.time, random_inputs(model.graph.inputs), 2)
        assert timed.result() == pytest.approx((10.0,) * 2)
        assert thread.submit(two_gpus.get_device).result() == 0


@needs_cudnn
def test_a_schedule_is_found_and_a_repeat_measures_nothing(desk: DeskCuda, cudnn: list[Any], tmp_path: Path) -> None:
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db")
    result = optimize(fire(batch=2), settings)
    assert result.device_name == "NVIDIA Desk"
    assert result.document.runtime["cudnn_plans"]
    assert result.document.versions["nvrtc"]
    again = optimize(fire(batch=2), settings)
    assert again.measurements == 0
    assert again.schedule == result.schedule


@needs_cudnn
@pytest.mark.parametrize("status", [8, 3])
def test_an_engine_that_does_not_run_is_no_candidate(desk: DeskCuda, cudnn: list[Any], status: int) -> None:
    model = fire(batch=2)
    found = attach().backend(model, "fp32", layout=Layout.NHWC)  # no plan is timed before one fails
    desk.fail("cudnnBackendExecute", status)
    check(found, model, 1e-5)


@needs_cudnn
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_stored_plans_are_loaded_and_run(
    desk: DeskCuda, cudnn: list[Any], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fire(batch=2)
    with ProfileDatabase(None) as database:
        kept = StoredCudnnPlans(database, "desk")
        check(attach().backend(model, precision, kept), model, 1e-5 if precision == "fp32" else 2e-2)
        monkeypatch.setattr(fastest, "build_cudnn_plans", lambda *_, **__: pytest.fail("builds"))
        monkeypatch.setattr(fastest, "rebuild_cudnn_plan", lambda *_, **__: pytest.fail("builds again"))
        check(attach().backend(model, precision, kept), model, 1e-5 if precision == "fp32" else 2e-2)


@needs_cudnn
def test_a_plan_cannot_be_loaded_inside_a_capture(desk: DeskCuda, cudnn: list[Any]) -> None:
    """The frontend captures and allocates when it loads one."""
    model = fire(batch=2)
    with ProfileDatabase(None) as database:
        kept = StoredCudnnPlans(database, "desk")
        check(attach().backend(model, "fp32", kept), model, 1e-5)
        ((name, content),) = database._connection.execute("SELECT name, content FROM cudnn_plan LIMIT 1")
        driver = CupyDriver()
        handles = CudnnHandles(driver)
        stream = driver.new_stream()
        assert load_cudnn_plan(name, content, Precision("fp32"), handles.of(stream)).name == name
        driver.begin_capture(stream)
        with pytest.raises(DeviceError, match="cannot load a stored"):
            load_cudnn_plan(name, content, Precision("fp32"), handles.of(stream))
        with pytest.raises(ExecutionError, match="Invalidated"):
            driver.end_capture(stream)
