"""Alternatives in processes of their own, each of which measures on request.

Threads of onnxruntime spin for tens of milliseconds after a run, and libraries pin and size their thread pools per
process. In separate processes, alternatives share no threads, and each can use its own version of the package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REST_SECONDS = 0.15  # until threads that spin after a run are asleep


@dataclass(frozen=True)
class Child:
    """A process that answers each word on its stdin with a line of JSON on its stdout."""

    name: str
    process: subprocess.Popen[str]

    @classmethod
    def start(cls, name: str, script: str, words: Sequence[str], folder: str | None = None) -> Child:
        """Starts `script --child WORDS`; `folder` holds the package that it imports, by default this process's own."""
        from iosched.runtime.cpu.lane_cpus import SHARE_VARIABLE  # other versions may not have it

        taking_turns = {SHARE_VARIABLE: "1"}  # on the same cores, as if each were alone
        environment = {**os.environ, **taking_turns, **({"PYTHONPATH": folder} if folder else {})}
        pipe = subprocess.PIPE
        command = [sys.executable, script, "--child", *words]
        return cls(name, subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment))

    def ask(self, word: str) -> Any:
        """Sends a word and reads the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(word, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended while it was asked for {word!r}")
        return json.loads(line)

    def stop(self) -> None:
        """Ends the process."""
        self.process.communicate()


def serve(answers: Mapping[str, Callable[[], Any]]) -> None:
    """Answers the words on stdin until it ends."""
    for line in sys.stdin:
        print(json.dumps(answers[line.strip()]()), flush=True)
