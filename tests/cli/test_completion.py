"""Completion in the shell, as click asks for it, and in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, ShellComplete

from iosched.cli.common.complete import VARIABLE, joined, with_option
from iosched.cli.main import COMMANDS, cli
from iosched.models import zoo
from iosched.profiler.devices.gpus import gpu_keys

ZOO = [f"zoo:{name}" for name in zoo.names()]
ATTACHED = ["auto", "cpu", "cuda"]
BASH = shutil.which("bash")


def offered(*words: str) -> list[str]:
    """The completions of the last word; `file:` where the shell completes file names."""
    found = ShellComplete(cli, {}, "iosched", VARIABLE).get_completions(list(words[:-1]), words[-1])
    return [item.value if item.type == "plain" else f"{item.type}:" for item in found]


def test_commands_and_options_are_offered() -> None:
    assert set(COMMANDS) <= set(offered(""))
    assert offered("opti") == ["optimize"]
    assert offered("optimize", "--dev") == ["--device"]
    assert "both" in offered("optimize", "--strategy", "")
    assert offered("completion", "") == ["bash", "zsh", "fish"]


def test_a_model_is_a_file_or_a_network_of_the_zoo(workdir: Path) -> None:
    (workdir / "zebra.onnx").touch()
    (workdir / "zoo.onnx").touch()
    for command in ("optimize", "run", "rank", "batch", "explore"):
        assert offered(command, "") == offered(command, "mod") == ["file:"]
        assert offered(command, "zoo:") == ZOO
        assert offered(command, "zoo:res") == ["zoo:resnet50"]
        assert offered(command, "zo") == [*ZOO, "zoo.onnx"]
        assert offered(command, "ze") == ["file:"]
    assert offered("rank", "a.onnx", "zoo:res") == ["zoo:resnet50"]
    assert offered("zoo", "export", "res") == ["resnet50"]


def test_a_working_folder_that_is_gone_offers_networks(workdir: Path) -> None:
    workdir.rmdir()
    assert offered("optimize", "zoo:res") == ["zoo:resnet50"]


def test_run_offers_attached_devices_and_optimize_also_simulated_ones() -> None:
    assert offered("run", "m.onnx", "--device", "") == offered("bench", "m.onnx", "--device", "") == ATTACHED
    assert offered("optimize", "--device", "") == [*ATTACHED, *gpu_keys()]
    assert offered("optimize", "--device", "h1") == ["h100"]


def test_the_last_of_several_devices_is_completed() -> None:
    assert offered("rank", "--device", "cpu,h1") == ["cpu,h100"]
    assert offered("matrix", "m.onnx", "--device", "v100,k") == ["v100,k80"]


@pytest.mark.parametrize(
    "words", ["show", "explain", "run m.onnx --schedule", "optimize m.onnx -o", "profile import", "profile export"]
)
def test_files_are_offered_where_a_file_is_taken(words: str) -> None:
    assert offered(*words.split(), "x") == ["file:"]


def test_words_are_completed_despite_an_invalid_settings_file_and_variable(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workdir / "iosched.toml").write_text("nonsense")
    monkeypatch.setenv("IOSCHED_THREADS", "many")
    assert offered("optimize", "zoo:res") == ["zoo:resnet50"]


@pytest.mark.parametrize("words", ["", "optimize --", "run m.onnx --device ", "rank zoo:s", "explore --"])
def test_completion_imports_nothing_heavy(words: str) -> None:
    code = (
        "import sys, iosched.cli.main as m\n"
        "try: m.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'openvino', 'rich', 'cupy', 'ray'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    asked = {VARIABLE: "bash_complete", "COMP_WORDS": f"iosched {words}", "COMP_CWORD": str(1 + words.count(" "))}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
    assert done.stdout.strip()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell_asks_iosched(invoke, shell: str) -> None:
    found = invoke("completion", shell)
    assert found.exit_code == 0
    assert f"{VARIABLE}={shell}_complete" in found.stdout
    assert "iosched" in found.stdout


def test_other_shells_are_refused(invoke) -> None:
    found = invoke("completion", "tcsh")
    assert found.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in found.stderr


def test_words_that_bash_divides_at_colons_are_joined() -> None:
    assert joined(["run", "zoo", ":", "sq"]) == ["run", "zoo:sq"]
    assert joined(["run", "zoo", ":"]) == ["run", "zoo:"]
    assert joined(["run", "--device", "cuda", ":", "1", ""]) == ["run", "--device", "cuda:1", ""]
    assert joined(["run", ""]) == ["run", ""]


def test_an_equals_sign_that_bash_divides_off_an_option_is_left_out() -> None:
    assert joined(["run", "--device", "=", "cu"]) == ["run", "--device", "cu"]
    assert joined(["run", "--input", "x", "=", "f"]) == ["run", "--input", "x", "=", "f"]


def test_a_shell_that_replaces_whole_words_keeps_the_option_before_the_equals_sign(workdir: Path) -> None:
    (workdir / "model.onnx").touch()
    (workdir / "models").mkdir()
    plain, file = [CompletionItem("v100")], [CompletionItem("mo", type="file")]
    assert [item.value for item in with_option("--device=v", plain)] == ["--device=v100"]
    assert [item.value for item in with_option("--output=mo", file)] == ["--output=model.onnx", "--output=models/"]
    assert [item.value for item in with_option("--output=models/", file)] == []
    assert with_option("x=mo", file) == file


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["iosched", "opti"], ["optimize"]),
        (["iosched", "run", "zoo", ":", "sq"], ["squeezenet"]),
        (["iosched", "run", "zoo", ":"], list(zoo.names())),
        (["iosched", "optimize", "m.onnx", "--device", "h1"], ["h100"]),
        (["iosched", "optimize", "--device", "=", "v100p"], ["v100pcie"]),
        (["iosched", "run", "--device", "="], ATTACHED),
        (["iosched", "run", "zoo", ":", "vgg16", "--check-"], ["--check-schedule"]),
    ],
)
def test_bash_completes_with_the_script(tmp_path: Path, words: list[str], expected: list[str]) -> None:
    """Like readline, calls the function that the script registers, with words split at colons."""
    program = tmp_path / "iosched"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m iosched "$@"\n')
    program.chmod(0o755)
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        'eval "$(iosched completion bash)" || exit 9\n'
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
        "function=$(complete -p iosched | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n"
        '"$function" iosched\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    assert BASH is not None
    done = subprocess.run([BASH, "--norc", "-c", script], env=environment, capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (expected, "")
