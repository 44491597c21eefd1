"""`optimize`, `run` and `bench` from end to end, on a GPU emulated in host memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gpu_plans import expected_outputs, relative_error
from host_cuda import needs_compiler
from host_driver import HostDriver
from host_gpu import HostGpu, LaunchGap, attach_host, time_by_size
from scripted import fire
from small_models import separables

from iosched.jobs import run as run_module
from iosched.jobs.bench import bench
from iosched.jobs.open_model import opened
from iosched.jobs.optimize import optimize
from iosched.jobs.optimizing.estimate import estimate
from iosched.jobs.settings import OptimizeSettings
from iosched.profiler.devices.cuda import device as cuda_device
from iosched.profiler.devices.cuda.clock import GpuClock
from iosched.profiler.devices.cuda.cudnn_plans import KnownCudnnPlans, StoredCudnnPlans
from iosched.profiler.devices.open_settings import Barriers, LayoutName
from iosched.profiler.devices.resolve import recorded, unscheduled_text
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import StageRow
from iosched.runtime.cuda.backend import CudaBackend, CudaModel
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.kernel import Gpu
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.part_timer import PartTimer
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Schedule

pytestmark = needs_compiler


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The stores of cuDNN plans that backends were given."""
    return attach_host(monkeypatch)


@pytest.fixture
def by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    time_by_size(monkeypatch)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def test_a_schedule_is_found_written_and_run(
    tmp_path: Path, attached: list[object], by_size: None, precision: str
) -> None:
    model = fire(batch=2)
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db", precision=precision)
    result = optimize(model, settings)
    assert (result.device_kind, result.device_name, result.cost, result.shipped) == (
        "cuda", "Host 1000", "measured", "iosched",
    )  # fmt: skip
    assert result.measured_us is not None
    assert result.measured_us < result.sequential_us
    assert result.kernels_after <= result.kernels_before
    assert result.document.proven == ("blocks" if result.gap == 0 else None)
    document = ScheduleDocument.from_json(result.document.to_json())
    assert [(each.name, each.measured_us) for each in document.alternatives] == [
        ("sequential", result.sequential_us), ("greedy", result.greedy_us),
    ]  # fmt: skip
    assert document.runtime == {
        "precision": precision, "layout": "nchw" if precision == "fp32" else "nhwc", "barriers": "stage",
        "cudnn_plans": {"Conv": "eng7_k1=1"},
    }  # fmt: skip

    executor = run_module.open_executor(model, document, device="cuda:0")
    inputs = random_inputs(model.graph.inputs)
    limit = 1e-4 if precision == "fp32" else 2e-2
    assert relative_error(executor.run(inputs), expected_outputs(model, inputs)) < limit
    assert "Host 1000" in executor.description
    stored, checked, known = attached  # the shipped schedule is compared with onnxruntime as it will run
    assert isinstance(stored, StoredCudnnPlans)
    assert checked == known == KnownCudnnPlans({"Conv": "eng7_k1=1"})


@pytest.mark.parametrize("asked", ["auto", "none"])
def test_stages_wait_only_for_their_inputs_where_that_is_faster(
    tmp_path: Path, attached: list[object], by_size: None, monkeypatch: pytest.MonkeyPatch, asked: Barriers
) -> None:
    compiled: list[bool] = []
    whole = CudaBackend.compile

    def compile_(self: CudaBackend, schedule: Schedule, *, barriers: bool = True) -> CudaModel:
        compiled.append(barriers)
        model = whole(self, schedule, barriers=barriers)
        if not barriers:
            monkeypatch.setattr(model.executor, "time_launches", lambda repeats: (4.0,) * repeats)
        return model

    monkeypatch.setattr(CudaBackend, "compile", compile_)
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db", barriers=asked)
    result = optimize(fire(), settings)
    assert (result.shipped, result.measured_us, result.document.runtime["barriers"]) == ("iosched", 4.0, "none")
    assert len([note for note in result.notes if "wait only for their inputs" in note]) == (asked == "auto")
    compiled.clear()
    executor = run_module.open_executor(fire(), result.document, device="cuda")
    assert compiled == [False]
    inputs = random_inputs(fire().graph.inputs)
    assert relative_error(executor.run(inputs), expected_outputs(fire(), inputs)) < 1e-4


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> list[Layout]:
    """The image layouts of the compiled schedules."""
    found: list[Layout] = []
    whole = CudaBackend.compile

    def compile_(self: CudaBackend, schedule: Schedule, *, barriers: bool = True) -> CudaModel:
        found.append(self.layout)
        return whole(self, schedule, barriers=barriers)

    monkeypatch.setattr(CudaBackend, "compile", compile_)
    return found


