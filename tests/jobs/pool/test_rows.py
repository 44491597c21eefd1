"""Each worker sees the rows of others on devices like its own, once."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from thread_cluster import row

from iosched.jobs.pool.rows import RowLog, family_of, is_of_gpu
from iosched.profiler.store.database import device_key
from iosched.profiler.store.tables import CalibrationRow


def key(
    name: str = "A CPU", kind: str = "cpu", precision: str = "float32", threads: int = 2, version: str = "1"
) -> str:
    return device_key(kind, name, precision=precision, threads=threads, versions={"onnxruntime": version})


def calibration_row(device: str) -> CalibrationRow:
    return CalibrationRow(device, datetime.now(UTC), (1.0,))


def test_a_family_is_one_device_in_any_precision_and_on_any_number_of_threads() -> None:
    assert family_of(key()) == family_of(key(threads=4)) == family_of(key(precision="float16"))
    assert len({family_of(each) for each in (key(), key("Another"), key(version="2"), "not ours", "[1]")}) == 5


@pytest.mark.parametrize(
    ("device", "is_gpu"), [(key(kind="cuda"), True), (key(), False), ("none", False), ("3", False)]
)
def test_rows_of_gpus_are_known_by_their_device(device: str, is_gpu: bool) -> None:
    assert is_of_gpu(row("stage", key=device)) == is_gpu


def test_a_worker_sees_rows_of_others_and_of_the_database_once() -> None:
    log, family = RowLog(), family_of(key())
    known, elsewhere = row("known", key=key()), row("known", key=key("Another"))
    log.begin(family, lambda: [known, elsewhere])
    log.begin(family, lambda: pytest.fail("its rows are known"))
    mine, others = row("mine", key=key(threads=4)), row("others", key=key())
    assert log.add([mine], "me") == (mine,)
    assert log.add([others], "another") == (others,)
    assert log.unseen("me", family) == (known, others)
    assert log.unseen("me", family) == ()
    assert log.unseen("another", family) == (known, mine)


def test_the_first_calibration_of_each_device_is_kept() -> None:
    log, first = RowLog(), calibration_row(key())
    of_other_threads = calibration_row(key(threads=4))
    log.begin(family_of(key()), lambda: [first])
    assert log.add([calibration_row(key()), of_other_threads], "me") == (of_other_threads,)
    assert log.unseen("another", family_of(key())) == (first, of_other_threads)
