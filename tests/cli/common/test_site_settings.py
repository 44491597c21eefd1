"""`IOSCHED_DEVICE` and the other variables, which set an option for all calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import onnx
import pytest
from click.testing import CliRunner
from small_models import branches

from iosched.cli.common.options import any_device_options, cluster_option, devices_option, profile_db_option
from iosched.cli.main import cli
from iosched.cli.reference import commands
from iosched.profiler.devices import resolve
from iosched.profiler.store.errors import ENVIRONMENT_VARIABLE

VARIABLES = {"IOSCHED_DEVICE", "IOSCHED_THREADS", "IOSCHED_PROFILE_DB", "IOSCHED_CLUSTER"}


@click.command
@any_device_options
@profile_db_option
@cluster_option("There.")
def taken(**values: Any) -> None:
    click.echo(json.dumps(values, default=str))


@click.command
@devices_option(default=("auto",), text="Where.")
def several(devices: tuple[str, ...]) -> None:
    click.echo(json.dumps(devices))


def devices_of(*words: str, **environment: str) -> list[str]:
    devices: list[str] = json.loads(CliRunner().invoke(several, words, env=environment).stdout)
    return devices


def values_of(*words: str, **environment: str) -> dict[str, Any]:
    found = CliRunner().invoke(taken, words, env=environment)
    assert found.exit_code == 0, found.stderr
    values: dict[str, Any] = json.loads(found.stdout)
    return values


def test_the_environment_sets_options_missing_from_the_command_line() -> None:
    environment = {"IOSCHED_DEVICE": "v100", "IOSCHED_THREADS": "3", "IOSCHED_CLUSTER": "local:2"}
    set_ = values_of(**environment)
    assert set_ == {"device": "v100", "threads": 3, "cluster": "local:2", "profile_db": None}
    words = ("--device", "cpu", "--threads", "1", "--cluster", "auto", "--profile-db", "p.db")
    written = {"device": "cpu", "threads": 1, "cluster": "auto", "profile_db": "p.db"}
    assert values_of(*words, **environment) == values_of(*words) == written


def test_an_empty_variable_counts_as_not_set() -> None:
    assert values_of(**dict.fromkeys(VARIABLES, "")) == values_of()
    assert values_of() == {"device": "auto", "threads": None, "cluster": None, "profile_db": None}


def test_several_devices_are_separated_by_commas_where_several_are_taken() -> None:
    assert devices_of(IOSCHED_DEVICE="cpu, v100,cpu") == ["cpu", "v100"]
    assert devices_of("--device", "t4", IOSCHED_DEVICE="cpu") == ["t4"]
    assert devices_of() == ["auto"]


def test_none_is_no_cluster() -> None:
    assert values_of("--cluster", "none", IOSCHED_CLUSTER="auto")["cluster"] is None


def test_only_these_options_can_be_set_by_variables() -> None:
    found = {
        (param.envvar, param.opts[0].rstrip("s"))
        for _, command, _ in commands(cli, click.Context(cli, info_name="iosched"))
        for param in command.params
        if param.envvar is not None
    }
    assert found == {
        ("IOSCHED_DEVICE", "--device"),
        ("IOSCHED_THREADS", "--thread"),
        (ENVIRONMENT_VARIABLE, "--profile-db"),  # which the library reads itself
        ("IOSCHED_CLUSTER", "--cluster"),
    }


def test_the_guide_names_the_commands_that_read_a_variable() -> None:
    page = (Path(__file__).parents[3] / "docs" / "site-settings.md").read_text()
    for variable in VARIABLES - {"IOSCHED_PROFILE_DB"}:
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{variable}`"))
        reads = {
            command.name
            for _, command, _ in commands(cli, click.Context(cli, info_name="iosched"))
            if any(param.envvar == variable for param in command.params)
        }
        assert reads == {word.strip("` ") for word in row.split("|")[3].split(",")}


@pytest.mark.parametrize(
    ("variable", "value", "words", "code", "says"),
    [
        ("IOSCHED_DEVICE", "v1000", "optimize branches.onnx", 2, "(--device v1000 comes from IOSCHED_DEVICE)"),
        ("IOSCHED_DEVICE", "v1000", "rank branches.onnx", 2, "(--device v1000 comes from IOSCHED_DEVICE)"),
        ("IOSCHED_DEVICE", "v1000", "matrix branches.onnx", 2, "(--device v1000 comes from IOSCHED_DEVICE)"),
        ("IOSCHED_DEVICE", "cpu,v100", "bench branches.onnx", 2, "IOSCHED_DEVICE"),
        ("IOSCHED_DEVICE", "v100", "run branches.onnx", 3, "(--device v100 comes from IOSCHED_DEVICE)"),
        ("IOSCHED_DEVICE", "cuda:1", "run branches.onnx", 3, "(--device cuda:1 comes from IOSCHED_DEVICE)"),
        ("IOSCHED_THREADS", "many", "run branches.onnx", 2, "'--threads' (from IOSCHED_THREADS)"),
        ("IOSCHED_THREADS", "0", "bench branches.onnx", 2, "'--threads' (from IOSCHED_THREADS)"),
        ("IOSCHED_PROFILE_DB", ".", "profile stats", 2, "'--profile-db' (from IOSCHED_PROFILE_DB)"),
        ("IOSCHED_CLUSTER", "far", "optimize branches.onnx", 2, "(--cluster far comes from IOSCHED_CLUSTER)"),
        ("IOSCHED_CLUSTER", "far", "devices", 2, "(--cluster far comes from IOSCHED_CLUSTER)"),
        ("IOSCHED_CLUSTER", "127.0.0.1:1", "rank branches.onnx", 3, "(--cluster 127.0.0.1:1 comes"),
    ],
)  # fmt: skip
def test_an_error_about_the_value_of_a_variable_names_it(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str, code: int, says: str
) -> None:
    monkeypatch.setenv(variable, value)
    found = invoke(*words.split())
    assert (found.exit_code, found.stdout) == (code, ""), found.stderr
    assert says in found.stderr


def test_an_error_that_has_other_reasons_names_no_variable(invoke, complains, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSCHED_DEVICE", "cpu")
    monkeypatch.setenv("IOSCHED_THREADS", "2")
    assert "IOSCHED" not in complains(invoke("optimize", "missing.onnx"), 2, "missing.onnx")
    assert "IOSCHED" not in complains(invoke("optimize", "x.onnx", "--no-pruning", "-r", 2), 2, "contradict")
    assert "IOSCHED" not in invoke("optimize", "x.onnx", "--threads", 0).stderr


def test_a_device_on_the_command_line_comes_before_one_that_cannot_run(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IOSCHED_DEVICE", "v100")
    assert invoke("run", model, "--device", "auto").exit_code == 0


def test_matrix_takes_its_device_from_a_variable_that_its_error_names(
    invoke, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(branches(), "m.onnx")
    missing = invoke("matrix", "m.onnx")
    assert missing.exit_code == 2
    assert "IOSCHED_DEVICE" in missing.stderr
    monkeypatch.setenv("IOSCHED_DEVICE", "v100")
    found = json.loads(invoke("matrix", "m.onnx", "--json").stdout)
    assert [target["device"] for target in found["targets"]] == ["v100"]


def test_a_dry_run_ignores_the_cluster_of_the_environment_with_a_note(
    invoke, model: Path, complains, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IOSCHED_CLUSTER", "h:1")
    found = invoke("optimize", model, "--dry-run", "--json")
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["measurements"] > 0
    assert "the cluster from IOSCHED_CLUSTER is passed over" in found.stderr
    assert invoke("optimize", model, "--dry-run", "--cluster", "none").stderr == ""
    complains(invoke("optimize", model, "--dry-run", "--cluster", "h:1"), 2, "leave --cluster out")


def test_a_selftest_passes_over_the_cluster_of_the_environment(
    invoke, complains, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IOSCHED_CLUSTER", "h:1")
    found = invoke("devices", "--selftest", "--device", "v100")
    assert "the cluster from IOSCHED_CLUSTER is passed over" in found.stderr
    assert "no Ray cluster" not in found.stderr


def test_devices_lists_the_same_whatever_device_the_environment_names(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "device_facts", lambda: ())
    plain = invoke("devices").stdout
    monkeypatch.setenv("IOSCHED_DEVICE", "v1000")
    assert invoke("devices").stdout == plain


def test_the_database_of_the_environment_may_be_in_memory(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSCHED_PROFILE_DB", ":memory:")
    found = json.loads(invoke("profile", "stats", "--json").stdout)
    assert found["path"] is None
    assert not Path(":memory:").exists()
