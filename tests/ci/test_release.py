"""Trees that `.ci/release.py` refuses to release, and the files that it writes."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

TOP = Path(__file__).parents[2]
LOG = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- Something.\n\n## [0.1.0] - 2026-01-02\n\n- All.\n"
PROJECT = '[project]\nname = "iosched"\nversion = "0.1.0"\n\n[tool.mypy]\nversion = "0.1.0"\n'


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", TOP / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of version 0.1.0, with nothing changed."""
    (tmp_path / "CHANGELOG.md").write_text(LOG)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "All"]):
        git(tmp_path, *words)
    return tmp_path


def git(tree: Path, *words: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=tree, check=True, capture_output=True)


def test_a_clean_tree_with_a_section_for_its_version_is_released(release: ModuleType, tree: Path) -> None:
    assert release.check(tree) == "0.1.0"
    git(tree, "tag", "v0.1.0")
    assert release.check(tree) == "0.1.0"


@pytest.mark.parametrize("file", ["CHANGELOG.md", "new.py"])
def test_uncommitted_changes_are_refused(release: ModuleType, tree: Path, file: str) -> None:
    (tree / file).write_text("new\n")
    with pytest.raises(release.RefusedError, match=rf"not clean:\n.*{file}"):
        release.check(tree)


@pytest.mark.parametrize(
    "log",
    [
        LOG.replace("## [0.1.0] - 2026-01-02", "## [0.0.9] - 2026-01-02"),
        LOG.replace("## [0.1.0] - 2026-01-02", "## [0.1.0]"),
        LOG.replace("- All.\n", "\n## [0.0.9] - 2025-01-02\n\n- Less.\n"),
    ],
    ids=["of another version", "not dated", "empty"],
)
def test_the_changelog_must_have_a_dated_section_for_the_version(release: ModuleType, tree: Path, log: str) -> None:
    (tree / "CHANGELOG.md").write_text(log)
    git(tree, "commit", "-qam", "Change the log")
    with pytest.raises(release.RefusedError, match=r"no dated section \[0.1.0\]"):
        release.check(tree)


def test_a_version_is_released_only_once(release: ModuleType, tree: Path) -> None:
    git(tree, "tag", "v0.1.0")
    git(tree, "commit", "-q", "--allow-empty", "-m", "More")
    with pytest.raises(release.RefusedError, match=r"v0\.1\.0 is another commit"):
        release.check(tree)


def test_a_bump_replaces_the_version_in_pyproject_and_dates_the_unreleased_changes(
    release: ModuleType, tree: Path
) -> None:
    release.bump(tree, "0.2.0", "2026-03-04")
    assert (tree / "pyproject.toml").read_text() == PROJECT.replace('"0.1.0"', '"0.2.0"', 1)
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-03-04\n\n### Added\n" in (tree / "CHANGELOG.md").read_text()
    git(tree, "commit", "-qam", "Release 0.2.0")
    assert release.check(tree) == "0.2.0"


@pytest.mark.parametrize(("version", "why"), [("2", "no version"), ("v0.2.0", "no version"), ("0.1.0", "already")])
def test_an_invalid_or_already_released_version_is_refused(
    release: ModuleType, tree: Path, version: str, why: str
) -> None:
    with pytest.raises(release.RefusedError, match=why):
        release.bump(tree, version, "2026-03-04")
    assert (tree / "CHANGELOG.md").read_text() == LOG


def test_an_unexpected_spelling_of_the_version_is_refused(release: ModuleType, tree: Path) -> None:
    project = PROJECT.replace('version = "0.1.0"', "version = '0.1.0'", 1)
    (tree / "pyproject.toml").write_text(project)
    with pytest.raises(release.RefusedError, match=r'does not say  version = "0\.1\.0"'):
        release.bump(tree, "0.2.0", "2026-03-04")
    assert (tree / "pyproject.toml").read_text() == project
    assert (tree / "CHANGELOG.md").read_text() == LOG


def test_this_repository_has_its_version_in_one_place(release: ModuleType) -> None:
    version = release.version_in(TOP)
    assert (TOP / "pyproject.toml").read_text().count(f'\nversion = "{version}"\n') == 1
    assert "## [Unreleased]\n" in (TOP / "CHANGELOG.md").read_text()


def test_an_sdist_does_not_depend_on_its_builder_or_build_time(release: ModuleType, tmp_path: Path) -> None:
    first, second = (
        packed(tmp_path / "1.tar.gz", ["a/b", "a/c"], 1, "ann"),
        packed(tmp_path / "2.tar.gz", ["a/c", "a/b"], 2, "bob"),
    )
    assert first.read_bytes() != second.read_bytes()
    for each in (first, second):
        release.normalize(each, 1_000_000_000)
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        assert [(each.name, each.mtime, each.uname) for each in archive] == [
            (name, 1_000_000_000, "") for name in ("a/b", "a/c")
        ]


def packed(path: Path, names: list[str], stamp: int, owner: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.uid = len(name), stamp, owner, stamp
            archive.addfile(member, io.BytesIO(name.encode()))
    return path
