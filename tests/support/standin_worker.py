"""A worker that does what its messages say, where `Worker` of `jobs/fleet/worker.py` would measure."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import time
from collections.abc import Callable, Mapping
from pathlib import Path


class Standin:
    """Does what a message names: see `call`."""

    def __init__(self, device: str, threads: int) -> None:
        self.device = device
        self.threads = threads

    def facts(self) -> bytes:
        found = {"device": self.device, "threads": self.threads, "pid": os.getpid(), "cwd": str(Path.cwd())}
        cpus = [sorted(os.sched_getaffinity(int(thread.name))) for thread in Path("/proc/self/task").iterdir()]
        return json.dumps({**found, "cpus": cpus, "nice": os.getpriority(os.PRIO_PROCESS, 0)}).encode()

    def call(
        self, message: bytes, models: Mapping[str, bytes], say: Callable[[bytes], None], told: queue.Queue[bytes]
    ) -> bytes:
        """Answers {"count": N}, saying 0 .. N-1; {"echo": N} with the N messages it is told; {"digests": true};
        {"sleep": SECONDS}; {"print": TEXT}; {"fail": TEXT} with a failure."""
        asked = json.loads(message)
        if "fail" in asked:
            say(b'"failing"')
            raise RuntimeError(asked["fail"])
        if "print" in asked:
            print(asked["print"], flush=True)  # noqa: T201 - that is the point
        for number in range(asked.get("count", 0)):
            say(json.dumps(number).encode())
        heard = []
        for _ in range(asked.get("echo", 0)):
            heard.append(json.loads(told.get(timeout=60)))
            say(json.dumps(heard[-1]).encode())
        time.sleep(asked.get("sleep", 0))
        if "digests" in asked:
            return json.dumps({name: hashlib.sha256(model).hexdigest() for name, model in models.items()}).encode()
        return json.dumps({"heard": heard}).encode()
