"""A model that is written with its schedule: notes on operators, merged stages, metadata, equal outputs."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from networks import zoo_model
from small_models import branches

from iosched.jobs.annotate import annotated, merges_of, notes_of
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.models.export import write_model
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.zoo.light import NAMES
from iosched.runtime.compare import compare
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import sequential
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy


def test_notes_give_the_block_stage_and_group_of_every_operator() -> None:
    stage = Stage(Strategy.CONCURRENT, (("a", "b"), ("c",)), predicted_us=5.0, measured_us=4.0)
    merge = Stage(Strategy.MERGE, (("d",), ("e",)), predicted_us=3.0)
    schedule = Schedule((Block(0, (stage,)), Block(1, (merge,))))
    notes = notes_of(schedule)
    assert {name: (note.block, note.stage, note.group) for name, note in notes.items()} == {
        "a": (0, 0, 0), "b": (0, 0, 0), "c": (0, 0, 1), "d": (1, 0, 0), "e": (1, 0, 1),
    }  # fmt: skip
    assert (notes["a"].latency_us, notes["d"].latency_us, notes["d"].strategy) == (4.0, 3.0, "merge")
    assert list(merges_of(schedule)) == [("d", "e")]


def test_merges_with_groups_of_several_operators_are_not_merged_in_the_file() -> None:
    stage = Stage(Strategy.MERGE, (("d", "relu"), ("e",)))
    assert list(merges_of(Schedule((Block(0, (stage,)),)))) == []


def test_an_annotated_model_carries_the_schedule_and_its_version() -> None:
    loaded = load_model(branches().SerializeToString())
    document = ScheduleDocument(
        model=loaded.name,
        sha256=loaded.digest,
        inputs=dict(loaded.bindings),
        dtype="float32",
        device={"kind": "cpu", "name": "Test CPU"},
        schedule=sequential(loaded.graph),
    )
    proto = annotated(loaded, document)
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    assert metadata["io.iosched.schedule"] == document.to_json()
    assert metadata["io.iosched.version"].startswith("0.")


MERGED = {"light_inception_v1", "light_inception_v2", "light_squeezenet"}


ZOO = ("inception_v3", "squeezenet", "googlenet", "randwire", "short_nasnet_a", "resnet50", "densenet121")


QUICK = ("light_squeezenet",)


CHAIN = "light_bvlc_alexnet"  # has the same schedule under every strategy; VGG-16 has no other operator types
LIKE_CHAINS = ("vgg19", "zfnet512")  # are slow and cover nothing beyond the other networks without branches


def _cases() -> list[object]:
    names = (*(f"light_{name}" for name in NAMES if name not in LIKE_CHAINS), *ZOO)
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", _cases())
def test_the_written_model_computes_the_same_as_the_original(name: str) -> None:
    """Each of the 69 convolutions of light_inception_v2 is followed by BatchNormalization, Mul, Add and Relu."""
    model = zoo_model(name)
    inputs = random_inputs(model.graph.inputs, 0)
    with Reference(model) as reference:
        expected = reference.run(inputs)
    for strategy in ["both"] if name == CHAIN else ["both", "merge"]:
        proto = _annotated(model, strategy)
        merges = sum(node.op_type == "Split" for node in proto.graph.node)
        assert merges > 3 or name not in MERGED
        payload = write_model(proto, model.weights, None)
        assert payload is not None
        assert load_model(payload, name=name).digest == model.digest
        checked = compare(_run(payload, inputs), expected)
        assert checked.passed, (strategy, checked.reasons)


def _annotated(model: Model, strategy: str) -> onnx.ModelProto:
    # The search of randwire takes two minutes otherwise. Limits of one's own keep to stages.
    r, s = (2, 3) if model.name == "randwire" else (3, 7)
    found = optimize(model, OptimizeSettings(device="v100", strategy=strategy, r=r, s=s, profile_db=None))
    return annotated(model, found.document)


def _run(payload: bytes, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(payload)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))
