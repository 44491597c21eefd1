"""ONNX's backend test cases for single operators, if onnxruntime runs them and their opset is one that we read.

Generating all of them takes seconds, and so does trying them; the results are kept in pytest's cache for the installed
versions.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from networks import CACHE, cached_folder
from onnx import numpy_helper

from iosched.models.errors import IoschedError
from iosched.models.model import Model
from iosched.models.source import MAX_IR_VERSION, MAX_OPSET
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import sequential

_BY_CHANCE = ("bernoulli", "dropout", "random", "multinomial", "training")
_READERS = {
    "tensor_type": (onnx.TensorProto, numpy_helper.to_array, numpy_helper.from_array),
    "sequence_type": (onnx.SequenceProto, numpy_helper.to_list, numpy_helper.from_list),
    "optional_type": (onnx.OptionalProto, numpy_helper.to_optional, numpy_helper.from_optional),
}


@dataclass(frozen=True)
class Case:
    """A model as its maker wrote it, with inputs by name: arrays, lists of arrays, or None."""

    name: str
    model: bytes
    inputs: Mapping[str, Any]

    def expected(self) -> dict[str, Any]:
        """The outputs of plain onnxruntime by name."""
        with Reference(self.model) as reference:
            return reference.run(self.inputs)

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs that are arrays."""
        return {name: value.shape for name, value in self.inputs.items() if isinstance(value, np.ndarray)}


def case_names() -> list[str]:
    """Cases of opsets that we read, which onnxruntime runs, and whose result is not random."""
    return [name for name, reason in _tried().items() if not reason]


def left_out() -> dict[str, str]:
    """All other cases, with the reason."""
    return {name: reason for name, reason in _tried().items() if reason}


def refusals() -> str:
    """How many others are left out, in one line with the most frequent reason."""
    reasons = Counter(left_out().values())
    (most, count), *_ = reasons.most_common(1)
    total = sum(reasons.values())
    return f"{total} cases left out with onnxruntime {version('onnxruntime')}, {count} of them: {most}"


def case(name: str) -> Case:
    """One of `case_names`."""
    return _read(_folder() / name)


@cache
def _folder() -> Path:
    """The cases, with the results of trying them in `tried.json`, for the current versions and limits."""
    versions = [f"{package} {version(package)}" for package in ("onnx", "onnxruntime", "numpy")]
    limits = f"{MAX_IR_VERSION} {MAX_OPSET}"
    key = hashlib.sha256(" ".join([*versions, limits]).encode() + Path(__file__).read_bytes()).hexdigest()[:16]

    def fill(folder: Path) -> None:
        tried = {path.name: _refusal(path) for path in _written(folder)}
        (folder / "tried.json").write_text(json.dumps(tried))

    return cached_folder(CACHE / "onnx-backend", key, "cases", fill)


@cache
def _tried() -> dict[str, str]:
    reasons: dict[str, str] = json.loads((_folder() / "tried.json").read_text())
    return reasons


def _refusal(folder: Path) -> str:
    """The reason if a case is left out, else empty."""
    found = _read(folder)
    imports = onnx.ModelProto.FromString(found.model).opset_import
    opset = max((imported.version for imported in imports if imported.domain in ("", "ai.onnx")), default=0)
    if opset > MAX_OPSET:
        return f"opset {opset} is newer than {MAX_OPSET}"
    try:
        found.expected()
    except IoschedError as error:
        return str(error).splitlines()[0]
    return ""


def _written(folder: Path) -> list[Path]:
    """One folder for each case, in the layout in which ONNX hands them out."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # some cases overflow or divide by zero on purpose
        cases = sorted(collect_testcases(None), key=lambda case: case.name)
    paths = []
    for found in cases:
        if any(word in found.name for word in _BY_CHANCE):
            continue
        paths.append(folder / found.name)
        paths[-1].mkdir(parents=True)
        model = onnx.ModelProto()
        model.CopyFrom(found.model)
        model.ir_version = min(model.ir_version, MAX_IR_VERSION)
        (paths[-1] / "model.onnx").write_bytes(model.SerializeToString())
        for number, (declared, value) in enumerate(zip(model.graph.input, found.data_sets[0][0], strict=False)):
            (paths[-1] / f"input_{number}.pb").write_bytes(_bytes_of(declared.type.WhichOneof("value"), value))
    return paths


def _bytes_of(kind: str, value: Any) -> bytes:
    message, _, write = _READERS[kind]
    if isinstance(value, message):
        return value.SerializeToString()
    written = write(np.asarray(value), "") if kind == "tensor_type" else write(value)
    data: bytes = written.SerializeToString()
    return data


def _read(folder: Path) -> Case:
    data = (folder / "model.onnx").read_bytes()
    inputs = {}
    for number, declared in enumerate(onnx.ModelProto.FromString(data).graph.input):
        path = folder / f"input_{number}.pb"
        if path.exists():
            message, read, _ = _READERS[declared.type.WhichOneof("value")]
            inputs[declared.name] = read(message.FromString(path.read_bytes()))
    return Case(folder.name, data, inputs)


How = Literal["by a plan", "whole on onnxruntime"]


def on_the_cpu(case: Case, model: Model) -> tuple[How, dict[str, Any]]:
    """How the case runs and what it computes: by a plan, or on plain onnxruntime where no plan can be made.

    Raises:
        PlanError: a plan that can be made fails.
    """
    with CpuBackend(model, lanes=2) as backend:
        if backend.is_supported():
            return "by a plan", backend.compile(sequential(backend.graph)).run(case.inputs)
    with Reference(model) as reference:
        return "whole on onnxruntime", reference.run(case.inputs)


def agree(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        agree_on(found[name], value)


def agree_on(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            agree_on(one, other)
    elif expected is None:
        assert found is None
    else:
        agree_on_array(found, expected)


def agree_on_array(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if expected.dtype.kind == "V":  # of a type that numpy does not have; each of its values is a float64
        found, expected = found.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_array_equal(found, expected)
    elif expected.dtype.kind in "fc":
        tolerance = 2e-3 if expected.dtype.itemsize == 2 else 1e-4
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(found, expected)
