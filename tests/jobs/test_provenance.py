"""Provenance of results: the machine, versions, seeds and the command."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict

from iosched.jobs.provenance import provenance
from iosched.models.version import iosched_version
from iosched.runtime.cores import allowed_cpus


def test_provenance_records_machine_versions_seeds_command_and_time() -> None:
    found = asdict(provenance({"inputs": 3}, ["iosched", "run", "./m.onnx"]))
    assert found == json.loads(json.dumps(found)) | {"machine": found["machine"], "command": found["command"]}
    assert set(found) == {"machine", "versions", "seeds", "command", "time"}
    machine, versions = found["machine"], found["versions"]
    assert isinstance(machine, dict)
    assert isinstance(versions, dict)
    assert machine["cores"] == tuple(allowed_cpus())
    assert machine["memory_nbytes"] > 0
    assert {"cpu", "design", "quota", "processors", "system", "kernel", "architecture"} < set(machine)
    assert versions["iosched"] == iosched_version()
    assert versions["python"] == platform.python_version()
    assert {"onnx", "numpy", "onnxruntime"} <= set(versions)
    assert (found["seeds"], found["command"]) == ({"inputs": 3}, ("iosched", "run", "./m.onnx"))
    assert str(found["time"]).endswith("Z")


def test_provenance_kept_in_files_excludes_transient_facts() -> None:
    kept = provenance({"inputs": 0}, ["iosched"]).as_kept()
    assert set(kept) == {"machine", "versions", "seeds"}
    assert not {"cores", "quota", "kernel"} & set(kept["machine"])  # type: ignore[call-overload]
    assert kept == provenance({"inputs": 0}, ["iosched", "optimize"]).as_kept()
