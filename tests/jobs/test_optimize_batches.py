"""A schedule for each of several batch sizes: budgets, failures, interruptions and the resulting file."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from shipped import document
from small_models import branches, data

import iosched
from iosched.jobs.annotate import annotated_batches
from iosched.jobs.optimize import optimize
from iosched.jobs.optimize_batches import BatchesResult, optimize_batches
from iosched.jobs.optimizing.result import OptimizeResult
from iosched.jobs.settings import OptimizeSettings
from iosched.models.dynamic_batch import DynamicBatchModel, with_dynamic_batch
from iosched.models.errors import DeviceError, ExecutionError, InvalidModelError, InvalidScheduleError, UsageError
from iosched.models.export import write_model
from iosched.models.load import read_unbound
from iosched.models.model import Model
from iosched.scheduler.batch_schedules import BatchSchedules
from iosched.scheduler.teams import Teams

SIZES = (1, 4, 16)
V100 = OptimizeSettings(device="v100")
MODEL: DynamicBatchModel = with_dynamic_batch(read_unbound(data(branches("n"))), SIZES)


class Recorder:
    """Optimizes for a V100, records the settings, and fails at some batch sizes."""

    def __init__(self, failing: dict[int, Exception] | None = None) -> None:
        self.failing = failing or {}
        self.settings: dict[int, OptimizeSettings] = {}

    def __call__(self, model: Model, settings: OptimizeSettings, *rest: object) -> OptimizeResult:
        self.settings[model.batch_size] = settings
        if model.batch_size in self.failing:
            raise self.failing[model.batch_size]
        return optimize(model, replace(settings, budget_s=None))


class Stops:
    """An interruption after `after` batch sizes, at which the user wants the results so far."""

    can_come, came = True, False

    def __init__(self, seen: Recorder, after: int) -> None:
        self._seen, self._after = seen, after

    @property
    def accepted(self) -> bool:
        return len(self._seen.settings) >= self._after

    def holding(self) -> AbstractContextManager[None]:
        return nullcontext()

    def ask(self) -> None:
        """Never called."""


def found(**keywords: object) -> BatchesResult:
    return optimize_batches(MODEL, SIZES, V100, **keywords)  # type: ignore[arg-type]


def test_each_batch_size_has_the_schedule_that_it_has_alone() -> None:
    result = optimize_batches(MODEL, (16, 1, 4, 4), V100)
    assert result.schedules.batch_sizes == tuple(result.results) == SIZES
    for size in SIZES:
        assert result.schedules.by_size[size] == optimize(MODEL.at(size), V100).document
    assert (result.failed, result.left) == ({}, ())


def test_the_same_database_gives_the_same_bytes() -> None:
    files = [annotated_batches(MODEL, found().schedules).SerializeToString(deterministic=True) for _ in range(2)]
    assert files[0] == files[1]


def test_the_budget_covers_all_sizes_and_unused_time_goes_to_later_ones() -> None:
    seen = Recorder()
    optimize_batches(MODEL, SIZES, replace(V100, budget_s=9000.0), one=seen)
    shares = [each.budget_s or 0 for each in seen.settings.values()]
    assert shares[0] <= 3000.0
    assert 2900 < shares[0] < shares[1] < shares[2] < 9000
    optimize_batches(MODEL, SIZES, V100, one=seen)
    assert {each.budget_s for each in seen.settings.values()} == {None}


@pytest.mark.parametrize("error", [DeviceError("too little memory"), ExecutionError("kernel"), MemoryError()])
def test_a_failed_size_does_not_affect_the_others(error: Exception) -> None:
    result = found(one=Recorder({4: error}))
    assert (result.schedules.batch_sizes, dict(result.failed)) == ((1, 16), {4: error})


def test_where_all_fail_the_first_failure_is_raised() -> None:
    failures = {size: DeviceError(f"no memory for {size}") for size in SIZES}
    with pytest.raises(DeviceError, match="no memory for 1"):
        found(one=Recorder(failures))


def test_a_usage_error_at_one_size_ends_the_job() -> None:
    with pytest.raises(UsageError, match="wrong"):
        found(one=Recorder({4: UsageError("wrong")}))


def test_a_batch_size_that_the_model_cannot_take_is_refused_before_any_search() -> None:
    nodes = [onnx.helper.make_node("Concat", ["token", "x"], ["y"], axis=1)]
    x = onnx.helper.make_tensor_value_info("x", 1, ["n", 2, 8])
    token = onnx.numpy_helper.from_array(np.zeros((1, 1, 8), np.float32), "token")
    graph = onnx.helper.make_graph(nodes, "g", [x], [onnx.helper.make_tensor_value_info("y", 1, None)], [token])
    proto = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 17)])
    seen = Recorder()
    with pytest.raises(InvalidModelError, match="batch size 4"):
        optimize_batches(with_dynamic_batch(read_unbound(data(proto)), SIZES), SIZES, V100, one=seen)
    assert not seen.settings


@pytest.mark.parametrize("sizes", [(), (0, 1), range(1, 66)])
def test_too_few_and_too_many_sizes_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="1 to 64 positive batch sizes"):
        optimize_batches(MODEL, sizes, V100)


def test_after_an_interruption_no_further_size_is_begun() -> None:
    seen = Recorder()
    result = found(one=seen, interrupt=Stops(seen, 2))
    assert (result.schedules.batch_sizes, result.left) == ((1, 4), (16,))


def test_an_unhandled_interruption_ends_the_job() -> None:
    with pytest.raises(KeyboardInterrupt):
        found(one=Recorder({4: KeyboardInterrupt()}))  # type: ignore[dict-item]


def test_schedules_of_another_file_are_taken_instead_of_searching() -> None:
    before = {size: document(MODEL.at(size), "sequential") for size in (1, 8)}
    seen = Recorder()
    found(one=seen, schedules_from=BatchSchedules(MODEL.name, MODEL.inputs, before))
    taken = [each.schedule_from for each in seen.settings.values()]
    assert [None if each is None else each.inputs["x"][0] for each in taken] == [1, 4, 16]
    found(one=seen, schedules_from=before[8])
    assert all(each.schedule_from is not None for each in seen.settings.values())


def test_schedules_of_another_model_are_refused_before_anything_is_run() -> None:
    seen = Recorder()
    other = with_dynamic_batch(read_unbound(data(branches("n", channels=4))), SIZES)
    with pytest.raises(InvalidScheduleError):
        found(one=seen, schedules_from=document(other.at(4)))
    assert not seen.settings


def test_progress_names_the_batch_size() -> None:
    texts: list[str] = []

    class Notes:
        def progress(self, done: int, total: int | None, text: str) -> None:
            texts.append(text)

    found(observer=Notes())
    assert {text.partition(":")[0] for text in texts} == {f"batch {size}" for size in SIZES}


def image(size: int) -> np.ndarray:
    return np.random.default_rng(size).standard_normal((size, 8, 6, 6), np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found().save(tmp_path / "several.onnx")
    return tmp_path / "several.onnx"


def test_the_file_computes_the_same_as_onnxruntime_at_any_batch_size(path: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    with iosched.load_batches(path, device="cpu", threads=1) as model:
        assert model.schedules.batch_sizes == SIZES
        for size in (1, 2, 4, 9, 16, 20):
            (expected,) = session.run(None, {"x": image(size)})
            np.testing.assert_allclose(model.run({"x": image(size)})["y"], expected, rtol=1e-4, atol=1e-5)


def test_batch_sizes_are_opened_when_they_are_run_and_the_longest_idle_is_closed(path: Path) -> None:
    with iosched.load_batches(path, device="cpu", threads=1, most_open=2) as model:
        assert model.opened == ()
        for size, opened in ((1, (1,)), (4, (1, 4)), (1, (4, 1)), (2, (1, 2))):
            model.run({"x": image(size)})
            assert model.opened == opened
    assert model.opened == ()
    with pytest.raises(UsageError, match="closed"):
        model.run({"x": image(1)})


def test_batch_sizes_may_be_opened_before_they_are_run(path: Path) -> None:
    with iosched.load_batches(path, device="cpu", threads=1, most_open=2) as model:
        model.open(*SIZES)
        assert model.opened == SIZES[1:]
        model.run({"x": image(4)})
        assert model.opened == (16, 4)


def test_inputs_and_outputs_are_described_with_a_dynamic_batch(path: Path) -> None:
    with iosched.load_batches(path, device="cpu", threads=1) as model:
        assert model.inputs == (iosched.DynamicBatchSpec("x", "float32", ("n", 8, 6, 6)),)
        assert model.outputs == (iosched.DynamicBatchSpec("y", "float32", ("n", 16, 6, 6)),)


def test_a_file_of_fixed_batch_with_schedules_has_a_dynamic_batch(tmp_path: Path) -> None:
    (tmp_path / "fixed.onnx").write_bytes(data(branches()))
    (tmp_path / "s.json").write_text(found().schedules.to_json())
    with iosched.load_batches(tmp_path / "fixed.onnx", schedules=tmp_path / "s.json", device="cpu", threads=1) as model:
        assert (model.inputs[0].shape, model.outputs[0].shape) == (("n", 8, 6, 6), ("n", 16, 6, 6))


def test_load_any_opens_files_for_one_and_for_several_batch_sizes(path: Path) -> None:
    with iosched.load_any(path, device="cpu", threads=1) as several:
        assert isinstance(several, iosched.LoadedBatches)
        assert several.run({"x": image(3)})["y"].shape == (3, 16, 6, 6)
    with iosched.load_any(data(branches()), device="cpu", threads=1) as plain:
        assert isinstance(plain, iosched.LoadedModel)
        assert plain.run({"x": image(1)})["y"].shape == (1, 16, 6, 6)


def test_thread_teams_run_any_batch_size() -> None:
    teams = {
        size: replace(document(MODEL.at(size), "sequential", lanes=2), objective="throughput", teams=Teams(1, 2, 2))
        for size in (4, 16)
    }
    schedules = BatchSchedules.from_json(BatchSchedules(MODEL.name, MODEL.inputs, teams).to_json())
    with iosched.LoadedBatches(MODEL, schedules, device="cpu", threads=2) as model:
        for size in (1, 3, 4, 7):
            with iosched.load(MODEL.at(size), device="cpu", threads=1) as plain:
                expected = plain.run({"x": image(size)})["y"]
            np.testing.assert_allclose(model.run({"x": image(size)})["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "no input with a batch dimension is given"),
        ({"x": image(2)[:, :, 0]}, "but the model expects"),
        ({"x": image(2)[:0]}, "but the model expects"),
        ({"x": image(2)[:, :4]}, "shape"),
        ({"x": image(2), "z": image(2)}, "'z'"),
        ({"x": image(2).astype(np.float64)}, "float64"),
    ],
)
def test_wrong_inputs_are_refused(path: Path, inputs: dict, message: str) -> None:
    with iosched.load_batches(path, device="cpu", threads=1) as model, pytest.raises(UsageError, match=message):
        model.run(inputs)


def test_a_file_made_for_another_device_warns_once_where_its_sizes_are_opened(path: Path) -> None:
    with warnings.catch_warnings(record=True, action="default") as said, iosched.load_batches(path, threads=1) as model:
        for size in (1, 4, 1):
            model.run({"x": image(size)})
    assert [(each.category, each.filename) for each in said] == [(iosched.OtherDeviceWarning, __file__)]


def test_a_session_is_scheduled_if_a_schedule_ships_at_one_of_the_sizes() -> None:
    for shipped in (("reference", "iosched", "openvino"), ("reference", "openvino", "reference")):
        each = found().schedules.by_size.items()
        by_size = {size: replace(one, shipped=way) for (size, one), way in zip(each, shipped, strict=True)}
        schedules = replace(found().schedules, by_size=by_size)
        file = write_model(annotated_batches(MODEL, schedules), MODEL.unbound.weights, None)
        session = iosched.InferenceSession(file)
        assert session.is_scheduled == ("iosched" in shipped)


def test_a_file_for_one_batch_size_is_refused() -> None:
    with pytest.raises(InvalidScheduleError, match="no schedules for several batch sizes"):
        iosched.load_batches(data(branches("n")))


def test_load_takes_one_batch_size_of_the_file(path: Path) -> None:
    with iosched.load(path, batch_size=4, device="cpu", threads=1) as model:
        assert model.document is not None
        assert model.document.to_json() == found().schedules.by_size[4].to_json()
        assert model.run({"x": image(4)})["y"].shape == (4, 16, 6, 6)


def test_load_requires_a_batch_size_if_the_file_has_several(path: Path) -> None:
    with pytest.raises(UsageError, match="for several batch sizes: select one with batch_size=N"):
        iosched.load(path)


def test_an_inference_session_runs_the_file_at_any_batch_size(path: Path) -> None:
    with iosched.InferenceSession(path, providers=["CPUExecutionProvider"]) as session:
        assert session.is_scheduled
        assert session.get_inputs()[0].shape == ["n", 8, 6, 6]
        assert session.get_outputs()[0].shape == ["n", 16, 6, 6]
        for size in (1, 3):
            assert session.run(None, {"x": image(size)})[0].shape[0] == size
