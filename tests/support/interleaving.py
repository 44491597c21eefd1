"""Threads that run one at a time, in an order that is drawn from a seed, and a clock that only this order moves."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

TURN_S = 60.0


@dataclass(eq=False)
class _Actor:
    body: Callable[[], None]
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ready: Callable[[], bool] = lambda: True
    wakes_s: float = float("inf")
    is_over: bool = False


class Interleaving:
    """Each of the threads runs until it pauses; then the seed chooses one that is ready."""

    def __init__(self, seed: int) -> None:
        self.random, self.now_s = random.Random(seed), 0.0
        self._actors: list[_Actor] = []
        self._back = threading.Semaphore(0)
        self._current = threading.local()

    def clock(self) -> float:
        return self.now_s

    def spawn(self, body: Callable[[], None]) -> None:
        self._actors.append(_Actor(body))

    def pause(self, ready: Callable[[], bool] = lambda: True, until_s: float = float("inf")) -> None:
        """Lets others run, until this thread is ready or the time has come, and is chosen."""
        actor: _Actor = self._current.actor
        actor.ready, actor.wakes_s = ready, until_s
        self._back.release()
        assert actor.turn.acquire(timeout=TURN_S)

    def run(self) -> None:
        """Runs until all have ended. Raises AssertionError if none can continue."""
        for actor in self._actors:
            threading.Thread(target=self._live, args=(actor,), daemon=True).start()
        while left := [each for each in self._actors if not each.is_over]:
            self.now_s += self.random.expovariate(100)
            able = [each for each in left if each.ready() or each.wakes_s <= self.now_s]
            if not able:
                self.now_s = min(each.wakes_s for each in left)
                assert self.now_s < float("inf"), "all wait for each other"
                continue
            self.random.choice(able).turn.release()
            assert self._back.acquire(timeout=TURN_S)

    def _live(self, actor: _Actor) -> None:
        self._current.actor = actor
        assert actor.turn.acquire(timeout=TURN_S)
        try:
            actor.body()
        finally:
            actor.is_over = True
            self._back.release()


class Gate:
    """A lock of such threads, in the place of `threading.Lock`."""

    def __init__(self, threads: Interleaving) -> None:
        self._threads, self._is_open = threads, True

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._is_open:
            until_s = self._threads.now_s + timeout if timeout >= 0 else float("inf")
            self._threads.pause(lambda: self._is_open, until_s)
        found, self._is_open = self._is_open, False
        return found

    def release(self) -> None:
        assert not self._is_open
        self._is_open = True
