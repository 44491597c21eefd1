"""The thread that has the profile database does what it is asked for, or says that it cannot."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from iosched.jobs.fleet.keeper import Keeper
from iosched.models.errors import DeviceError
from iosched.profiler.store.database import ProfileDatabase


def failing(error: Exception, times: int) -> Callable[[ProfileDatabase], None]:
    """An action that fails so often before it succeeds."""
    left = iter([error] * times)

    def act(_: ProfileDatabase) -> None:
        if (raised := next(left, None)) is not None:
            raise raised

    return act


def kept(*actions: Callable[[ProfileDatabase], None], last_s: float = 60.0) -> list[tuple[str, bool]]:
    """What the thread told of trouble while it did these; raises what `close` raises, with that as its note."""
    told: list[tuple[str, bool]] = []
    keeper = Keeper(
        lambda: ProfileDatabase(None), lambda *trouble: told.append((str(trouble[0]), trouble[1])), 0.001, last_s
    )
    for action in actions:
        keeper.do(action)
    try:
        keeper.close()
    except Exception as error:
        error.add_note(str(told))
        raise
    return told


def test_what_may_pass_is_tried_again_and_what_comes_after_waits() -> None:
    done = threading.Event()
    assert kept(failing(DeviceError("locked"), 2), lambda _: done.set()) == [("locked", True), ("locked", True)]
    assert done.is_set()


@pytest.mark.slow
def test_at_the_end_it_is_given_up() -> None:
    with pytest.raises(DeviceError, match="locked") as raised:
        kept(failing(DeviceError("locked"), 10**9), last_s=0.01)
    assert raised.value.__notes__[0].endswith("('locked', False)]")


@pytest.mark.parametrize("error", [MemoryError("none left"), KeyError("x")])
def test_what_nobody_thought_of_is_told_at_once_and_nothing_more_is_done(error: Exception) -> None:
    done = threading.Event()
    with pytest.raises(type(error)) as raised:
        kept(failing(error, 1), lambda _: done.set())
    assert raised.value.__notes__ == [str([(str(error), False)])]
    assert not done.is_set()
