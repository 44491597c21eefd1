"""Injects the faults of mutations.toml into a tree, one after another, and reports which its tests catch.

    python tests/golden/mutate.py TREE [--only NAME]

TREE has a `.venv` with iosched installed from it; it is copied and not changed. A fault is found by its text, wherever
in the product that is. Exit code 1: a fault is not caught, or its text is not in exactly one place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from argparse import ArgumentParser
from pathlib import Path

PRODUCT = ("api", "cli", "jobs", "models", "profiler", "runtime", "scheduler")
CAUGHT = "caught"


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("--only", default="", help="faults whose name contains this")
    options = parser.parse_args()
    tree = options.tree.resolve()
    listed = tomllib.loads(Path(__file__).with_name("mutations.toml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        copy = copied(tree, Path(name) / "tree")
        outcomes = []
        for fault, entry in listed.items():
            if options.only in fault:
                outcomes.append(outcome(tree, copy, entry))
                print(f"{outcomes[-1]:<16}{fault}", flush=True)
    sys.exit(any(each != CAUGHT for each in outcomes))


def copied(tree: Path, copy: Path) -> Path:
    """What git tracks, the compiled executor, and the folder of links in which it is the package `iosched`."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=tree, check=True, capture_output=True, text=True).stdout
    for name in (*names.split("\0"), "runtime/cpu/_executor.so"):
        if name and (tree / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tree / name, copy / name)
    subprocess.run(["sh", ".ci/link-tree"], cwd=copy, check=True)
    return copy


def outcome(tree: Path, copy: Path, entry: dict[str, str]) -> str:
    """The outcome of one fault."""
    paths = [path for folder in PRODUCT for path in (copy / folder).rglob("*.py")]
    having = [path for path in paths if entry["text"] in path.read_text(encoding="utf-8")]
    if len(having) != 1 or having[0].read_text(encoding="utf-8").count(entry["text"]) != 1:
        return f"in {len(having)} files"
    (path,) = having
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(entry["text"], entry["with"]), encoding="utf-8")
    try:
        code = pytest(tree, copy, entry["tests"])
    finally:
        path.write_text(before, encoding="utf-8")
    return {0: "survived", 1: CAUGHT}.get(code, f"exit code {code}")


def pytest(tree: Path, copy: Path, tests: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(copy / "build" / "lint"), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [
        tree / ".venv/bin/python",
        "-m",
        "pytest",
        "-x",
        "-q",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        *tests.split(),
    ]
    return subprocess.run(words, cwd=copy, env=environment, capture_output=True, check=False).returncode


if __name__ == "__main__":
    main()
