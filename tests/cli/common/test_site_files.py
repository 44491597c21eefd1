"""`iosched.toml`, `[tool.iosched]` in `pyproject.toml`, and a user's own `config.toml`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from iosched.cli.common.site_settings import ANYWHERE, KEYS, nearest, setting, user_file
from iosched.models.errors import UsageError


@pytest.fixture
def own(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes the user's own settings."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(workdir.parent / "config"))

    def write(text: str) -> Path:
        path = user_file()
        path.parent.mkdir(parents=True)
        path.write_text(text)
        return path

    return write


def test_without_files_nothing_is_set(workdir: Path) -> None:
    assert [setting(key) for key in KEYS] == [None] * 4


def test_a_file_of_the_working_folder_sets_options(invoke, model: Path) -> None:
    Path("iosched.toml").write_text('device = "v100"\nthreads = 2\n')
    assert json.loads(invoke("optimize", model, "--dry-run", "--json").stdout)["device"]["kind"] == "cuda"
    found = json.loads(invoke("optimize", model, "--dry-run", "--device", "cpu", "--json").stdout)
    assert found["device"]["kind"] == "cpu"  # the command line comes first
    table = json.loads(invoke("rank", model, "--measure", "none", "--json").stdout)
    assert [row["device"] for row in table["rows"]] == ["v100"]  # rank takes several devices
    assert json.loads(invoke("matrix", model, "--json").stdout)["targets"][0]["device"] == "v100"  # needs a device


def test_the_environment_comes_before_files_and_an_empty_variable_does_not(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("iosched.toml").write_text('device = "v100"\n')
    for variable, kind in (("cpu", "cpu"), ("", "cuda")):
        monkeypatch.setenv("IOSCHED_DEVICE", variable)
        found = json.loads(invoke("optimize", model, "--dry-run", "--json").stdout)
        assert found["device"]["kind"] == kind


def test_the_nearest_folder_counts_and_prefers_iosched_toml(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = workdir / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    (workdir / "pyproject.toml").write_text("[tool.iosched]\nthreads = 1\n")
    assert setting("threads") == (1, workdir / "pyproject.toml")
    (workdir / "iosched.toml").write_text("threads = 2\n")
    assert setting("threads") == (2, workdir / "iosched.toml")
    (workdir / "a" / "pyproject.toml").write_text("[tool.iosched]\nthreads = 3\n")
    assert setting("threads") == (3, workdir / "a" / "pyproject.toml")
    (inner / "iosched.toml").write_text("")
    assert setting("threads") is None  # the nearest file counts, although it is empty


@pytest.mark.parametrize(
    "text",
    ["", "[project]\nname = 'iosched'\n", "[tool.ruff]\n", "not TOML at all", "tool = 3\n", "[iosched]\nthreads=1"],
)
def test_a_pyproject_without_the_table_is_passed_over(workdir: Path, text: str) -> None:
    (workdir / "pyproject.toml").write_text(text)
    assert nearest() is None


def test_the_users_own_file_comes_after_that_of_the_folder(own, workdir: Path) -> None:
    path = own('threads = 4\ndevice = "cpu"\ncluster = "local:2"\nprofile-db = "kept/p.sqlite"\n')
    Path("iosched.toml").write_text("threads = 2\n")
    assert setting("threads") == (2, workdir / "iosched.toml")
    assert setting("device") == ("cpu", path)
    assert setting("cluster") == ("local:2", path)


def test_a_profile_database_path_is_relative_to_its_settings_file(own, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own('profile-db = "kept/p.sqlite"\n')
    assert setting("profile-db") == (str(path.parent / "kept" / "p.sqlite"), path)
    monkeypatch.setenv("HOME", "/home/somebody")
    path.write_text('profile-db = "~/p.sqlite"\n')
    assert setting("profile-db") == ("/home/somebody/p.sqlite", path)
    path.write_text('profile-db = ":memory:"\n')
    assert setting("profile-db") == (":memory:", path)


def test_the_users_own_database_is_opened(own, invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own('profile-db = "p.sqlite"\n')
    monkeypatch.delenv("IOSCHED_PROFILE_DB")
    assert json.loads(invoke("profile", "stats", "--json").stdout)["path"] == str(path.parent / "p.sqlite")


@pytest.mark.parametrize("name", ["iosched.toml", "pyproject.toml"])
@pytest.mark.parametrize("line", ['profile-db = "mine.sqlite"', 'cluster = "ray://elsewhere:10001"'])
def test_a_folder_may_set_neither_cluster_nor_database(
    invoke, model: Path, complains, name: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IOSCHED_PROFILE_DB")
    Path(name).write_text(f"[tool.iosched]\n{line}\n" if name == "pyproject.toml" else f"{line}\n")
    before = sorted(Path.cwd().iterdir())
    for words in (("optimize", model), ("rank", model), ("profile", "stats")):
        if words[0] != "profile" or "profile-db" in line:
            complains(invoke(*words), 2, name, "because anyone could have put it there", str(user_file()))
    assert sorted(Path.cwd().iterdir()) == before


def test_folders_may_set_only_device_and_threads() -> None:
    assert set(ANYWHERE) == {"device", "threads"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("thread = 2", "unknown setting 'thread': did you mean threads?"),
        ("output = 'x'", "unknown setting 'output': remove it; the settings are device, threads"),
        ("threads = '2'", "threads must be an integer, not '2'"),
        ("threads = true", "threads must be an integer, not True"),
        ("device = 3", "device must be a quoted string, not 3"),
        ("device = ''", "device must be a quoted string"),
        ("device = ['cpu', 'v100']", "device must be a quoted string"),
        ("device = cpu", "is not valid TOML"),
        ("device = '\udcff'", "is not valid TOML"),
        ("a = " + "[" * 100_000, "is not valid TOML: nested too deeply"),
        ("#" * (2**20 + 1), "is larger than"),
    ],
    ids=range(11),
)
def test_an_invalid_setting_is_refused_with_its_file_and_the_reason(
    invoke, model: Path, complains, text: str, says: str
) -> None:
    Path("iosched.toml").write_bytes(text.encode(errors="surrogateescape"))
    complains(invoke("optimize", model), 2, str(Path.cwd() / "iosched.toml"), says)


def test_a_value_in_place_of_the_table_is_refused(workdir: Path) -> None:
    (workdir / "pyproject.toml").write_text("[tool]\niosched = 3\n")
    with pytest.raises(UsageError, match="is not a table"):
        nearest()


@pytest.mark.parametrize(
    ("text", "words", "code", "says"),
    [
        ("threads = 0", "run branches.onnx", 2, "'--threads' (from {file})"),
        ('device = "v1000"', "optimize branches.onnx", 2, "(--device v1000 comes from {file})"),
        ('device = "v100"', "run branches.onnx", 3, "(--device v100 comes from {file})"),
    ],
)
def test_a_wrong_value_names_its_file(invoke, model: Path, text: str, words: str, code: int, says: str) -> None:
    Path("iosched.toml").write_text(text)
    found = invoke(*words.split())
    assert (found.exit_code, found.stdout) == (code, "")
    assert says.format(file=Path.cwd() / "iosched.toml") in found.stderr


def test_a_file_is_read_only_if_a_setting_is_needed(invoke, model: Path) -> None:
    Path("iosched.toml").write_text("nonsense")
    assert invoke("zoo", "list").exit_code == 0
    assert invoke("inspect", model).exit_code == 0
    assert invoke("optimize", "--help").exit_code == 0
    assert invoke("run", model).exit_code == 2
    assert invoke("run", model, "--device", "cpu", "--threads", 1).exit_code == 0


def test_settings_files_that_are_not_regular_files_are_ignored(workdir: Path) -> None:
    os.mkfifo("iosched.toml")
    Path("pyproject.toml").mkdir()
    assert nearest() is None
    Path("iosched.toml").unlink()
    Path("iosched.toml").symlink_to("/dev/zero")
    assert nearest() is None


def test_folders_that_may_not_be_searched_are_passed_over(own, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the home of root, in a container that another user runs."""
    locked = own('device = "v100"\n').parents[1]
    stat = Path.stat

    def searched(path: Path, **words: bool) -> os.stat_result:
        if locked in path.parents or workdir in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **words)

    monkeypatch.setattr(Path, "stat", searched)
    assert setting("device") is None


def test_a_working_folder_that_is_gone_has_no_settings(workdir: Path) -> None:
    workdir.rmdir()
    assert nearest() is None


def test_the_dry_run_passes_over_the_cluster_of_a_file(own, invoke, model: Path) -> None:
    path = own('cluster = "h:1"\n')
    found = invoke("optimize", model, "--dry-run", "--json")
    assert found.exit_code == 0, found.stderr
    assert f"the cluster from {path} is passed over" in found.stderr