def test_the_faster_layout_is_found_once_and_run_without_timing(
    tmp_path: Path, by_size: None, layouts: list[Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a V100 NHWC is preferred for float32; here NCHW is faster, since nothing is converted."""
    trials: list[int] = []
    in_turn = PartTimer.interleaved_us
    monkeypatch.setattr(
        PartTimer,
        "interleaved_us",
        lambda self, found, trying: (trials.append(len(found)), in_turn(self, found, trying))[1],
    )
    gpu = HostGpu(0, "Host 1000", {"cudnn": "90"}, HostDriver(gpu=Gpu(capability=70, processors=80)))
    monkeypatch.setattr(cuda_device, "attach", lambda index: gpu)
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db")
    first, second = optimize(fire(), settings), optimize(fire(), settings)
    assert (first.document.runtime["layout"], second.document) == ("nchw", first.document)
    assert [note for note in first.notes if "Images use the NCHW layout" in note]
    assert second.notes == first.notes
    executor = run_module.open_executor(fire(), first.document, device="cuda")
    inputs = random_inputs(fire().graph.inputs)
    assert relative_error(executor.run(inputs), expected_outputs(fire(), inputs)) < 1e-4
    estimate(fire(), replace(settings, profile_db=tmp_path / "q.db"))
    assert trials == [2]
    assert set(layouts) == {Layout.NCHW}


@pytest.mark.parametrize(("asked", "layout"), [("nhwc", Layout.NHWC), ("nchw", Layout.NCHW)])
def test_images_keep_the_requested_layout_where_the_schedule_runs(
    tmp_path: Path, attached: list[object], by_size: None, layouts: list[Layout], asked: LayoutName, layout: Layout
) -> None:
    result = optimize(fire(), OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db", layout=asked))
    document = ScheduleDocument.from_json(result.document.to_json())
    executor = run_module.open_executor(fire(), document, device="cuda")
    assert document.runtime["layout"] == recorded(document)[1].layout == asked
    assert set(layouts) == {layout}
    inputs = random_inputs(fire().graph.inputs)
    assert relative_error(executor.run(inputs), expected_outputs(fire(), inputs)) < 1e-4


def test_latencies_of_one_layout_are_not_used_for_the_other(
    tmp_path: Path, attached: list[object], by_size: None
) -> None:
    """In NHWC the input and the output are converted, by two more kernels of 10 us."""
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db", layout="nhwc")
    first, other = optimize(fire(), settings), optimize(fire(), replace(settings, layout="nchw"))
    fresh = optimize(fire(), replace(settings, layout="nchw", profile_db=tmp_path / "q.db"))
    again = optimize(fire(), settings)
    assert (other.document, other.sequential_us) == (fresh.document, 60.0)
    assert (again.document, again.sequential_us, again.measurements) == (first.document, 80.0, 0)


def test_a_schedule_without_a_layout_runs_in_nhwc(
    tmp_path: Path, attached: list[object], by_size: None, layouts: list[Layout]
) -> None:
    """A schedule for a simulated GPU or for a CPU runs in the layout that is best for this GPU."""
    document = optimize(fire(), OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db")).document
    runtime = {key: value for key, value in document.runtime.items() if key != "layout"}
    old = replace(document, runtime=runtime)
    layouts.clear()
    for each in (old, replace(old, cost="analytic"), replace(old, device={"kind": "cpu", "name": "CPU"})):
        run_module.open_executor(fire(), each, device="cuda")
    assert layouts == [Layout.NHWC, Layout.NCHW, Layout.NCHW]


@pytest.mark.slow
def test_a_second_run_gives_the_same_file(tmp_path: Path, attached: list[object]) -> None:
    """Latencies are not scripted here: whole models take a different time in each measurement."""
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db")
    first, second = optimize(fire(), settings), optimize(fire(), settings)
    assert first.document.to_json() == second.document.to_json()


def test_a_hot_gpu_is_reported(tmp_path: Path, by_size: None, monkeypatch: pytest.MonkeyPatch) -> None:
    hot = GpuClock(sm_mhz=900, memory_mhz=2619, temperature_c=88, power_w=700.0, throttled_by=("thermal slowdown",))
    gpu = HostGpu(0, "Host 1000", {}, HostDriver(), clock=lambda: hot)
    monkeypatch.setattr(cuda_device, "attach", lambda index: gpu)
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db", layout="nchw")
    first, second = optimize(fire(), settings), optimize(fire(), settings)
    compared, note = first.notes
    assert compared.startswith("TensorRT was not compared: onnxruntime has no TensorRT provider; ")
    assert "were measured while the GPU was throttled (thermal slowdown)" in note
    assert second.notes == first.notes
    with ProfileDatabase(tmp_path / "p.db") as database:
        measured = [row for row in database.rows() if isinstance(row, StageRow)]
    assert {row.clock_mhz for row in measured if row.samples_us} == {900}


@pytest.mark.slow
def test_back_to_back_latencies_exclude_the_launch_that_an_idle_gpu_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six kernels of 10 us one after another; the host takes 7 us to launch the graph of them."""
    gpu = HostGpu(0, "Host 1000", {}, LaunchGap(gap_us=7.0))
    monkeypatch.setattr(cuda_device, "attach", lambda index: gpu)
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db")
    for result in (optimize(fire(), settings), optimize(fire(), settings)):
        assert (result.sequential_us, result.rested_us["sequential"]) == (60.0, 67.0)
        assert result.measured_us is not None
        assert result.rested_us["iosched"] - result.measured_us == pytest.approx(7.0)
    measured = bench(fire(), None, names=["greedy"], device="cuda", rounds=6, profile_db=tmp_path / "p.db")
    for row in measured.rows:
        assert row.rested_us is not None
        assert row.rested_us - row.median_us == pytest.approx(7.0)
    assert set(measured.samples_us["sequential"]) == {60.0}
    executor = run_module.open_executor(fire(), None, device="cuda:0")
    assert executor.time(random_inputs(fire().graph.inputs), 3) == pytest.approx((67.0, 60.0, 60.0))


def test_a_graph_that_is_slower_after_idle_ships_with_a_note(
    tmp_path: Path, attached: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs in a row decide: more branches take less time there, but the host takes longer to launch them."""

    def timed(self: CudaExecutor, repeats: int) -> tuple[float, ...]:
        depth = max(map(len, self._plan.lanes), default=0)
        return (10.0 * depth + 100.0 * len(self._plan.lanes), *[10.0 * depth] * (repeats - 1))

    time_by_size(monkeypatch)
    monkeypatch.setattr(CudaExecutor, "time_launches", timed)
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db", strategy="concurrent")
    result = optimize(fire(), settings)
    assert result.shipped == "iosched"
    assert result.measured_us is not None
    assert result.measured_us < result.sequential_us
    assert result.rested_us["iosched"] > result.rested_us["sequential"]
    (note,) = [each for each in result.notes if "After idle" in each]
    assert (
        "the speed of one operator after another in one CUDA graph, which is better for a model that runs seldom"
        in note
    )


def test_a_model_without_a_schedule_runs_one_operator_after_another(attached: list[object]) -> None:
    model = fire()
    assert unscheduled_text("cuda") == "one operator after another"
    executor = run_module.open_executor(model, None, device="cuda")
    inputs = random_inputs(model.graph.inputs)
    assert relative_error(executor.run(inputs), expected_outputs(model, inputs)) < 1e-4
    assert "Host 1000, fp32" in executor.description


def test_auto_runs_a_model_without_a_schedule_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iosched.profiler.devices.cuda.device.usable_names", lambda: ("Host 1000",))
    assert unscheduled_text("auto") == "on plain onnxruntime"
    assert run_module.open_executor(fire(), None, device="auto").description.startswith("onnxruntime")


def test_a_second_optimize_measures_nothing(tmp_path: Path, attached: list[object], by_size: None) -> None:
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db")
    first, second = optimize(fire(), settings), optimize(fire(), settings)
    assert first.measurements > 0
    assert (second.measurements, second.cache_hits) == (0, first.measurements)
    assert first.schedule == second.schedule


def test_the_idle_share_of_streams_follows_from_single_groups(
    tmp_path: Path, attached: list[object], by_size: None
) -> None:
    model = fire()
    document = optimize(
        model, OptimizeSettings(device="cuda", strategy="greedy", profile_db=tmp_path / "p.db")
    ).document
    device, settings = recorded(document)
    with opened(device, model, settings, tmp_path / "p.db") as there:
        assert there.attached is not None
        stage = next(stage for stage in document.schedule.stages if len(stage.groups) == 2)
        alone = [replace(stage, groups=(group,)) for group in stage.groups]
        assert there.details.idle_share(stage) is None
        us, *alone_us = (there.cost.stage_latency_us(each) for each in (stage, *alone))
        assert there.details.idle_share(stage) == pytest.approx(max(1 - sum(alone_us) / (2 * us), 0))


def test_another_precision_is_another_device(tmp_path: Path, attached: list[object], by_size: None) -> None:
    for precision in ("fp32", "fp16"):
        settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db", precision=precision)
        assert optimize(fire(), settings).measurements > 0


def test_schedules_are_compared_on_the_gpu(tmp_path: Path, attached: list[object], by_size: None) -> None:
    names = ("iosched", "greedy", "both", "onnxruntime")
    result = bench(fire(), None, names=names, device="cuda", rounds=6, profile_db=tmp_path / "p.db")
    assert [row.name for row in result.rows] == ["sequential", "greedy", "both"]
    assert [name for name, _ in result.missing] == ["iosched", "onnxruntime"]
    sequential, greedy, both = result.rows
    assert (sequential.speedup, sequential.samples, result.device) == (1.0, 6, "Host 1000")
    assert both.median_us <= greedy.median_us < sequential.median_us

    document = optimize(fire(), OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db")).document
    shipped = bench(fire(), document, names=["iosched"], device="cuda", rounds=3, profile_db=tmp_path / "p.db")
    assert [row.name for row in shipped.rows] == ["sequential", "iosched"]
    assert shipped.rows[1].median_us == both.median_us


@pytest.mark.slow
def test_a_fused_pair_of_convolutions_is_found_kept_and_run(
    tmp_path: Path, attached: list[object], by_size: None
) -> None:
    model = separables()
    result = optimize(model, OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db"))
    document = ScheduleDocument.from_json(result.document.to_json())
    plans = document.runtime["cudnn_plans"]
    assert isinstance(plans, dict)
    fused = {text for key, text in plans.items() if key.startswith("fused ")}
    assert fused == {"one kernel, variant 0"}
    executor = run_module.open_executor(model, document, device="cuda:0")
    assert f"{result.kernels_after} kernels" in executor.description
    inputs = random_inputs(model.graph.inputs)
    assert relative_error(executor.run(inputs), expected_outputs(model, inputs)) < 1e-4
