"""An exported model names its plan in its last bytes, and its digest leaves them out."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import pytest
from small_models import branches, data

from iosched.models.plan_entry import PLAN_KEY, ExportedModel, PlanEntry, exported_models, model_sha256

ENTRY = PlanEntry("m.plan", 0x0123456789ABCDEF)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(data(branches()) + ENTRY.encoded())
    return path


def test_the_entry_is_metadata_of_the_model(path: Path) -> None:
    metadata = {item.key: item.value for item in onnx.load(path).metadata_props}
    assert metadata == {PLAN_KEY: "m.plan 0123456789abcdef"}


def test_the_entry_is_found_without_parsing(path: Path) -> None:
    found = ExportedModel.at(path)
    assert found is not None
    assert (found.entry, found.plan) == (ENTRY, path.with_name("m.plan"))
    assert found.sha256() == hashlib.sha256(data(branches())).hexdigest()


@pytest.mark.parametrize("name", ["a" * 60, "a" * 200, "two words"])
def test_a_name_may_be_long(tmp_path: Path, name: str) -> None:
    entry = PlanEntry(f"{name}.plan", 1)
    (tmp_path / "m.onnx").write_bytes(data(branches()) + entry.encoded())
    found = ExportedModel.at(tmp_path / "m.onnx")
    assert found is not None
    assert found.entry == entry


def test_a_file_that_is_saved_again_keeps_entry_and_digest(path: Path) -> None:
    before = ExportedModel.at(path)
    onnx.save(onnx.load(path), path)
    after = ExportedModel.at(path)
    assert before is not None
    assert after is not None
    assert (after.entry, after.sha256()) == (before.entry, before.sha256())


def test_other_weights_change_the_digest(path: Path) -> None:
    before = ExportedModel.at(path)
    assert before is not None
    digest = before.sha256()
    proto = onnx.load(path)
    tensor = proto.graph.initializer[0]
    tensor.raw_data = bytes([tensor.raw_data[0] ^ 1]) + tensor.raw_data[1:]
    onnx.save(proto, path)
    after = ExportedModel.at(path)
    assert after is not None
    assert after.sha256() != digest


def test_external_data_is_part_of_the_digest(path: Path) -> None:
    nbytes = path.stat().st_size - len(ENTRY.encoded())
    inside = model_sha256(path, nbytes)
    path.with_name("m.onnx.data").write_bytes(b"weights")
    assert model_sha256(path, nbytes) == hashlib.sha256(data(branches()) + b"weights").hexdigest() != inside


@pytest.mark.parametrize(
    "value",
    ["../m.plan 0123456789abcdef", "/m.plan 0123456789abcdef", "a\\m.plan 0123456789abcdef", " 0123456789abcdef",
     "m.plan 0123", "m.plan 0123456789abcdeg", "m.plan", ".. 0123456789abcdef"],
)  # fmt: skip
def test_only_a_bare_file_name_with_a_checksum_is_an_entry(value: str) -> None:
    assert PlanEntry.parsed(value) is None


@pytest.mark.parametrize("content", [b"", b"text", data(branches()), data(branches()) + ENTRY.encoded()[:-1]])
def test_other_files_are_no_exported_models(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    assert ExportedModel.at(tmp_path / "m.onnx") is None
    assert list(exported_models(tmp_path)) == []


def test_a_missing_file_is_no_exported_model(tmp_path: Path) -> None:
    assert ExportedModel.at(tmp_path / "none.onnx") is None
