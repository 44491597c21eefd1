"""What the fleet does about everything that happens, by a clock of the test's own and without a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import pytest
from fleet_threads import errand

from iosched.jobs.fleet.keeper import Keeper
from iosched.jobs.fleet.messages import Stop
from iosched.jobs.fleet.patience import Patience
from iosched.jobs.fleet.running import Running
from iosched.jobs.fleet.status import Silence
from iosched.models.errors import DeviceError
from iosched.profiler.store.database import ProfileDatabase

WITHOUT_S = 10.0


@pytest.fixture
def running() -> Iterator[Running]:
    def ignored(_: object) -> None:
        pass

    keeper = Keeper(lambda: ProfileDatabase(None), lambda error, again: None)
    with closing(keeper), closing(Running(keeper, ignored, Silence(), Patience(), WITHOUT_S)) as running:
        yield running


@pytest.fixture
def submitted(running: Running) -> Callable[[], Future[Any]]:
    def submit() -> Future[Any]:
        future: Future[Any] = Future()
        running.submit(errand(device="v100"), future)
        return future

    return submit


def test_an_errand_fails_that_waited_so_long_for_a_worker(
    running: Running, submitted: Callable[[], Future[Any]]
) -> None:
    future = submitted()
    for now_s, is_done in ((100.0, False), (100.0 + WITHOUT_S - 1, False), (100.0 + WITHOUT_S, True)):
        running.look_round(now_s)
        assert future.done() == is_done
    with pytest.raises(DeviceError, match=r"no worker on v100 came up within 10 s"):
        future.result()


def test_one_that_comes_later_does_not_pay_for_how_long_another_waited(
    running: Running, submitted: Callable[[], Future[Any]]
) -> None:
    first = submitted()
    running.look_round(100.0)
    running.tell(first, Stop(how="now"))
    running.look_round(101.0)
    second = submitted()
    running.look_round(102.0 + WITHOUT_S)
    assert not second.done()
