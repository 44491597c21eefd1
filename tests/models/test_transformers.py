"""The small transformers of the zoo: masks, merged products, and dynamic lengths."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module

import numpy as np
import onnx
import pytest
from shipped import document
from small_models import data, run

import iosched
from iosched.jobs.annotate import annotated
from iosched.models.dynamic_batch import with_dynamic_batch
from iosched.models.export import with_schedules, write_model
from iosched.models.load import load_model, read_unbound
from iosched.models.merging.rule import refusal
from iosched.models.model import Model
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

NAMES = ("bert_mini", "decoder_mini")
LENGTH = 12


@cache
def built(name: str, batch: int | str = 1, length: int | str = LENGTH) -> bytes:
    return data(import_module(f"iosched.models.zoo.{name}").build(batch, length))


@cache
def model(name: str) -> Model:
    return load_model(built(name), name=name)


def feeds(name: str, batch: int = 1, length: int = LENGTH) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    found = {"ids": random.integers(0, 8192, (batch, length)), "mask": np.ones((batch, length), np.int64)}
    found["mask"][:, length * 3 // 4 :] = 0
    return {spec.name: found[spec.name] for spec in model(name).graph.inputs}


def parts(layer: int) -> tuple[str, str, str]:
    query, key, value = (f"layer{layer}/attention/{part}" for part in ("query", "key", "value"))
    return query, key, value


def with_products_merged(name: str) -> Schedule:
    """One operator after another, but each layer's queries, keys and values in one product."""
    stages: list[Stage] = []
    for operator in model(name).graph.operators:
        layer, _, rest = operator.name.partition("/")
        if rest in ("attention/key", "attention/value"):
            continue
        if rest == "attention/query":
            one = tuple((part,) for part in parts(int(layer.removeprefix("layer"))))
            stages.append(Stage(Strategy.MERGE, one))
        else:
            stages.append(Stage(Strategy.CONCURRENT, ((operator.name,),)))
    return Schedule((Block(0, tuple(stages)),))


def test_the_encoder_ignores_padding() -> None:
    before = feeds("bert_mini")
    after = {**before, "ids": np.where(before["mask"] == 1, before["ids"], 7)}
    first, second = (run(built("bert_mini"), each)["output"] for each in (before, after))
    end = LENGTH * 3 // 4
    np.testing.assert_allclose(first[:, :end], second[:, :end], rtol=1e-5, atol=1e-6)
    assert np.abs(first[:, end:] - second[:, end:]).max() > 0.1


def test_a_token_of_the_decoder_sees_only_earlier_tokens() -> None:
    before = feeds("decoder_mini")
    after = {"ids": before["ids"].copy()}
    after["ids"][0, 8] = (after["ids"][0, 8] + 1) % 8192
    first, second = (run(built("decoder_mini"), each)["output"] for each in (before, after))
    np.testing.assert_allclose(first[:, :8], second[:, :8], rtol=1e-5, atol=1e-5)
    assert (np.abs(first[:, 8:] - second[:, 8:]).max(axis=(0, 2)) > 1e-3).all()


@pytest.mark.parametrize("name", NAMES)
def test_queries_keys_and_values_may_be_one_product(name: str) -> None:
    graph = model(name).graph
    for layer in range(4):
        assert refusal([graph.by_name[part] for part in parts(layer)]) is None
    mixed = [graph.by_name[parts(0)[0]], graph.by_name["layer0/feed_forward/wide"]]
    assert refusal(mixed) is not None


@pytest.mark.parametrize("name", NAMES)
def test_merged_products_compute_the_same_on_our_runtime(name: str) -> None:
    loaded, inputs = model(name), feeds(name)
    merged = iosched.ScheduleDocument(
        name, loaded.digest, loaded.bindings, "int64", {"kind": "cpu", "name": "test"}, with_products_merged(name)
    )
    expected = run(built(name), inputs)["output"]
    with iosched.load(loaded, schedule=merged, device="cpu", threads=2) as executor:
        found = executor.run(inputs)["output"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", NAMES)
def test_merged_products_are_unmerged_on_load(name: str) -> None:
    loaded = model(name)
    merged = iosched.ScheduleDocument(
        name, loaded.digest, loaded.bindings, "int64", {"kind": "cpu", "name": "test"}, with_products_merged(name)
    )
    file = write_model(annotated(loaded, merged), loaded.weights, None) or b""
    products = sum(node.op_type == "MatMul" for node in onnx.load_from_string(file).graph.node)
    assert products == sum(node.op_type == "MatMul" for node in loaded.proto.graph.node) - 2 * 4
    expected, found = run(built(name), feeds(name))["output"], run(file, feeds(name))["output"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert load_model(file, name=name).digest == loaded.digest


@pytest.mark.parametrize("way", ["sequential", "greedy"])
@pytest.mark.parametrize("name", NAMES)
def test_schedules_compute_the_same_as_onnxruntime(name: str, way: str) -> None:
    loaded, inputs = model(name), feeds(name)
    expected = run(built(name), inputs)["output"]
    scheduled = iosched.load(loaded, schedule=_typed(document(loaded, way)), device="cpu", threads=2)
    with scheduled as executor:
        found = executor.run(inputs)["output"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def _typed(found: iosched.ScheduleDocument) -> iosched.ScheduleDocument:
    return replace(found, dtype="int64")


@pytest.mark.parametrize("name", NAMES)
def test_a_bound_dynamic_length_gives_the_network_of_that_length(name: str) -> None:
    shapes = {spec.name: (1, LENGTH) for spec in model(name).graph.inputs}
    bound = load_model(built(name, "batch", "length"), name=name, input_shapes=shapes)
    assert bound.digest == model(name).digest
    assert bound.structure == model(name).structure


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_batch_may_stay_dynamic_while_the_length_is_bound(name: str) -> None:
    shapes = {spec.name: (1, LENGTH) for spec in model(name).graph.inputs}
    dynamic = with_dynamic_batch(read_unbound(built(name, "batch", "length"), name=name), (1, 3), shapes)
    assert set(dynamic.inputs.values()) == {("batch", LENGTH)}
    file = write_model(with_schedules(dynamic, (1, 3), "{}", "0"), dynamic.unbound.weights, None) or b""
    onnx.checker.check_model(onnx.load_from_string(file), full_check=True)
    assert dynamic.at(1).digest == model(name).digest
    inputs = feeds(name, 3)
    together = run(file, inputs)["output"]
    for text in range(3):
        alone = run(built(name), {key: value[text : text + 1] for key, value in inputs.items()})["output"]
        np.testing.assert_allclose(together[text : text + 1], alone, rtol=1e-4, atol=1e-4 * np.abs(alone).max())
