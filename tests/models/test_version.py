"""The commit that iosched was installed from, or is checked out where it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from iosched.models.version import commit_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def clone(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    "files",
    [
        {".git/HEAD": f"{COMMIT}\n"},
        {".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": f"{COMMIT}\n"},
        {".git/HEAD": "ref: refs/heads/main\n", ".git/packed-refs": f"# pack-refs\n{COMMIT} refs/heads/main\n"},
        {
            ".git": "gitdir: main.git/worktrees/w\n", "main.git/worktrees/w/HEAD": "ref: refs/heads/b\n",
            "main.git/worktrees/w/commondir": "../..\n", "main.git/refs/heads/b": f"{COMMIT}\n",
        },
    ],
    ids=["detached", "branch", "packed", "worktree"],
)  # fmt: skip
def test_the_commit_of_a_clone_is_known(tmp_path: Path, files: dict[str, str]) -> None:
    assert commit_of(clone(tmp_path, files)) == COMMIT


@pytest.mark.parametrize(
    "files",
    [{}, {".git/HEAD": "ref: refs/heads/none\n"}, {".git/HEAD": "nonsense\n"}, {".git": "gitdir: gone\n"}],
    ids=["none", "unborn", "damaged", "moved"],
)
def test_other_folders_have_no_commit(tmp_path: Path, files: dict[str, str]) -> None:
    assert commit_of(clone(tmp_path, files)) is None
