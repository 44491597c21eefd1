"""Messages between a driver and its workers are read back as written, and invalid ones are refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.jobs.pool import codec
from iosched.jobs.pool.messages import (
    Asked,
    Call,
    Done,
    DriverMessage,
    Facts,
    Failed,
    InterruptedTaskError,
    Known,
    Measured,
    Opened,
    Progress,
    SentModel,
    Step,
    StopAssignment,
    Unusable,
    WorkerMessage,
    driver_message,
    encoded,
    failed,
    raised,
    worker_message,
)
from iosched.models import errors
from iosched.models.errors import DeviceError, ExecutionError, IoschedError, UsageError
from iosched.profiler.store.tables import CalibrationRow, ChoiceRow, ComparisonRow, StageRow, WholeRow
from iosched.scheduler.cost import CostQuestion
from iosched.scheduler.schedule import Division, Stage, Strategy

NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
MODEL = SentModel("0" * 64, "1" * 64, "2" * 64, "squeezenet", 1, {"x": (1, 3, 224, 224)})

numbers = st.floats(allow_nan=False)
texts = st.text(max_size=8)
samples = st.lists(st.floats(0, 1e9), max_size=5).map(tuple)
times = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
rows = st.lists(
    st.builds(ChoiceRow, texts, texts, texts)
    | st.builds(CalibrationRow, texts, times, samples)
    | st.builds(StageRow, texts, texts, st.sampled_from(["first", "again", "rough"]), times, st.none() | samples)
    | st.builds(ComparisonRow, texts, texts, texts, times, samples, samples, st.none() | texts)
    | st.builds(WholeRow, texts, texts, times, st.just("openvino"), samples, samples, *map(st.just, (3, 1.5, 2.5))),
    max_size=4,
).map(tuple)
stages = st.builds(
    Stage,
    st.sampled_from(Strategy),
    st.lists(st.lists(texts, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple),
    st.none() | numbers,
    st.none() | numbers,
    st.none() | st.just(Division(2, ((0,), (0, 1)))),
)
questions = st.lists(
    st.builds(CostQuestion, stages, st.sampled_from(["latency", "again", "operator", "work"]), numbers), max_size=4
).map(tuple)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
calls = st.integers(0, 9)
said_messages = (
    st.builds(Opened, call=calls)
    | st.builds(Measured, rows=rows)
    | st.builds(Progress, call=calls, done=st.integers(0, 9), total=st.none() | st.just(9), text=texts)
    | st.builds(Step, call=calls, step=st.integers(0, 9), value=numbers)
    | st.builds(Asked, call=calls, opening=st.dictionaries(texts, any_json), questions=questions)
    | st.builds(Done, call=calls, result=any_json)
    | st.builds(Failed, call=calls, type=texts, text=texts)
    | st.builds(Unusable, reason=texts)
)
told_messages = (
    st.builds(Call, call=calls, kind=texts, work=any_json, model=st.just(MODEL), rows=rows, asks=st.booleans())
    | st.builds(Known, call=calls, rows=rows)
    | st.builds(StopAssignment, call=calls, how=st.sampled_from(["best", "now", "pruned"]))
)


@given(said_messages)
def test_messages_of_a_worker_are_read_back_as_written(message: WorkerMessage) -> None:
    assert worker_message(encoded(message)) == message


@given(told_messages)
def test_messages_to_a_worker_are_read_back_as_written(message: DriverMessage) -> None:
    assert driver_message(encoded(message)) == message


def test_infinities_do_not_become_null() -> None:
    question = CostQuestion(Stage(Strategy.CONCURRENT, (("a",),), predicted_us=math.inf, measured_us=None))
    text = encoded(Asked(call=0, opening={"nothing": None, "least": -math.inf}, questions=(question,)))
    json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    message = worker_message(text)
    assert isinstance(message, Asked)
    (again,) = message.questions
    assert (again.worse_than_us, again.stage.predicted_us, again.stage.measured_us) == (math.inf, math.inf, None)
    assert message.opening == {"nothing": None, "least": -math.inf}


def test_nan_is_read_back_as_nan() -> None:
    assert math.isnan(codec.read(codec.written(math.nan), float))
    assert math.isnan(codec.read(codec.written([math.nan]), list[Any])[0])


def test_a_reserved_key_is_refused_when_it_is_written() -> None:
    with pytest.raises(ValueError, match="stands for a number"):
        encoded(Done(call=0, result={"runtime": {codec.NUMBER: "inf"}}))


@pytest.mark.parametrize("mark", ["1", "nan ", 1, None, "Infinity"])
def test_an_invalid_marked_number_is_refused_when_it_is_read(mark: object) -> None:
    with pytest.raises(ExecutionError, match="marks what is no number"):
        codec.read(json.dumps({"a": {codec.NUMBER: mark}}).encode(), dict[str, Any])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "truncated"),
        (b"null", "Expected `object`"),
        (b"{}", "message"),
        (b"\x80\x04N.", "malformed"),
        (b'{"message": "stop", "call": 1, "how": "gently"}', r"\$.how"),
        (b'{"message": "stop", "call": 1, "how": "best", "also": 1}', "also"),
        (b'{"message": "known", "call": -1, "rows": []}', r"\$.call"),
        (b'{"message": "known", "call": 0, "rows": [{"table": "stage"}]}', r"\$.rows\[0\]"),
        (b'{"message": "measured", "rows": []}', "measured"),
        (b'{"message": "stop", "call": 1, "how": "best"', "truncated"),
        (b"[" * 100_000, "broken"),
    ],
)
def test_an_invalid_message_is_refused_with_the_place(text: bytes, says: str) -> None:
    with pytest.raises(ExecutionError, match=says):
        driver_message(text)


def test_rows_that_no_database_can_keep_are_refused() -> None:
    row = {"table": "yardstick", "device": "d", "measured_at": "0001-01-01T00:00:00+23:59", "samples_us": []}
    with pytest.raises(ExecutionError, match="broken"):
        worker_message(json.dumps({"message": "measured", "rows": [row]}).encode())


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, IoschedError)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_raised_with_its_class_and_text(kind: type[IoschedError]) -> None:
    again = raised(failed(0, kind("first line\nsecond")))
    assert type(again) is kind
    assert str(again) == "first line\nsecond"


def test_an_error_of_a_job_is_raised_as_its_base_class() -> None:
    class OwnError(UsageError):
        """An error that a job raises."""

    assert type(raised(failed(0, OwnError("why")))) is UsageError


def test_an_unexpected_error_names_the_worker() -> None:
    again = raised(failed(0, ZeroDivisionError("division by zero")), "the worker on n2")
    assert type(again) is ExecutionError
    assert str(again) == "the worker on n2 failed: ZeroDivisionError: division by zero"


def test_only_iosched_error_classes_are_looked_up() -> None:
    assert type(raised(Failed(call=0, type="SystemExit", text="0"))) is ExecutionError


def test_an_interruption_is_raised_as_an_interrupted_task() -> None:
    assert type(raised(failed(0, KeyboardInterrupt()))) is InterruptedTaskError
    assert not issubclass(InterruptedTaskError, DeviceError)


def test_facts_are_read_as_they_were_written() -> None:
    facts = Facts(
        versions={"iosched": "0.1.0", "onnxruntime": "1.31.1"},
        device="cpu",
        name="A CPU",
        key='{"kind":"cpu"}',
        threads=2,
        yardstick=(CalibrationRow("d", NOW, (1.0, 2.0)),),
        disturbed_by=("others had 50% of the cores",),
    )
    assert worker_message(encoded(facts)) == facts


def test_an_unserializable_result_is_refused_when_it_is_written() -> None:
    @dataclass
    class OnOneMachine:
        path: object

    with pytest.raises(TypeError):
        encoded(Done(call=0, result=OnOneMachine(object())))


READ_AT_ONCE = """
import sys, threading
sys.setswitchinterval(1e-6)
from iosched.jobs.pool import messages
begin = threading.Barrier(8)
def read():
    begin.wait()
    messages.worker_message(b'{"message":"measured","rows":[]}')
    messages.driver_message(b'{"message":"known","call":0,"rows":[]}')
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_can_read_their_first_messages_concurrently() -> None:
    """msgspec crashed here in half of all processes."""
    subprocess.run([sys.executable, "-c", READ_AT_ONCE], check=True)
