"""Parts of a model with more in them: what they compute, that onnxruntime runs them, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from iosched.models import zoo
from iosched.models.batching.sample import weightless
from iosched.models.enlarging.branch import with_branch
from iosched.models.enlarging.kernel import kernel_of, larger, with_kernel
from iosched.models.enlarging.part import Part, part_of
from iosched.models.enlarging.trial import groups_in_trial, trial
from iosched.models.enlarging.width import widened, width_of, widths
from iosched.models.export import source_of
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.scheduler.baselines import greedy

PLAIN = 64
"""A block of so many channels that none of these models' images has one: all are fed as they are."""


class Builder:
    """A model, node by node; "x" is its input."""

    def __init__(self, shape: Sequence[int] = (1, 6, 9, 9)) -> None:
        self.shape, self.nodes, self.weights = shape, [], []  # type: ignore[var-annotated]
        self.random = np.random.default_rng(0)

    def add(
        self, kind: str, reads: Sequence[str], result: str, weights: Sequence[Sequence[int]] = (), **more: object
    ) -> str:
        names = [f"{result}_{place}" for place in range(len(weights))]
        values = (self.random.uniform(0.1, 1.0, shape).astype(np.float32) for shape in weights)
        self.weights += [numpy_helper.from_array(array, name) for array, name in zip(values, names, strict=True)]
        self.nodes.append(helper.make_node(kind, [*reads, *names], [result], **more))
        return result

    def model(self, *outputs: str) -> Model:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "made", [x], results, self.weights)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return load_model(proto.SerializeToString(), name="made")


def whole(model: Model, but: Sequence[str] = ()) -> Part:
    """All operators as one group, but for some that read what the others compute."""
    return part_of(model, [[each.name for each in model.graph.operators if each.name not in but]])


def run(part: Part, block: int = PLAIN) -> dict[str, np.ndarray]:
    """What the part computes of random numbers, in onnxruntime."""
    made = trial({"p": part}, block)
    source = source_of(made)
    assert isinstance(source, bytes)
    onnx.checker.check_model(onnx.load_from_string(source), full_check=True)
    random = np.random.default_rng(1)
    fed = {spec.name: random.uniform(0, 1, spec.shape).astype(np.float32) for spec in made.graph.inputs}
    session = ort.InferenceSession(source)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, fed), strict=True))


def separable() -> Model:
    """A width goes through normalization, activation, pooling, sums, products with constants, depthwise and Concat."""
    made = Builder()
    made.add("Conv", ["x"], "a", [(10, 6, 1, 1), (10,)])
    made.add("BatchNormalization", ["a"], "n", [(10,), (10,), (10,), (10,)])
    made.add("Relu", ["n"], "r")
    made.add("Conv", ["r"], "d", [(10, 1, 3, 3)], group=10, pads=[1] * 4)
    made.add("MaxPool", ["r"], "p", kernel_shape=[3, 3], pads=[1] * 4)
    made.add("Mul", ["p"], "m", [(1, 10, 1, 1)])
    made.add("Add", ["m", "d"], "s")
    made.add("Concat", ["s", "r"], "c", axis=1)
    made.add("Conv", ["c"], "y", [(5, 20, 1, 1)])
    made.add("Relu", ["y"], "z")
    return made.model("z")


def test_an_operator_becomes_wider_and_what_reads_it_reads_all_of_it() -> None:
    model = separable()
    first = model.graph.producer["r"]
    part = whole(model)
    assert width_of(part, first) == 10
    wide = widened(part, first, 16)
    assert wide is not None
    made = trial({"p": wide}, PLAIN)
    assert [made.graph.tensor[f"p/{name}"].shape[1] for name in "rdpscy" if f"p/{name}" in made.graph.tensor] == [
        *(16, 16, 16, 16),
        *(32, 5),
    ]
    assert run(wide)["p/z"].shape == (1, 5, 9, 9)
    assert made.graph.by_name[f"p/{first}"].integer("out_channels") == 16


def test_the_channels_that_were_there_are_computed_as_before() -> None:
    model = separable()
    before = whole(model, but=[model.graph.producer[name] for name in "cz"])
    first = model.graph.producer["r"]
    wide = widened(before, first, 13)
    assert wide is not None
    then, now = run(before), run(wide)
    for name, array in then.items():
        assert now[name].shape[1] == array.shape[1] + 3
        np.testing.assert_allclose(now[name][:, : array.shape[1]], array, rtol=1e-5)


def test_products_become_wider_along_their_last_axis() -> None:
    made = Builder((2, 7, 12))
    made.add("MatMul", ["x"], "a", [(12, 20)])
    made.add("Add", ["a"], "b", [(20,)])
    made.add("Relu", ["b"], "c")
    made.add("MatMul", ["c"], "y", [(20, 6)])
    made.add("Tanh", ["y"], "z")
    model = made.model("z")
    wide = widened(whole(model), model.graph.producer["c"], 32)
    assert wide is not None
    assert wide.tensors["c"].shape == (2, 7, 32)
    assert run(wide)["p/z"].shape == (2, 7, 6)


