"""docs/cuda.md names existing extras, checks, and the measuring script."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from host_driver import HostDriver
from host_gpu import HostGpu

from iosched.cli.main import cli
from iosched.jobs.selftest import CheckResult, SelfTest
from iosched.profiler.devices.cuda.gpu_checks import MODEL, cuda_checks

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "cuda.md").read_text().partition("## The first hour on a GPU\n")[2]


def test_extras_exist_in_the_package() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = set(re.findall(r"'\.\[(\w+)\]'", PAGE))
    assert {"cuda", "cuda12", "test"} <= named <= set(known)


def test_the_quoted_summary_is_that_of_a_working_gpu() -> None:
    checks = cuda_checks(HostGpu(0, "NVIDIA H100 80GB HBM3", {"cudnn": "91900"}, HostDriver()))
    results = [CheckResult(check.part, check.name, "passed") for check in checks]
    found = SelfTest("cuda:0", "NVIDIA H100 80GB HBM3", {"iosched": "0.1.0", "capability": "9.0"}, results, 5.0)
    (lines,) = re.findall(r"```text\n(NVIDIA H100.*?)```", PAGE, re.DOTALL)
    assert " ".join(lines.split()).startswith(found.summary)
    assert set(re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE)) == {check.part for check in checks}
    assert MODEL in PAGE


def test_the_quoted_measuring_command_fits_the_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    (call,) = re.findall(r"`python benchmarks/gpu.py (--[^`]*)`", PAGE)
    assert call in (ROOT / "CONTRIBUTING.md").read_text()
    assert call.split()[0] == "--evidence"
    pieces = import_module("gpu_cases").PIECES.values()
    assert all(piece.seconds < float(call.split()[-1]) for piece in pieces)
    assert import_module("gpu").main(["--list", "--output", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(pieces)


def test_failed_checks_refer_to_the_page() -> None:
    failed = SelfTest("cuda:0", "GPU", {}, [CheckResult("kernels", "Pool", "failed", error=ValueError())], 1.0)
    assert "docs/cuda.md" in str(failed.failure)
    assert {"--selftest", "--debug"} <= {name for each in cli.get_command(None, "devices").params for name in each.opts}  # type: ignore[arg-type,union-attr]
