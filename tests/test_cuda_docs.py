"""The example in docs/cuda.md works, and its table of GPUs matches the program."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpu_plans import expected_outputs
from host_cuda import needs_compiler
from host_gpu import OnDevice, attach_host, on_host, time_by_size
from onnx import helper
from small_models import loaded, proto_of

from iosched.jobs.annotate import annotated
from iosched.jobs.optimize import optimize
from iosched.jobs.settings import OptimizeSettings
from iosched.models.export import write_model
from iosched.runtime.cuda.gpu.extras import extra_for

PAGE = Path(__file__).parents[1] / "docs" / "cuda.md"
CUDA_OF_DRIVER = {525: 12000, 570: 12080, 579: 12090, 580: 13000}


@needs_compiler
def test_the_example_exchanges_arrays_with_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    monkeypatch.chdir(tmp_path)
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("GlobalAveragePool", ["a"], ["y"])]
    model = loaded(proto_of(nodes, {"x": (1, 3, 224, 224)}, ["y"]))
    result = optimize(model, OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db"))
    write_model(annotated(model, result.document), model.weights, Path("model.iosched.onnx"))

    array = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    torch = SimpleNamespace(rand=lambda *_, device: OnDevice(array), from_dlpack=on_host)
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found: dict[str, Any] = {}
    exec(example, found)
    np.testing.assert_allclose(found["y"], expected_outputs(model, {"x": array})["y"], rtol=1e-5)


def rows(page: Path) -> list[list[str]]:
    lines = (line for line in page.read_text().splitlines() if re.match(r"\| (Kepler|Volta|Turing|Blackwell)", line))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("row", rows(PAGE), ids=lambda row: f"{row[0].partition(':')[0]}, {row[2]}")
def test_the_table_names_the_same_extras_as_the_program(row: list[str]) -> None:
    _, capabilities, drivers, install, _ = row
    name = re.search(r"\.\[(\w+)\]", install)
    for capability in re.findall(r"\d+\.\d", capabilities):
        for driver in map(int, re.findall(r"\d+", drivers) or CUDA_OF_DRIVER):
            found = extra_for(CUDA_OF_DRIVER[driver], [int(capability.replace(".", ""))])
            assert (found and found.name) == (name and name[1])


def test_the_table_has_a_row_for_each_generation_and_driver() -> None:
    assert len(rows(PAGE)) == 6
