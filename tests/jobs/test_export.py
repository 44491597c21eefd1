"""`export` writes a model and a plan that run as in our runtime, and refuses what needs Python by name."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from shipped import document, optimized_file
from small_models import branches, data, node, proto_of, weight

import iosched
from iosched.jobs.annotate import annotated
from iosched.jobs.export import check, export
from iosched.models.errors import ExecutionError, UsageError
from iosched.models.export import write_model
from iosched.models.load import load_model
from iosched.runtime.cpu import library

pytestmark = pytest.mark.skipif(not library.available(), reason="the compiled executor is not built")

X = np.random.default_rng(0).standard_normal((1, 8, 6, 6), np.float32)


@pytest.fixture
def optimized(tmp_path: Path) -> Path:
    return optimized_file(tmp_path / "m.iosched.onnx", branches())


@pytest.fixture
def folder(tmp_path: Path, optimized: Path) -> Path:
    export(optimized, tmp_path / "out", threads=2)
    return tmp_path / "out"


def test_the_folder_has_an_ordinary_model_and_its_plan(tmp_path: Path, optimized: Path) -> None:
    result = export(optimized, tmp_path / "out", threads=2)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["m.onnx", "m.plan"]
    assert (result.model, result.plan) == (tmp_path / "out/m.onnx", tmp_path / "out/m.plan")
    assert (result.lanes, [dict(each.inputs) for each in result.programs]) == (2, [{"x": (1, 8, 6, 6)}])
    assert result.plan_nbytes == result.plan.stat().st_size
    keys = [item.key for item in onnx.load(result.model).metadata_props]
    assert {"io.iosched.schedule", "io.iosched.plan"} <= set(keys)


def test_a_plan_computes_bitwise_the_same_as_our_runtime(optimized: Path, folder: Path) -> None:
    with iosched.load(optimized, threads=2) as own, iosched.load(folder, threads=2) as plan:
        assert plan.description == "iosched, 2 threads, plan file"
        assert plan.is_scheduled
        np.testing.assert_array_equal(plan.run({"x": X})["y"], own.run({"x": X})["y"])
        assert (plan.name, plan.inputs, plan.outputs) == ("m", own.inputs, own.outputs)


@pytest.mark.parametrize("way", [iosched.load, iosched.load_any, iosched.InferenceSession])
@pytest.mark.parametrize("place", ["", "m.onnx"], ids=["folder", "file"])
def test_all_ways_to_open_a_model_take_the_folder_and_the_file(folder: Path, way: object, place: str) -> None:
    with way(folder / place, strict=True) as opened:  # type: ignore[operator]
        assert opened.is_scheduled


def test_a_session_runs_and_describes_an_exported_model(folder: Path) -> None:
    session = iosched.InferenceSession(folder)
    assert [each.name for each in session.get_inputs()] == ["x"]
    assert session.run(None, {"x": X})[0].shape == (1, 16, 6, 6)
    assert "io.iosched.plan" in session.get_modelmeta().custom_metadata_map


def test_a_file_for_several_batch_sizes_has_a_program_for_each(tmp_path: Path) -> None:
    iosched.optimize_batches(data(branches("n")), (1, 3), device="cpu", budget=1, threads=2).save(tmp_path / "s.onnx")
    result = export(tmp_path / "s.onnx", tmp_path / "out", threads=2)
    assert [each.inputs["x"][0] for each in result.programs] == [1, 3]
    with iosched.load_any(tmp_path / "out") as plan, iosched.load_any(tmp_path / "s.onnx", threads=2) as own:
        for size in (1, 3, 2):  # the last one has no program
            x = np.repeat(X, size, axis=0)
            np.testing.assert_array_equal(plan.run({"x": x})["y"], own.run({"x": x})["y"])
    with iosched.load(tmp_path / "out", batch_size=3) as one:
        assert one.description.endswith("plan file")


def test_equal_weights_of_several_programs_are_stored_once(tmp_path: Path) -> None:
    wide = proto_of(
        [node("Conv", ["x", "w"], ["c"], pads=[1] * 4), node("Relu", ["c"], ["y"])],
        {"x": ["n", 64, 8, 8]},
        ["y"],
        {"w": weight(64, 64, 3, 3)},
    )
    iosched.optimize_batches(data(wide), (1, 2), device="v100").save(tmp_path / "gpu.onnx")
    iosched.optimize_batches(data(wide), (1, 2), device="cpu", budget=1, threads=1).save(tmp_path / "s.onnx")
    result = export(tmp_path / "s.onnx", tmp_path / "out", threads=1)
    assert result.plan_nbytes < 1.5 * 64 * 64 * 9 * 4


def test_external_data_is_exported_too(tmp_path: Path) -> None:
    big = proto_of(
        [node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], {"x": [1, 64, 8, 8]}, ["y"], {"w": weight(64, 64, 3, 3)}
    )
    optimized = optimized_file(tmp_path / "m.onnx", big)
    onnx.save(onnx.load(optimized), optimized, save_as_external_data=True, location="w.bin")
    export(optimized, tmp_path / "out", threads=1)
    (tmp_path / "w.bin").unlink()
    with iosched.load(tmp_path / "out", strict=True, threads=1) as model:
        assert model.run({"x": np.ones((1, 64, 8, 8), np.float32)})["y"].shape == (1, 64, 8, 8)


def test_an_exported_model_is_exported_again(tmp_path: Path, folder: Path) -> None:
    export(folder / "m.onnx", tmp_path / "again", threads=1)
    keys = [item.key for item in onnx.load(tmp_path / "again/m.onnx").metadata_props]
    assert keys.count("io.iosched.plan") == 1
    assert check(tmp_path / "again").is_used


def test_existing_files_are_kept_unless_they_may_be_replaced(folder: Path, optimized: Path) -> None:
    with pytest.raises(UsageError, match=r"m\.plan exists"):
        export(optimized, folder, threads=1)
    assert check(folder).reason is None
    export(optimized, folder, threads=1, overwrite=True)
    with iosched.load(folder) as model:
        assert model.description == "iosched, 1 threads, plan file"


def test_weight_files_of_a_replaced_model_are_removed(folder: Path, optimized: Path) -> None:
    (folder / "m.onnx.data").write_bytes(b"weights of a larger model")
    export(optimized, folder, threads=1, overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == ["m.onnx", "m.plan"]
    assert check(folder).reason is None


@pytest.mark.parametrize(("shipped", "said"), [("reference", "plain onnxruntime"), ("openvino", "OpenVINO")])
def test_a_plan_runs_the_schedule_even_where_a_library_has_shipped(tmp_path: Path, shipped: str, said: str) -> None:
    result = export(optimized_file(tmp_path / "m.onnx", branches(), shipped), tmp_path / "out", threads=1)
    assert result.notes == (f"{said} was the fastest and had shipped. The plan runs the schedule in the file.",)
    with iosched.load(tmp_path / "out") as model:
        assert model.description.endswith("plan file")


def test_a_model_without_schedule_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(data(branches()))
    with pytest.raises(UsageError, match="has no schedule to export: run iosched optimize first"):
        export(tmp_path / "m.onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_schedule_for_a_gpu_is_refused(tmp_path: Path) -> None:
    iosched.optimize(data(branches()), device="v100").save(tmp_path / "m.onnx")
    with pytest.raises(UsageError, match=r"the schedule is for Tesla V100.*, but a plan runs on CPUs"):
        export(tmp_path / "m.onnx", tmp_path / "out")


def test_reduced_precision_is_refused(tmp_path: Path) -> None:
    model = load_model(data(branches()))
    made = replace(document(model, shipped="openvino", precision="bf16"))
    write_model(annotated(model, made), model.weights, tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="the schedule is for bf16 on OpenVINO"):
        export(tmp_path / "m.onnx", tmp_path / "out")


def test_text_inputs_are_refused_by_name(tmp_path: Path) -> None:
    texts = proto_of([node("Identity", ["s"], ["y"])], {"s": (TensorProto.STRING, [2])}, {"y": TensorProto.STRING})
    model = load_model(data(texts))
    write_model(annotated(model, replace(document(model), dtype="string")), model.weights, tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="'s' is of type string, which needs Python"):
        export(tmp_path / "m.onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def retrained(path: Path) -> None:
    proto = onnx.load(path)
    tensor = proto.graph.initializer[0]
    tensor.raw_data = bytes(len(tensor.raw_data))
    onnx.save(proto, path)


def test_a_retrained_model_never_gets_old_weights(tmp_path: Path) -> None:
    iosched.optimize(data(branches()), device="cpu", budget=1, threads=2).save(tmp_path / "m.iosched.onnx")
    folder = export(tmp_path / "m.iosched.onnx", tmp_path / "out", threads=2).model.parent
    retrained(folder / "m.onnx")
    with pytest.warns(iosched.PlanWarning, match=r"The plan of m\.onnx is not used: m\.onnx has changed") as found:
        model = iosched.load(folder, threads=2)
    assert [each.filename for each in found] == [__file__]
    with model, iosched.load((folder / "m.onnx").read_bytes(), threads=2) as plain:
        assert not model.description.endswith("plan file")
        np.testing.assert_array_equal(model.run({"x": X})["y"], plain.run({"x": X})["y"])
    with pytest.raises(ExecutionError, match="has changed since it was exported"):
        iosched.load(folder, strict=True)


def test_another_plan_of_the_same_name_is_not_used(folder: Path, tmp_path: Path, optimized: Path) -> None:
    export(optimized, tmp_path / "other", threads=1)
    (tmp_path / "other/m.plan").replace(folder / "m.plan")
    assert check(folder).reason == "m.plan is another plan than the one that m.onnx names"


def test_a_warning_is_issued_if_the_plan_is_for_other_threads(folder: Path) -> None:
    with pytest.warns(iosched.PlanWarning, match="the plan is for 2 threads, not 1"), iosched.load(folder, threads=1):
        pass


def test_a_missing_plan_is_named(folder: Path) -> None:
    (folder / "m.plan").unlink()
    assert "m.plan" in str(check(folder).reason)
    with pytest.warns(iosched.PlanWarning, match="is not used"), iosched.load(folder) as model:
        assert model.is_scheduled


def test_a_plan_is_ignored_without_warning_if_a_schedule_is_given(folder: Path, optimized: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = iosched.load(optimized, threads=1).document
        with iosched.load(folder / "m.onnx", schedule=given, threads=1) as model:
            assert "compiled executor" in model.description


@pytest.mark.parametrize("n", [0, 2])
def test_a_folder_must_have_one_exported_model(folder: Path, tmp_path: Path, n: int) -> None:
    if n == 2:
        (folder / "n.onnx").write_bytes((folder / "m.onnx").read_bytes())
    with pytest.raises(UsageError, match=f"has {n or 'no'} exported models"):
        check(folder if n else tmp_path)
