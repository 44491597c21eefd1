"""A model that is written with its schedule: where its operators stand, what is merged, and the metadata."""

from __future__ import annotations

from small_models import branches

from iosched.jobs.annotate import annotated, merges_of, notes_of
from iosched.models.load import load_model
from iosched.scheduler.baselines import sequential
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy


def test_notes_say_where_every_operator_stands() -> None:
    stage = Stage(Strategy.CONCURRENT, (("a", "b"), ("c",)), predicted_us=5.0, measured_us=4.0)
    merge = Stage(Strategy.MERGE, (("d",), ("e",)), predicted_us=3.0)
    schedule = Schedule((Block(0, (stage,)), Block(1, (merge,))))
    notes = notes_of(schedule)
    assert {name: (note.block, note.stage, note.group) for name, note in notes.items()} == {
        "a": (0, 0, 0), "b": (0, 0, 0), "c": (0, 0, 1), "d": (1, 0, 0), "e": (1, 0, 1),
    }  # fmt: skip
    assert (notes["a"].latency_us, notes["d"].latency_us, notes["d"].strategy) == (4.0, 3.0, "merge")
    assert list(merges_of(schedule)) == [("d", "e")]


def test_what_a_device_grouped_with_others_is_not_merged_in_the_file() -> None:
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
