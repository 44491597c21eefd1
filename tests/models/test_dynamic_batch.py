"""Models with a dynamic batch: which dimension it is, the written file, and equal results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from small_models import data, models, proto_of, run, weight

from iosched.models import export
from iosched.models.dynamic_batch import DynamicBatchModel, with_dynamic_batch
from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.export import with_schedules, write_model
from iosched.models.load import load_model, read_unbound
from iosched.models.zoo.light import light_model

node = helper.make_node


def dynamic(proto: onnx.ModelProto, *sizes: int, **shapes: tuple[int, ...]) -> DynamicBatchModel:
    return with_dynamic_batch(read_unbound(data(proto)), sizes or (1, 4), shapes)


def written(model: DynamicBatchModel, *sizes: int) -> bytes:
    proto = with_schedules(model, sizes or (1, 4), "{}", "0")
    return write_model(proto, model.unbound.weights, None) or b""


def dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def product(shape: list[int | str], **more: list[int | str]) -> onnx.ModelProto:
    """x times weights, plus a row of each further input."""
    nodes = [node("MatMul", ["x", "w"], ["y0"])]
    for number, name in enumerate(more):
        nodes += [node("Add", [f"y{number}", name], [f"y{number + 1}"])]
    inputs = {"x": shape, **more}
    return proto_of(nodes, inputs, [f"y{len(more)}"], {"w": weight(8, 8)})  # type: ignore[arg-type]


def test_the_batch_is_the_dynamic_first_dimension_and_keeps_its_name() -> None:
    model = dynamic(product(["images", 8]))
    assert model.inputs == {"x": ("images", 8)}
    assert model.at(3).bindings == {"x": (3, 8)}
    proto = onnx.load_from_string(written(model))
    assert dims(proto.graph.input[0]) == dims(proto.graph.output[0]) == ["images", 8]


def test_several_inputs_have_one_batch_even_under_different_names() -> None:
    model = dynamic(product(["n", 8], a=["m", 8], b=[1, 8], c=[8]))
    assert model.inputs == {"x": ("n", 8), "a": ("n", 8), "b": (1, 8), "c": (8,)}
    assert model.at(2).bindings["a"] == (2, 8)


def test_a_batch_without_a_name_gets_one() -> None:
    proto = product(["n", 8])
    proto.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    assert dynamic(proto).inputs == {"x": ("batch", 8)}


def test_other_dimensions_are_bound_by_shapes_at_one_of_the_batch_sizes() -> None:
    proto = product(["n", "length", 8], a=["n", "length", 8], b=["rows", "length", 8])
    model = dynamic(proto, 1, 4, x=(4, 5, 8), b=(1, 5, 8))
    assert model.inputs == {"x": ("n", 5, 8), "a": ("n", 5, 8), "b": (1, 5, 8)}
    found = onnx.load_from_string(written(model))
    assert [dims(value) for value in found.graph.input] == [["n", 5, 8], ["n", 5, 8], [1, 5, 8]]
    assert dims(found.graph.output[0]) == ["n", 5, 8]
    named = dynamic(proto, 1, 4, length=(5,), rows=(1,))
    assert named.inputs == model.inputs


@pytest.mark.parametrize(
    ("shapes", "kind", "message"),
    [
        ({"x": (2, 5, 8)}, UsageError, "has batch size 2, which is none of 1, 4"),
        ({"z": (1, 5, 8)}, UsageError, "no input or dynamic dimension 'z'"),
        ({"x": (1, 5)}, UsageError, "3 dimensions"),
        ({"x": (1, 5, 7)}, UsageError, "8 is fixed"),
        ({"x": (1, 5, 8), "a": (1, 6, 8)}, UsageError, "'length' is bound to 5"),
        ({}, InvalidModelError, "dynamic dimensions: x=1xlengthx8"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        dynamic(product(["n", "length", 8], a=["n", "length", 8]), 1, 4, **shapes)


def test_a_fixed_batch_becomes_dynamic_with_the_shapes_that_fix_it() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Reshape", ["a", "four"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("Reshape", ["c", "flat"], ["y"]),
    ]
    weights = {"w": weight(8, 8), "four": np.array([2, 2, 4]), "flat": np.array([2, -1])}
    model = dynamic(proto_of(nodes, {"x": [2, 8]}, ["y"], weights), 1, 3)
    x = np.random.default_rng(0).standard_normal((3, 8), np.float32)
    (y,) = run(written(model), {"x": x}).values()
    assert y.shape == (3, 8)
    np.testing.assert_allclose(y, np.maximum(x @ model.unbound.weights["w"], 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("proto", "shapes", "message"),
    [
        (product([1, 8], a=[2, 8]), {}, "different fixed batches"),
        (proto_of([node("Relu", ["x"], ["y"])], {"x": [8]}, ["y"], {}), {}, "no input has two dimensions"),
        (product([4, "length", 8]), {"x": (4, 5, 8)}, "no input has a dynamic first dimension"),
    ],
    ids=["differ", "vectors", "not first"],
)
def test_a_model_without_a_batch_is_refused(proto: onnx.ModelProto, shapes: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dynamic(proto, 1, 4, **shapes)


@pytest.mark.parametrize("first", ["n", 1], ids=["dynamic", "fixed"])
def test_a_node_that_fixes_the_batch_is_named(first: int | str) -> None:
    nodes = [node("Concat", ["token", "x"], ["y"], axis=1)]
    model = dynamic(proto_of(nodes, {"x": [first, 2, 8]}, ["y"], {"token": weight(1, 1, 8)}))
    assert model.at(1).graph.operators
    with pytest.raises(InvalidModelError, match=r"cannot run at batch size 4.*\n.*Concat"):
        model.at(4)


def test_a_reshape_that_fixes_the_batch_of_a_dynamic_model_is_named() -> None:
    nodes = [node("Reshape", ["x", "shape"], ["y"])]
    model = dynamic(proto_of(nodes, {"x": ["n", 2, 4]}, ["y"], {"shape": np.array([1, 8])}))
    with pytest.raises(InvalidModelError, match=r"cannot run at batch size 4.*\n.*Reshape 'y'"):
        model.at(4)


def test_weights_are_in_memory_once_for_all_batch_sizes() -> None:
    model = dynamic(product(["n", 8]))
    assert all(np.shares_memory(model.at(size).weights["w"], model.unbound.weights["w"]) for size in (1, 4, 7))


def test_weights_too_large_for_one_file_are_external_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    model = dynamic(proto_of(nodes, {"x": ["n", 64]}, ["y"], {"w": weight(64, 64)}))
    monkeypatch.setattr(export, "_INLINE_LIMIT_NBYTES", 10_000)
    proto = with_schedules(model, (1, 4), "{}", "0")
    with pytest.raises(UsageError, match="too much for one ONNX stream"):
        write_model(proto, model.unbound.weights, None)
    write_model(proto, model.unbound.weights, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_size < 10_000 < (tmp_path / "m.onnx.data").stat().st_size
    again = read_unbound(tmp_path / "m.onnx", name=model.name)
    assert isinstance(again.weights["w"].base, np.memmap)
    assert [again.bound(batch_size=size).digest for size in (1, 4)] == [model.at(size).digest for size in (1, 4)]


def test_metadata_of_an_earlier_schedule_is_removed() -> None:
    proto = product(["n", 8])
    proto.ir_version = 10
    proto.graph.node[0].metadata_props.add(key="io.iosched.stage", value="1")
    for key in ("io.iosched.schedule", "io.iosched.schedules", "author"):
        proto.metadata_props.add(key=key, value="before")
    found = onnx.load_from_string(written(dynamic(proto)))
    assert not any(item.key for each in found.graph.node for item in each.metadata_props)
    metadata = {item.key: item.value for item in found.metadata_props}
    assert metadata == {"author": "before", "io.iosched.schedules": "{}", "io.iosched.version": "0"}


def assert_written_is_the_model(proto: onnx.ModelProto, one: int, other: int, between: int) -> None:
    """The written model is valid, loads as the scheduled model, and computes each image like a batch of one."""
    model = dynamic(proto, one, other)
    file = written(model, one, other)
    onnx.checker.check_model(onnx.load_from_string(file), full_check=True)
    assert all(dims(value)[0] == "batch" for value in onnx.load_from_string(file).graph.output)
    for size in (one, other, between):
        bound = model.at(size)
        again = load_model(file, name=bound.name, batch_size=size)
        assert (again.digest, again.structure) == (bound.digest, bound.structure)
    rng = np.random.default_rng(0)
    feeds = {spec.name: rng.standard_normal((between, *spec.shape[1:]), np.float32) for spec in bound.graph.inputs}
    together = run(file, feeds)
    for image in range(between):
        alone = run(data(proto), {name: value[image : image + 1] for name, value in feeds.items()})
        for name, value in alone.items():
            scale = np.abs(value).max()
            np.testing.assert_allclose(together[name][image : image + 1], value, rtol=1e-3, atol=1e-4 * scale)


SLOW = ("shufflenet", "inception_v1", "inception_v2", "densenet121")


@pytest.mark.parametrize("name", ["squeezenet", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_a_light_model_of_batch_1_is_the_same_with_a_dynamic_batch(name: str) -> None:
    assert_written_is_the_model(light_model(name), 1, 3, 2)


@pytest.mark.slow
@given(
    proto=models(), sizes=st.lists(st.integers(1, 9), min_size=2, max_size=2, unique=True), between=st.integers(1, 5)
)
def test_any_model_is_the_same_with_a_dynamic_batch(proto: onnx.ModelProto, sizes: list[int], between: int) -> None:
    assert_written_is_the_model(proto, *sizes, between)
