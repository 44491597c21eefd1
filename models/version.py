"""The version of the installed iosched, for files and profile databases."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40,64}")


def iosched_version() -> str:
    """The version in pip's notation ("0.1.0")."""
    return version("iosched")


def iosched_commit() -> str | None:
    """The git commit of the installation or clone, without uncommitted changes; None if unknown."""
    return _installed_from() or commit_of(Path(__file__).resolve().parents[1])


def _installed_from() -> str | None:
    """The commit that pip recorded for `pip install git+https://...`."""
    try:
        text = distribution("iosched").read_text("direct_url.json")
        found = json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
    except (PackageNotFoundError, ValueError, AttributeError):
        return None
    return _commit_in(str(found))


def commit_of(clone: Path) -> str | None:
    """The commit that is checked out in a clone or worktree; None for other folders."""
    try:
        git = clone / ".git"
        if git.is_file():  # a worktree: "gitdir: PATH"
            git = clone / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return _commit_in(head)
        branch = head.removeprefix("ref:").strip()
        common = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
        if (common / branch).is_file():
            return _commit_in((common / branch).read_text().strip())
        packed = (common / "packed-refs").read_text().splitlines()
        return next((_commit_in(line.split()[0]) for line in packed if line.endswith(f" {branch}")), None)
    except (OSError, UnicodeDecodeError):
        return None


def _commit_in(text: str) -> str | None:
    return text if _COMMIT.fullmatch(text) else None
