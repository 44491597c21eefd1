"""Only models that treat the images of a batch independently are accepted; errors name the operator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from onnx import helper
from small_models import models, proto_of, weight

from iosched.models.batch_independence import batched_inputs, check_batch_independence, with_batch_size
from iosched.models.errors import UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference

node = helper.make_node
IMAGE = [4, 6, 8, 8]


def loaded(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray] | None = None, batch: int = 4) -> Model:
    return load_model(
        proto_of(nodes, {"x": IMAGE}, ["y"], weights or {}).SerializeToString(), name="m", batch_size=batch
    )


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


APART = {
    "convolution": ([node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], {"w": weight(3, 6, 3, 3)}),
    "normalization": ([node("BatchNormalization", ["x", "s", "s", "s", "s"], ["y"])], {"s": weight(6)}),
    "pool": ([node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])], {}),
    "bias of each channel": ([node("Add", ["x", "b"], ["y"])], {"b": weight(6, 1, 1)}),
    "one row for all images": ([node("Mul", ["b", "x"], ["y"])], {"b": weight(1, 6, 1, 1)}),
    "softmax over channels": ([node("Softmax", ["x"], ["y"], axis=1)], {}),
    "concat of channels": ([node("Relu", ["x"], ["r"]), node("Concat", ["x", "r"], ["y"], axis=-3)], {}),
    "transpose in images": ([node("Transpose", ["x"], ["y"], perm=[0, 2, 3, 1])], {}),
    "mean of pixels": ([node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)], {}),
    "rows of a matrix": (
        [node("Flatten", ["x"], ["f"]), node("Gemm", ["f", "w", "b"], ["y"])],
        {"w": weight(384, 5), "b": weight(5)},
    ),
    "reshape of each image": ([node("Reshape", ["x", "to"], ["y"])], {"to": ints(0, 6, -1)}),
    "reshape to the batch": ([node("Reshape", ["x", "to"], ["y"])], {"to": ints(4, -1)}),
    "stacked products": (
        [node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]), node("MatMul", ["x", "t"], ["y"])],
        {},
    ),
    "slice of rows": (
        [node("Slice", ["x", "from", "to", "axes"], ["y"])],
        {"from": ints(0, 1), "to": ints(2**31 - 1, 7), "axes": ints(0, 2)},
    ),
    "padding of rows": ([node("Pad", ["x", "pads"], ["y"])], {"pads": ints(0, 0, 1, 1, 0, 0, 1, 1)}),
}

MIXED = {
    "softmax over images": ([node("Softmax", ["x"], ["y"], axis=0)], {}, "Softmax 'y'"),
    "mean of images": ([node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=1)], {}, "ReduceMean 'y'"),
    "mean of all": ([node("ReduceMean", ["x"], ["y"])], {}, "ReduceMean 'y'"),
    "training": (
        [node("BatchNormalization", ["x", "s", "s", "s", "s"], ["y", "m", "v"], training_mode=1)],
        {"s": weight(6)},
        "BatchNormalization 'y'",
    ),
    "images beside channels": ([node("Transpose", ["x"], ["y"], perm=[1, 0, 2, 3])], {}, "Transpose 'y'"),
    "a number for each image": ([node("Add", ["x", "b"], ["y"])], {"b": weight(4, 1, 1, 1)}, "Add 'y'"),
    "images one behind the other": ([node("Concat", ["x", "x"], ["y"], axis=0)], {}, "Concat 'y'"),
    "reshape across images": ([node("Reshape", ["x", "to"], ["y"])], {"to": ints(2, -1)}, "Reshape 'y'"),
    "filters from images": ([node("Conv", ["w", "x"], ["y"])], {"w": weight(1, 6, 8, 8)}, "Conv 'y'"),
    "padding of the batch": (
        [node("Pad", ["x", "pads"], ["y"])],
        {"pads": ints(1, 0, 0, 0, 0, 0, 0, 0)},
        "Pad 'y'",
    ),
    "an image left out": (
        [node("Slice", ["x", "from", "to", "axes"], ["y"])],
        {"from": ints(1), "to": ints(2**31 - 1), "axes": ints(0)},
        "Slice 'y'",
    ),
    "images in turn backwards": (
        [node("Slice", ["x", "from", "to", "axes", "steps"], ["y"])],
        {"from": ints(-1), "to": ints(-(2**31)), "axes": ints(0), "steps": ints(-1)},
        "Slice 'y'",
    ),
    "a sum over images": ([node("CumSum", ["x", "axis"], ["y"])], {"axis": np.int64(0).reshape(())}, "CumSum 'y'"),
    "places counted over all images": (
        [node("MaxPool", ["x"], ["p", "at"], kernel_shape=[2, 2]), node("Cast", ["at"], ["y"], to=1)],
        {},
        "MaxPool 'p'",
    ),
    "one scale for all images": (
        [node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]), node("Cast", ["q"], ["y"], to=1)],
        {},
        "DynamicQuantizeLinear 'q'",
    ),
}


@pytest.mark.parametrize("name", APART)
def test_a_batch_independent_model_has_the_same_outputs_at_smaller_batches(name: str) -> None:
    model = loaded(*APART[name])
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as whole, Reference(with_batch_size(model, 1)) as one:
        expected = whole.run(inputs)["y"]
        found = np.concatenate([one.run({"x": inputs["x"][i : i + 1]})["y"] for i in range(4)])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MIXED)
def test_an_operator_that_mixes_images_is_refused_by_its_name(name: str) -> None:
    nodes, weights, named = MIXED[name]
    with pytest.raises(UsageError, match=named):
        check_batch_independence(loaded(nodes, weights), ["x"])


def test_an_output_that_is_the_same_for_all_images_is_refused() -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("Neg", ["w"], ["z"])]
    proto = proto_of(nodes, {"x": IMAGE, "w": [3]}, ["y", "z"])
    with pytest.raises(UsageError, match="output 'z'"):
        check_batch_independence(load_model(proto.SerializeToString(), name="m"), ["x"])


def test_a_model_without_a_batch_is_refused() -> None:
    proto = proto_of([node("Relu", ["x"], ["y"])], {"x": [5]}, ["y"])
    model = load_model(proto.SerializeToString(), name="m")
    with pytest.raises(UsageError):
        with_batch_size(model, 2)


def test_an_input_that_all_images_share_is_not_batched() -> None:
    proto = proto_of([node("Mul", ["x", "scale"], ["y"])], {"x": IMAGE, "scale": []}, ["y"])
    model = load_model(proto.SerializeToString(), name="m")
    fewer = with_batch_size(model, 3)
    assert batched_inputs(model, fewer) == ("x",)
    assert fewer.graph.tensor["scale"].shape == ()


def test_other_dynamic_dimensions_stay_bound() -> None:
    proto = proto_of([node("Relu", ["x"], ["y"])], {"x": ["batch", 6, "rows", 8]}, ["y"])
    model = load_model(proto.SerializeToString(), name="m", input_shapes={"x": (4, 6, 7, 8)})
    assert with_batch_size(model, 2).bindings == {"x": (2, 6, 7, 8)}


@given(models(most=6))
def test_accepted_models_compute_each_image_as_alone(proto: onnx.ModelProto) -> None:
    model = load_model(proto.SerializeToString(), name="m", batch_size=3)
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as whole, Reference(with_batch_size(model, 1)) as one:
        expected = whole.run(inputs)
        for image in range(3):
            for name, found in one.run({"x": inputs["x"][image : image + 1]}).items():
                np.testing.assert_allclose(found[0], expected[name][image], rtol=1e-4, atol=1e-5)
