"""The frame of the command line: quick to start, complete help, one place for errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import onnx
import pytest
from click.testing import CliRunner
from shipped import document

from iosched.cli.common.errors import message_of
from iosched.cli.main import COMMANDS, cli
from iosched.cli.reference import commands
from iosched.models import errors
from iosched.models.load import load_model
from iosched.models.zoo.light import light_model
from iosched.runtime.cuda.gpu.extras import query_driver

ALL = list(commands(cli, click.Context(cli, info_name="iosched")))
IDS = [path for path, _, _ in ALL]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, iosched, iosched.cli.main as m\n"
        "try: m.cli(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'rich', 'sqlite3', 'cupy', 'http'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "optimize" in done.stdout
    assert done.stderr.strip() == "[]"


def test_help_of_every_command_imports_nothing_heavy() -> None:
    code = (
        "import sys, iosched.cli.reference as r\n"
        "r.pages()\n"
        "print(sorted({'numpy', 'onnx', 'onnxruntime', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("device", [(), pytest.param(("--device", "cpu"), marks=pytest.mark.slow)], ids=" ".join)
def test_a_run_on_a_cpu_imports_nothing_of_other_devices_and_jobs(tmp_path: Path, device: tuple[str, ...]) -> None:
    onnx.save(light_model("squeezenet"), tmp_path / "m.onnx")
    (tmp_path / "s.json").write_text(document(load_model(tmp_path / "m.onnx")).to_json())
    words = ("run", tmp_path / "m.onnx", "--threads", "2", "-q", *device)
    plain, scheduled = imported(*words), imported(*words, "--schedule", tmp_path / "s.json")
    others = ("cuda", "analytic", "batching", "exploring", "pool", "spaces", "mutation", "store", "bisect_mismatch")
    for modules in (plain, scheduled):
        assert {name for name in modules if not set(name.split(".")).isdisjoint(others)} == set()
    assert "iosched.runtime.cpu.native" in scheduled - plain
    assert len(plain) <= 113
    assert len(scheduled) <= 172


def test_optimize_imports_nothing_of_gpus_where_there_is_none(tmp_path: Path) -> None:
    if query_driver().gpus:
        pytest.skip("this machine has a GPU")
    onnx.save(light_model("squeezenet"), tmp_path / "m.onnx")
    outputs = ("-o", tmp_path / "o.onnx", "--schedule", tmp_path / "o.json")
    modules = imported("optimize", tmp_path / "m.onnx", "--budget", "1", "-q", *outputs)
    kinds = ("iosched.profiler.devices.cuda", "iosched.profiler.devices.analytic", "iosched.runtime.cuda.execute")
    assert {name for name in modules if name.startswith(kinds)} == set()


def imported(*words: str | Path) -> set[str]:
    """The modules of iosched that a command imports."""
    code = (
        "import sys, iosched.cli.main as m\n"
        "try: m.main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print(*(name for name in sys.modules if name.startswith('iosched.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines()[-1].split())


def test_python_m_iosched_is_the_same_command() -> None:
    assert subprocess.check_output([sys.executable, "-m", "iosched", "--version"], text=True).startswith("iosched 0.")


def test_commands_are_listed_in_the_order_of_the_registry() -> None:
    assert cli.list_commands(click.Context(cli)) == list(COMMANDS)


@pytest.mark.parametrize(("path", "command"), [(path, command) for path, command, _ in ALL], ids=IDS)
def test_every_command_and_option_has_help(path: str, command: click.Command) -> None:
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.opts[0]}"


@pytest.mark.parametrize("path", IDS)
def test_every_command_refuses_an_unknown_option(path: str) -> None:
    result = CliRunner().invoke(cli, [*path.split()[1:], "--no-such-option"])
    assert result.exit_code == 2
    assert "--no-such-option" in result.stderr
    assert len(result.stderr.splitlines()) <= 5
    assert result.stdout == ""


def test_an_unknown_command_names_the_closest() -> None:
    result = CliRunner().invoke(cli, ["optimise"])
    assert result.exit_code == 2
    assert "Did you mean 'optimize'?" in result.stderr


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> click.testing.Result:
    """Runs `iosched devices` with a body that raises."""

    def run(error: BaseException, *words: str) -> click.testing.Result:
        def fail() -> None:
            raise error

        monkeypatch.setattr("iosched.profiler.devices.resolve.device_facts", fail)
        return CliRunner().invoke(cli, [*words, "devices"])

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("say why"), 2),
        (errors.InvalidModelError("say why"), 2),
        (errors.InvalidScheduleError("say why"), 2),
        (errors.DeviceError("say why"), 3),
        (errors.MismatchError("say why"), 4),
        (errors.ExecutionError("say why"), 1),
        (errors.IoschedError("say why"), 1),
        (OSError(28, "say why", "/a/file"), 1),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_has_its_exit_code(failing, error: BaseException, code: int) -> None:
    result = failing(error)
    assert result.exit_code == code
    if not isinstance(error, KeyboardInterrupt | BrokenPipeError):
        assert "say why" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unexpected_error_is_one_line_that_names_debug(failing) -> None:
    result = failing(ZeroDivisionError("a\nb"))
    assert result.exit_code == 1
    assert "internal error" in result.stderr
    assert "--debug" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("error", [ZeroDivisionError("a"), errors.UsageError("a")])
def test_debug_shows_the_traceback(failing, error: Exception) -> None:
    assert "Traceback" in failing(error, "--debug").stderr


def test_debug_may_follow_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iosched.profiler.devices.resolve.device_facts", lambda: 1 // 0)
    assert "Traceback" in CliRunner().invoke(cli, ["devices", "--debug"]).stderr


def test_a_long_message_is_cut_to_five_lines(failing) -> None:
    result = failing(errors.UsageError("\n".join(["x" * 10_000] * 50)))
    lines = result.stderr.splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) < 500


def test_names_cannot_send_escape_codes_to_the_terminal(failing) -> None:
    assert message_of(errors.UsageError("\x1b[2J\x9b evil")) == "�[2J� evil"
    assert "\x07" not in failing(errors.UsageError("\x07")).stderr


@pytest.mark.parametrize(
    "arguments", [pytest.param(["devices", "--json"], marks=pytest.mark.slow), ["devices"], ["--help"]], ids=" ".join
)
def test_a_full_disk_behind_stdout_is_an_error(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run([sys.executable, "-m", "iosched", *arguments], stdout=full, stderr=-1, text=True)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["all at once", "write by write"])
@pytest.mark.parametrize(
    "arguments", [pytest.param(["devices", "--json"], marks=pytest.mark.slow), ["devices"], ["--help"]], ids=" ".join
)
def test_a_closed_pipe_ends_silently_with_141(arguments: list[str], unbuffered: str) -> None:
    """Whether stdout fails at the first write or only at a later flush, possibly the last one."""
    process = subprocess.Popen(
        [sys.executable, "-m", "iosched", *arguments],
        stdout=-1,
        stderr=-1,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() == 141
