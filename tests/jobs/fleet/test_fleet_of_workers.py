"""A fleet of real workers, in threads of this process: one search, whose questions all of them answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from queue import Queue

import msgspec
import pytest
from fleet_threads import PATIENCE_S, ThreadTransport, cpu_places
from scripted import LATENCIES_US, fire, script_models, script_stages

from iosched.jobs.fleet.errand import Errand
from iosched.jobs.fleet.fleet import Fleet
from iosched.jobs.fleet.messages import Facts, decoded, encoded
from iosched.jobs.fleet.plain import taken
from iosched.jobs.fleet.sending import packed
from iosched.jobs.fleet.work.ahead import Ahead
from iosched.jobs.fleet.work.optimize import Optimize
from iosched.jobs.fleet.worker import Worker
from iosched.jobs.optimize import OptimizeResult, optimize
from iosched.jobs.settings import OptimizeSettings
from iosched.profiler.store.database import ProfileDatabase

THREADS = 2

READ_AT_ONCE = """
import sys, threading
sys.setswitchinterval(1e-6)
from iosched.jobs.fleet import messages
begin = threading.Barrier(8)
def read():
    begin.wait()
    messages.said(b'{"version":1,"message":"measured","rows":[]}')
    messages.told(b'{"version":1,"message":"known","number":0,"rows":[]}')
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_may_read_their_first_messages_at_a_time() -> None:
    """msgspec crashed there, in every second process."""
    subprocess.run([sys.executable, "-c", READ_AT_ONCE], check=True)


class Quiet:
    """A worker that takes its machine for quiet, whatever else runs beside these tests."""

    def __init__(self) -> None:
        self._worker = Worker("cpu", THREADS)

    def facts(self) -> bytes:
        facts: Facts = decoded(self._worker.facts(), Facts)
        return encoded(msgspec.structs.replace(facts, disturbed_by=()))

    def call(
        self, message: bytes, models: Mapping[str, bytes], say: Callable[[bytes], None], told: Queue[bytes]
    ) -> bytes:
        return self._worker.call(message, models, say, told)


def test_a_search_on_two_workers_finds_what_a_local_one_finds_from_their_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script_models(monkeypatch, LATENCIES_US)
    measured = script_stages(monkeypatch)
    path = tmp_path / "profile.sqlite"
    transports: list[ThreadTransport] = []

    def connect() -> ThreadTransport:
        transports.append(ThreadTransport(cpu_places(2), lambda place: Quiet()))
        return transports[-1]

    settings = OptimizeSettings(device="cpu", threads=THREADS, profile_db=path)
    sent, data = packed(fire())
    work = msgspec.to_builtins(Optimize(replace(settings, profile_db=None), ahead=Ahead()))
    with Fleet(connect, lambda: ProfileDatabase(path)) as fleet:
        found = taken(fleet.submit(Errand("optimize", work, sent, data, "cpu")).result(PATIENCE_S), OptimizeResult)
    packets = [call for call in transports[0].calls if b'"questions"' in call.message]
    assert packets
    count = len(measured)
    local = optimize(fire(), settings)
    assert len(measured) == count, "all that was measured is in the database"
    assert (found.measurements, found.cache_hits) == (local.cache_hits, 0), "whoever has measured it"
    assert json.loads(found.document.to_json())["blocks"] == json.loads(local.document.to_json())["blocks"]
