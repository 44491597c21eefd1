"""A worker that does what its messages say, where the product's would measure."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Odd:
    """An object that creates a file where it is unpickled, then fails."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({self.path!r}, 'w').close(); raise ValueError('unpickled')",)


class Standin:
    """Describes itself, then does what each message names: see `take`."""

    def __init__(self, device: str, threads: int, say: Callable[[Any], None]) -> None:
        self.say = say
        found = {"device": device, "threads": threads, "pid": os.getpid(), "cwd": str(Path.cwd())}
        threading.Thread(target=self._say, args=(found,)).start()

    def _say(self, found: dict[str, object]) -> None:
        cpus = [sorted(os.sched_getaffinity(int(thread.name))) for thread in Path("/proc/self/task").iterdir()]
        self.answer({**found, "cpus": cpus, "nice": os.getpriority(os.PRIO_PROCESS, 0)})

    def answer(self, value: object) -> None:
        self.say(json.dumps(value).encode())

    def take(self, message: bytes, fetch: Callable[[], bytes]) -> None:
        """Obeys {"print": TEXT}, {"count": N}: says 0 to N-1, {"digest": true}: says that of the model, {"pickle":
        PATH} and {"object": PATH}: says an `Odd`, {"echo": VALUE}, and {"fail": TEXT}: raises it."""
        asked = json.loads(message)
        if "print" in asked:
            print(asked["print"], flush=True)  # noqa: T201 - that is the point
        for number in range(asked.get("count", 0)):
            self.answer(number)
        if "digest" in asked:
            threading.Thread(target=lambda: self.answer(hashlib.sha256(fetch()).hexdigest())).start()
        if "pickle" in asked:
            self.say(pickle.dumps(Odd(asked["pickle"])))
        if "object" in asked:
            self.say(Odd(asked["object"]))
        if "echo" in asked:
            self.answer(asked["echo"])
        if "fail" in asked:
            raise RuntimeError(asked["fail"])