def test_what_a_gemm_reads_and_computes_follows_its_flags() -> None:
    made = Builder((3, 8))
    made.add("Gemm", ["x"], "a", [(10, 8), (10,)], transB=1)
    made.add("Gemm", ["a"], "y", [(10, 4), (4,)])
    made.add("Relu", ["y"], "z")
    model = made.model("z")
    wide = widened(whole(model), "a", 24)
    assert wide is not None
    assert run(wide)["p/z"].shape == (3, 4)
    assert width_of(whole(model), model.graph.producer["z"]) == 4


def test_what_has_no_wider_meaning_is_refused() -> None:
    made = Builder()
    made.add("Conv", ["x"], "a", [(6, 6, 1, 1)])
    made.add("Add", ["a", "x"], "s")  # a sum with what is not in the part
    made.add("Conv", ["x"], "b", [(8, 6, 1, 1)])
    made.add("Reshape", ["b", made.add("Constant", [], "shape", value_ints=[1, -1])], "f")
    made.add("Conv", ["x"], "returned", [(8, 6, 1, 1)])
    made.add("Conv", ["x"], "deep", [(6, 1, 3, 3)], group=6)
    model = made.model("s", "f", "returned", "deep")
    part = whole(model)
    for tensor in ("s", "b", "returned", "deep"):
        assert widened(part, model.graph.producer[tensor], 64) is None, tensor
    assert width_of(part, model.graph.producer["f"]) is None
    assert width_of(part, model.graph.producer["deep"]) is None


@given(width=st.integers(1, 600), block=st.sampled_from([1, 8, 16]), most=st.integers(1, 6))
def test_widths_are_whole_blocks_up_to_twice_the_width(width: int, block: int, most: int) -> None:
    found = widths(width, block, most)
    assert 1 <= len(found) <= most
    assert found[0] - width <= block
    assert all(each % block == 0 and width < each for each in found)
    assert all(before < after for before, after in pairwise(found))
    assert all(each <= 2 * width for each in found[1:])


@pytest.mark.parametrize("padded", [{"pads": [1, 0, 1, 0]}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "VALID"}, {}])
@pytest.mark.parametrize("strides", [[1, 1], [2, 2]])
def test_a_larger_kernel_leaves_the_shape_as_it_is(padded: dict[str, object], strides: list[int]) -> None:
    made = Builder((1, 6, 12, 12))
    made.add("Conv", ["x"], "a", [(8, 6, 3, 1)], strides=strides, dilations=[2, 1], **padded)
    made.add("Relu", ["a"], "y")
    model = made.model("y")
    part, operator = whole(model), model.graph.operators[0].name
    assert kernel_of(part, operator) == (3, 1)
    grown = with_kernel(part, operator, (5, 3))
    assert grown is not None
    assert run(grown)["p/y"].shape == model.graph.tensor["y"].shape
    assert trial({"p": grown}, PLAIN).graph.operators[0].integers("kernel_shape") == (5, 3)


def test_kernels_that_do_not_fit_are_refused() -> None:
    made = Builder((1, 6, 4, 4))
    made.add("Conv", ["x"], "a", [(8, 6, 3, 3)], pads=[1] * 4)
    model = made.model("a")
    for kernel in ((3, 3), (1, 1), (4, 4), (5, 5)):
        assert with_kernel(whole(model), "a", kernel) is None
    assert (larger((1, 1), 1), larger((1, 7), 2), larger((3, 3), 1)) == ((3, 3), (1, 11), (5, 5))


def test_a_branch_more_computes_the_same_of_its_own_input() -> None:
    model = separable()
    names = [each.name for each in model.graph.operators]
    part = part_of(model, [names[:1], names[-1:]])
    more = with_branch(part, 0)
    assert len(more.groups) == 3
    made = trial({"p": more}, PLAIN)
    assert {"p/x", "p/more/x"} <= {spec.name for spec in made.graph.inputs}
    groups = groups_in_trial("p", more.groups)
    assert made.graph.by_name[groups[2][0]].attributes == made.graph.by_name[groups[0][0]].attributes
    assert {f"p/{name}" for name in more.weights} <= set(made.weights)


NETWORKS = {name: load_model(zoo.build(name).SerializeToString(), name=name) for name in ("squeezenet",)}


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_changed_stages_of_a_network_run_and_have_the_operators_that_they_had(data: st.DataObject) -> None:
    model = weightless(NETWORKS["squeezenet"])
    stage = data.draw(st.sampled_from(list(greedy(model.graph).stages)))
    part = part_of(model, stage.groups)
    operator = data.draw(st.sampled_from(stage.operators))
    changed = {"now": part, "branch": with_branch(part, data.draw(st.sampled_from(range(len(part.groups)))))}
    width, kernel = width_of(part, operator), kernel_of(part, operator)
    changed["width"] = (None if width is None else widened(part, operator, width + 8)) or part
    changed["kernel"] = (None if kernel is None else with_kernel(part, operator, larger(kernel, 1))) or part
    made = trial(changed, 16)
    for name, each in changed.items():
        for own, nodes in each.members.items():
            assert made.graph.by_name[f"{name}/{own}"].nodes == tuple(f"{name}/{node}" for node in nodes)
            assert made.graph.by_name[f"{name}/{own}"].type == model.graph.by_name[own.removeprefix("more/")].type
