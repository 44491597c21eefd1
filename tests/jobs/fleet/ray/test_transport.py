"""The driver's end where there is no cluster."""

from __future__ import annotations

import pytest

from iosched.jobs.fleet.ray import transport
from iosched.jobs.fleet.ray.address import LocalCluster, RunningCluster
from iosched.jobs.fleet.ray.reasons import reason
from iosched.jobs.fleet.ray.transport import RayTransport, opened
from iosched.jobs.fleet.transport import StopWorker, TransportLost
from iosched.models.errors import DeviceError, UsageError

NOWHERE = RunningCluster("127.0.0.1:9")


def test_without_ray_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"Ray, .* install it with: pip install 'iosched\[fleet\]'"):
        RayTransport(NOWHERE)


def test_too_many_local_workers_are_refused_before_anything_is_started() -> None:
    with pytest.raises(UsageError, match="needs 1024 cores"):
        RayTransport(LocalCluster(1024))


def test_no_cluster_is_an_event_to_those_who_wait_for_events() -> None:
    there = RayTransport(NOWHERE)
    (event,) = there.receive(60)
    assert event == TransportLost("no Ray cluster at 127.0.0.1:9: connection refused")
    there.send(StopWorker("w"))
    assert there.receive(0.05) == ()
    there.close()
    there.close()


def test_no_cluster_is_an_error_to_those_who_need_one() -> None:
    with pytest.raises(DeviceError, match="no Ray cluster at"), opened(NOWHERE):
        raise AssertionError("there is one")


class TaskError(Exception):
    """As Ray's, which has what was raised as its cause."""

    def __init__(self, text: str, cause: Exception) -> None:
        super().__init__(text)
        self.cause = cause


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            Exception("The actor died.\nThe actor is dead because its worker process has died. Exit type: X"),
            "its process ended",
        ),
        (Exception("... because its node has died."), "its machine left the cluster"),
        (
            Exception("Traceback\n  ...\nModuleNotFoundError: No module named 'iosched'"),
            "iosched is not installed on its machine",
        ),
        (Exception("Traceback\nValueError: odd\n\n"), "ValueError: odd"),
        (Exception(), "Exception"),
        (
            TaskError("Traceback", DeviceError("no V100 here:\nsee `iosched devices`")),
            "no V100 here: see `iosched devices`",
        ),
    ],
)
def test_why_a_worker_was_lost_is_said_in_a_sentence(error: Exception, words: str) -> None:
    assert reason(error) == words
