"""Processes that keep cores busy during measurements."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from iosched.models.errors import ExecutionError

_BUSY = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole group; the parent decides when to end
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0))).start()  # ends with the parent, however it ends
print(flush=True)
while True:
    pass
"""


@contextmanager
def background_load(count: int) -> Iterator[tuple[int, ...]]:
    """The ids of `count` processes that each keep a core busy within the context.

    Raises:
        OSError: the system starts no further process.
        ExecutionError: one of them ended early.
    """
    with ExitStack() as stack:
        running = [stack.enter_context(_busy_process()) for _ in range(count)]
        for each in running:
            assert each.stdout is not None
            each.stdout.readline()
        yield tuple(each.pid for each in running)
        if any(each.poll() is not None for each in running):
            raise ExecutionError("a process of the background load ended early: measure again")


@contextmanager
def _busy_process() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-I", "-S", "-c", _BUSY]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()
