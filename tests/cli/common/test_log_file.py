"""`--log-file`: a complete log, line by line, whatever happens; and a library that is silent by default."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from small_models import branches

from iosched.cli.common import log_file
from iosched.cli.common.log_file import without_secrets
from iosched.cli.main import cli

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) \[\d+\] [\w.]+: .*")


def lines_of(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    assert lines
    assert all(LINE.fullmatch(line) for line in lines)
    return lines


def test_a_search_is_in_the_log_with_its_stages_even_with_q(invoke, model: Path, workdir: Path) -> None:
    result = invoke("optimize", model, "--threads", 2, "--budget", 2, "-q", "--log-file", "a.log")
    assert result.exit_code == 0
    assert result.output == ""
    text = "\n".join(lines_of(workdir / "a.log"))
    for said in (
        f"iosched optimize {model} --threads 2 --budget 2 -q --log-file a.log",
        "iosched.models.load: read",
        "iosched.jobs.optimize: optimize 'branches' on",
        "threads=2, budget_s=2.0",
        "iosched.profiler.store.stages: stage",
        "iosched.jobs.optimizing.comparison: whole model, reference:",
        "iosched.jobs.optimize: ships",
        "exit code 0 after",
    ):
        assert said in text


def test_stderr_and_the_table_are_in_the_log(invoke, model: Path, workdir: Path) -> None:
    result = invoke("--log-file", "a.log", "run", model, "--check")
    assert result.exit_code == 0
    text = "\n".join(lines_of(workdir / "a.log"))
    for line in (*result.stderr.splitlines(), *result.stdout.splitlines()):
        assert line in text


def test_an_error_has_its_traceback_only_in_the_log(invoke, workdir: Path) -> None:
    result = invoke("inspect", "none.onnx", "--log-file", "a.log")
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    lines = lines_of(workdir / "a.log")
    assert any("ERROR" in line and "Traceback" in line for line in lines)
    assert any("Error: none.onnx does not exist." in line for line in lines)
    assert "exit code 2" in lines[-1]


def test_wrong_usage_is_in_the_log_too(invoke, workdir: Path) -> None:
    assert invoke("--log-file", "a.log", "inspect", "--none").exit_code == 2
    assert "--none" in "\n".join(lines_of(workdir / "a.log")[2:])


def test_calls_are_appended(invoke, workdir: Path) -> None:
    for _ in range(2):
        assert invoke("zoo", "list", "--log-file", "a.log").exit_code == 0
    assert sum("exit code 0" in line for line in lines_of(workdir / "a.log")) == 2


@pytest.mark.slow
def test_lines_of_several_processes_stay_whole(tmp_path: Path) -> None:
    code = (
        "import logging, pathlib, sys\n"
        "from iosched.cli.common.log_file import _Appending\n"
        "handler = _Appending(pathlib.Path(sys.argv[1]))\n"
        "for number in range(100):\n"
        "    text = '\\n'.join([sys.argv[2] * 5000] * 3)\n"
        "    handler.handle(logging.LogRecord('iosched', logging.INFO, '', 0, text, (), None))\n"
    )
    path = tmp_path / "a.log"
    writers = [subprocess.Popen([sys.executable, "-c", code, path, letter]) for letter in "abcd"]
    assert [writer.wait() for writer in writers] == [0] * 4
    lines = lines_of(path)
    assert len(lines) == 4 * 100 * 3
    assert {line.partition("iosched: ")[2] for line in lines} == {letter * 5000 for letter in "abcd"}


def test_a_kill_loses_nothing_that_was_logged(tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "import iosched.jobs.doctor.diagnosis\n"
        "from iosched.profiler.devices import resolve\n"
        "resolve.device_facts = lambda: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from iosched.cli.main import cli\n"
        "cli(['--log-file', 'a.log', 'devices'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == -9
    assert "--log-file a.log devices" in lines_of(tmp_path / "a.log")[-1]


def test_a_full_disk_is_reported_before_any_work(invoke, complains) -> None:
    complains(invoke("zoo", "list", "--log-file", "/dev/full"), 1, "--log-file /dev/full", "No space left on device")


def test_a_disk_that_fills_up_later_costs_the_log_and_not_the_result(
    invoke, monkeypatch: pytest.MonkeyPatch, workdir: Path
) -> None:
    writes, write = [0], os.write

    def fill_up(descriptor: int, data: bytes) -> int:
        writes[0] += 1
        if writes[0] > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(log_file.os, "write", fill_up)
    result = invoke("zoo", "list", "--log-file", "a.log")
    assert result.exit_code == 1
    assert "squeezenet" in result.stdout
    assert result.stderr == "Error: --log-file a.log: cannot write: No space left on device; the log is incomplete\n"
    assert len(lines_of(workdir / "a.log")) == 2


@pytest.mark.parametrize(
    ("text", "word"),
    [("-", "stdout"), ("none/a.log", "No such file"), (".", "directory"), ("branches.onnx", "not a log")],
)
def test_a_file_that_cannot_be_a_log_is_refused_and_left_alone(
    invoke, model: Path, complains, text: str, word: str
) -> None:
    before = model.read_bytes()
    complains(invoke("zoo", "list", "--log-file", text), 2, f"--log-file {text}", word)
    assert model.read_bytes() == before


def test_a_name_cannot_forge_a_line(invoke, workdir: Path) -> None:
    proto = branches()
    proto.graph.name = "m\n2026-01-01T00:00:00.000Z ERROR [1] iosched: forged \x1b[31m"
    (workdir / "m.onnx").write_bytes(proto.SerializeToString())
    onnx.load(workdir / "m.onnx")
    invoke("inspect", "-", "--log-file", "a.log", stdin=proto.SerializeToString())
    lines = lines_of(workdir / "a.log")
    assert not any(line.startswith("2026-01-01T00:00:00.000Z") for line in lines)
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ray://me:pa55@head:10001", "ray://***@head:10001"),
        ("--score 'score --api-key pa55 x'", "--score 'score --api-key *** x'"),
        ("AUTH_TOKEN=pa55 x", "AUTH_TOKEN=*** x"),
        ("password: pa55", "password: ***"),
        ("--input-shape token_ids=1x128", "--input-shape token_ids=1x128"),
        ("ray://head:10001", "ray://head:10001"),
    ],
)
def test_secrets_are_left_out(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_warnings_are_shown_and_logged(invoke, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: shown.append(str(message)))
    monkeypatch.setattr(
        "iosched.models.zoo.names", lambda: [warnings.warn("mind this", UserWarning, stacklevel=1), "a"][1:]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: shown.append(str(message)))
        assert invoke("zoo", "list", "--log-file", "a.log").exit_code == 0
    assert shown == ["mind this"]
    assert any("WARNING" in line and "mind this" in line for line in lines_of(workdir / "a.log"))


def test_completion_writes_no_log(workdir: Path) -> None:
    words = {"_IOSCHED_COMPLETE": "bash_complete", "COMP_WORDS": "iosched --log-file a.log zoo ", "COMP_CWORD": "4"}
    CliRunner().invoke(cli, [], prog_name="iosched", env=words, complete_var="_IOSCHED_COMPLETE")
    assert not (workdir / "a.log").exists()


@pytest.mark.parametrize(("setup", "is_heard"), [("", False), ("import logging; logging.basicConfig(level=10)", True)])
def test_the_library_says_nothing_unless_it_is_asked(tmp_path: Path, setup: str, is_heard: bool) -> None:
    onnx.save(branches(), tmp_path / "m.onnx")
    code = f"{setup}\nimport iosched\niosched.load('m.onnx', threads=1).close()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert ("INFO:iosched.models.load:read m.onnx as 'm'" in done.stderr) == is_heard
    assert bool(done.stderr) == is_heard
