"""The devices of a cluster, and the reasons why some are unusable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from iosched.jobs.pool.messages import Facts, Opened, Unusable, encoded
from iosched.jobs.pool.survey import survey
from iosched.jobs.pool.transport import Command, Event, Lost, Place, Places, Said, Start, Stop, Unreached
from iosched.models.errors import DeviceError
from iosched.models.version import iosched_version

CPU = Place("box", "10.0.0.1", "cpu", threads=8)
GPU = Place("box", "10.0.0.1", "v100", count=4, threads=8)


def facts(version: str | None = None, **more: object) -> bytes:
    versions = {"iosched": version or iosched_version()}
    return encoded(Facts(versions=versions, device="cpu", name="A CPU", key="a cpu", threads=8, **more))  # type: ignore[arg-type]


class Scripted:
    """A transport to a cluster with these places, where workers send these facts or are lost for these reasons."""

    def __init__(self, answers: Mapping[Place, bytes | str | None]) -> None:
        self.answers = answers
        self.sent: list[Command] = []
        self.coming: list[Event] = [Places(tuple(answers))]

    def send(self, command: Command) -> None:
        self.sent.append(command)
        if isinstance(command, Start) and (answer := self.answers[command.place]) is not None:
            name = command.worker
            self.coming.append(Said(name, answer) if isinstance(answer, bytes) else Lost(name, answer, True))

    def receive(self, timeout_s: float) -> Sequence[Event]:
        found, self.coming = self.coming, []
        return found

    def close(self) -> None:
        pass


def problems(answers: Mapping[Place, bytes | str | None], timeout_s: float = 5) -> dict[str, str]:
    return {each.place.device: each.problem for each in survey(Scripted(answers), timeout_s)}


def test_a_worker_on_each_place_describes_it_and_is_stopped() -> None:
    cluster = Scripted({GPU: facts(), CPU: facts()})
    found = survey(cluster, 5)
    assert [(each.place, each.problem) for each in found] == [(GPU, ""), (CPU, "")]
    assert {each.facts.name for each in found if each.facts is not None} == {"A CPU"}
    started = {command.worker for command in cluster.sent if isinstance(command, Start)}
    assert {command.worker for command in cluster.sent if isinstance(command, Stop)} == started
    assert len(started) == 2


def test_a_worker_of_another_version_is_not_usable() -> None:
    assert problems({CPU: facts("0.0.9")}) == {"cpu": f"it has iosched 0.0.9, and this is {iosched_version()}"}


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b"{}", "it says what is not understood here: a message between this process and a worker is broken"),
        (b"\x80\x04N.", "it says what is not understood here"),
        (encoded(Unusable(reason="cuDNN is not installed")), "cuDNN is not installed"),
        (encoded(Opened(call=0)), "it does not say what it is"),
    ],
)
def test_a_worker_with_another_first_message_is_not_usable(said: bytes, problem: str) -> None:
    assert problems({CPU: said})["cpu"].startswith(problem)


def test_a_noisy_machine_is_usable() -> None:
    assert problems({CPU: facts(disturbed_by=("at first", "others had the cores"))}) == {"cpu": ""}


def test_the_reason_why_no_worker_started_is_reported() -> None:
    assert problems({CPU: "iosched is not installed on its machine"}) == {
        "cpu": "iosched is not installed on its machine"
    }
    assert problems({CPU: None}, 0.05) == {"cpu": "no worker came up there within 0 s"}


def test_no_worker_starts_on_a_cpu_not_offered_or_an_unknown_gpu() -> None:
    nothing, unknown = Place("head", "10.0.0.2", "cpu", count=0), Place("box", "10.0.0.1", "gtx-1080")
    cluster = Scripted({nothing: None, unknown: None})
    found = survey(cluster, 5)
    assert [each.problem for each in found] == [
        "its CPU is not offered: start Ray there with --resources '{\"iosched_cpu\": 1}'",
        "the table of GPUs does not have it: see `iosched devices`",
    ]
    assert cluster.sent == []


def test_a_cluster_that_is_lost_is_an_error() -> None:
    cluster = Scripted({})
    cluster.coming = [Unreached("gone", has_ended=False)]
    with pytest.raises(DeviceError, match="gone"):
        survey(cluster, 5)
    cluster.coming = []
    with pytest.raises(DeviceError, match="does not say which machines"):
        survey(cluster, 0.01)
