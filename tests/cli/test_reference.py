"""Adding a command as CONTRIBUTING.md describes it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ADDED = """
import click


@click.command(name="hello", short_help="Greet NAME.")
@click.argument("name", metavar="NAME")
def command(name: str) -> None:
    \"\"\"Greet NAME on stdout.\"\"\"
    click.echo(f"hello {name}")
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The parts of the repository that a command needs, in a folder that the test may change."""
    for name in ("api", "jobs", "models", "profiler", "runtime", "scheduler"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "cli", tmp_path / "cli", ignore=shutil.ignore_patterns("__pycache__"))
    for name in (".ci/link-tree", "pyproject.toml", "mkdocs.yml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run(["sh", ".ci/link-tree"], cwd=tmp_path, check=True)
    (tmp_path / "docs").mkdir()
    return tmp_path


def _python(clone: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(clone / "build" / "lint"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=clone, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def _insert_after(path: Path, line: str, added: str) -> None:
    text = path.read_text()
    assert text.count(line) == 1
    path.write_text(text.replace(line, line + added))


def test_a_command_is_a_file_a_registry_line_and_its_place_in_the_navigation(clone: Path) -> None:
    row = next(line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("| a command |"))
    assert re.findall(r"`([^`]+\.\w+)`", row) == ["cli/NAME.py", "cli/main.py", "mkdocs.yml"]

    (clone / "cli" / "hello.py").write_text(ADDED)
    _insert_after(clone / "cli" / "main.py", "COMMANDS = {\n", '    "hello": "getting-started.md",\n')
    _insert_after(clone / "mkdocs.yml", "          - cli/README.md\n", "          - hello: cli/hello.md\n")
    _python(clone, "-m", "iosched.cli.reference")

    pages = {path.name: path.read_text() for path in (clone / "docs" / "cli").iterdir()}
    assert pages["hello.md"].startswith("# iosched hello\n\n```text\niosched hello [OPTIONS] NAME\n")
    assert pages["hello.md"].endswith("More in [a guide](../getting-started.md).\n")
    assert "| [iosched hello](hello.md) | Greet NAME. |" in pages["README.md"]
    navigation = yaml.safe_dump(yaml.safe_load((clone / "mkdocs.yml").read_text())["nav"])
    assert all(f"cli/{name}" in navigation for name in pages)
    assert _python(clone, "-m", "iosched", "hello", "you") == "hello you\n"
