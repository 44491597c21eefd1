"""Completion in a real zsh and a real fish with their scripts; skipped if they are not installed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

FISH, ZSH = shutil.which("fish"), shutil.which("zsh")
WAIT_S = 60.0
# The words typed, and the last word after its only completion.
COMPLETED = [
    ("opti", "optimize"),
    ("optimize --devi", "--device"),
    ("optimize model.onnx --device ti", "titanxp"),
    ("optimize model.onnx --device=ti", "--device=titanxp"),
    ("matrix model.onnx --device v100,ti", "v100,titanxp"),
    ("inspect zoo:sq", "zoo:squeezenet"),
    ("inspect mo", "model.onnx"),
    ("optimize model.onnx --output=fo", "--output=folder/"),
    ("completion fi", "fish"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with a model, a folder, and the command `iosched` in `bin`."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "model.onnx").touch()
    program = tmp_path / "bin" / "iosched"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m iosched "$@"\n')
    program.chmod(0o755)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "HOME": str(folder), "TERM": "xterm", "LC_ALL": "C.UTF-8"}


@pytest.mark.skipif(FISH is None, reason="fish is not installed")
def test_fish_completes_with_the_script(folder: Path) -> None:
    asked = "\n".join(f"complete -C 'iosched {words}'; echo ." for words, _ in COMPLETED)
    assert FISH is not None
    done = subprocess.run(
        [FISH, "--no-config", "-c", f"iosched completion fish | source\n{asked}"],
        cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=WAIT_S,
    )  # fmt: skip
    assert done.stderr == ""
    answers = [[line.partition("\t")[0] for line in part.split("\n") if line] for part in done.stdout.split("\n.\n")]
    assert answers[: len(COMPLETED)] == [[expected] for _, expected in COMPLETED]


@pytest.fixture
def zsh(folder: Path) -> Iterator[int]:
    """The terminal of an interactive zsh with the script; Ctrl-T writes the command line into the file `typed`."""
    (folder / "rc").write_text(
        'autoload -U compinit; compinit -u -D; eval "$(iosched completion zsh)"\n'
        'show() { print -r -- "$BUFFER" > new; mv new typed; BUFFER= }\n'
        "zle -N show; bindkey '^T' show; bindkey '^I' complete-word; touch ready\n"
    )
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execvpe("zsh", ["zsh", "-f", "-i"], environment(folder))
    try:
        os.write(terminal, b"source ./rc\n")
        take_text(folder / "ready", terminal)
        yield terminal
    finally:
        os.close(terminal)  # hangs up, and zsh ends
        os.waitpid(process, 0)


@pytest.mark.skipif(ZSH is None, reason="zsh is not installed")
def test_zsh_completes_with_the_script(zsh: int, folder: Path) -> None:
    found = []
    for words, _ in COMPLETED:
        os.write(zsh, f"iosched {words}\t\x14".encode())
        found.append(take_text(folder / "typed", zsh).split()[-1])
    assert found == [expected for _, expected in COMPLETED]


def take_text(file: Path, terminal: int) -> str:
    """Waits for the file while reading the terminal; returns its text and deletes it."""
    end = time.monotonic() + WAIT_S
    while not file.exists():
        assert time.monotonic() < end, f"zsh did not write {file.name}"
        if select.select([terminal], [], [], 0.02)[0]:
            with suppress(OSError):
                os.read(terminal, 65536)
    text = file.read_text()
    file.unlink()
    return text
