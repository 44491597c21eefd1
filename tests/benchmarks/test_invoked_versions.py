"""What a child finds of the onnxruntime that is installed, and that its crash is a result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from iosched.models.errors import ExecutionError
from iosched.runtime.cpu import native
from iosched.runtime.cpu.library import available
from iosched.runtime.cpu.native_kernels import RuntimeHandle

pytestmark = pytest.mark.skipif(not available(), reason="there is no compiled executor")


@pytest.fixture
def versions(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("invoked_versions")


@pytest.fixture(autouse=True)
def _no_earlier_proofs(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_operators_of_the_installed_onnxruntime_are_invoked_and_compute_the_same(versions: ModuleType) -> None:
    found = versions.tried("light_squeezenet")
    assert found["same_bits"]
    assert found["as_onnxruntime"]
    assert sum(found["invoked"].values()) > 10
    ((_, model, *_, same, agrees),) = versions.rows("1.0", {"models": {"light_squeezenet": found}})
    assert (model, same, agrees) == ("light_squeezenet", "yes", "yes")


def test_an_onnxruntime_that_invokes_nothing_runs_everything_in_sessions(
    versions: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: RuntimeHandle) -> None:
        raise ExecutionError("too old")

    for module in (native, versions):
        monkeypatch.setattr(module, "prepare", refuses)
    found = versions.tried("light_squeezenet")
    assert found["invoked"] == {}
    assert "no operator can be invoked: too old" in found["in_sessions"]
    assert found["same_bits"]


@pytest.mark.slow
def test_a_kernel_that_is_slower_is_told_from_one_that_computes_something_else(
    versions: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions.proofs, "_SLOWER", 0.0)
    assert "not proven: slower" in versions.tried("light_squeezenet")["in_sessions"]


def test_the_chain_is_of_200_operators(versions: ModuleType) -> None:
    assert len(versions.chain().graph.operators) == 200


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import os; os.abort()", {"ended": "SIGABRT", "said": ""}),
        ("raise ValueError('no')", {"ended": "exit code 1", "said": "ValueError: no"}),
        ("print('{}')", {}),
    ],
)
def test_a_child_that_crashes_is_a_result(versions: ModuleType, code: str, found: dict[str, str]) -> None:
    assert versions.in_child([sys.executable, "-c", code], "any") == found
