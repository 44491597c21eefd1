"""Seeded weights depend only on their names and the base, and preserve the scale of activations."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import run

from iosched.models.mutation.draft import seeded

CONV = helper.make_node("Conv", ["x", "w"], ["y"])


def test_seeded_values_never_change() -> None:
    """Models that were replayed from earlier records contain these bits."""
    found = seeded("n/W", "ab" * 32, CONV, 1, (2, 3, 1, 1))
    assert found.view(np.uint32).reshape(-1).tolist() == BITS


BITS = [1047530518, 1041049573, 3208997862, 3198759778, 1044227481, 3209782663]


def test_names_and_bases_make_other_values() -> None:
    one = seeded("n", "a", CONV, 1, (8, 8, 3, 3))
    assert (one == seeded("n", "a", CONV, 1, (8, 8, 3, 3))).all()
    assert not np.isin(seeded("m", "a", CONV, 1, (8, 8, 3, 3)), one).any()
    assert not np.isin(seeded("n", "b", CONV, 1, (8, 8, 3, 3)), one).any()


def test_large_weights_do_not_repeat() -> None:
    values = seeded("n", "a", CONV, 1, (3 * 2**19, 2, 1, 1)).reshape(-1)
    assert len(np.unique(values)) > 0.8 * values.size
    assert abs(float(values.mean())) < 0.01 * float(values.std())


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        (CONV, (64, 32, 3, 3)),
        (helper.make_node("ConvTranspose", ["x", "w"], ["y"]), (32, 64, 3, 3)),
        (helper.make_node("Gemm", ["x", "w"], ["y"]), (500, 300)),
        (helper.make_node("Gemm", ["x", "w"], ["y"], transB=1), (300, 500)),
        (helper.make_node("MatMul", ["x", "w"], ["y"]), (500, 300)),
    ],
)
def test_weights_of_products_have_hes_variance(node: object, shape: tuple[int, ...]) -> None:
    weights = seeded("n", "a", node, 1, shape)  # type: ignore[arg-type]
    sums = {(64, 32, 3, 3): 32 * 9, (32, 64, 3, 3): 32 * 9}.get(shape, 500)
    assert float(weights.std()) == pytest.approx((2 / sums) ** 0.5, rel=0.02)


def test_normalizations_are_near_the_identity() -> None:
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"])
    weights = [
        numpy_helper.from_array(seeded(name, "a", node, place, (5,)), name) for place, name in enumerate("sbmv", 1)
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [value("x", TensorProto.FLOAT, (1, 5, 4))], [value("y", TensorProto.FLOAT, None)], weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = np.random.default_rng(0).standard_normal((1, 5, 4)).astype(np.float32)
    np.testing.assert_allclose(run(model.SerializeToString(), {"x": data})["y"], data, atol=0.6)
