"""External weights are read from the model's folder only, wherever their tensor is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from iosched.models import initializers
from iosched.models.errors import InvalidModelError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.runtime.reference import Reference

VALUES = np.arange(4, dtype=np.float32)
X = np.ones(4, np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for models next to a secret file; another secret is in the working folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for path in (tmp_path / "secret.bin", elsewhere / "here.bin"):
        path.write_bytes((VALUES + 100).tobytes())
    found = tmp_path / "models"
    found.mkdir()
    (found / "good.bin").write_bytes(VALUES.tobytes())
    return found


def outside(location: str) -> TensorProto:
    tensor = TensorProto(name="w", dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def vector(name: str, kind: int = TensorProto.FLOAT, shape: tuple[int, ...] = (4,)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def graph(nodes: list[onnx.NodeProto], *weights: TensorProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, "g", [vector("x")], [vector("y")], weights)


ADD = helper.make_node("Add", ["x", "w"], ["y"])


def initializer(location: str) -> onnx.GraphProto:
    return graph([ADD], outside(location))


def constant(location: str) -> onnx.GraphProto:
    return graph([helper.make_node("Constant", [], ["w"], value=outside(location)), ADD])


def branch(location: str) -> onnx.GraphProto:
    add = helper.make_node("Add", ["x", "w"], ["t"])
    then = helper.make_graph([add], "then", [], [vector("t")], [outside(location)])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "else", [], [vector("e")])
    found = graph([helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)])
    found.input.append(vector("c", TensorProto.BOOL, ()))
    return found


def sparse(location: str) -> onnx.GraphProto:
    found = graph([ADD])
    places = numpy_helper.from_array(np.arange(4), "places")
    found.sparse_initializer.append(onnx.SparseTensorProto(values=outside(location), indices=places, dims=[4]))
    return found


PLACES = (initializer, constant, branch, sparse)


def loaded(folder: Path, content: onnx.GraphProto) -> Model:
    path = folder / "net.onnx"
    path.write_bytes(
        helper.make_model(content, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    return load_model(path)


@pytest.mark.parametrize("place", PLACES)
def test_weights_in_the_models_folder_are_read(folder: Path, place: Callable[[str], onnx.GraphProto]) -> None:
    model = loaded(folder, place("good.bin"))
    inputs = {"x": X, "c": np.array(True)} if place is branch else {"x": X}
    with Reference(model.proto.SerializeToString()) as reference:  # no path: nothing may be left in another file
        np.testing.assert_array_equal(reference.run(inputs)["y"], X + VALUES)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("location", ["../secret.bin", "x/../../secret.bin", "link.bin", "up/secret.bin", "", "."])
def test_files_outside_are_refused(folder: Path, place: Callable[[str], onnx.GraphProto], location: str) -> None:
    (folder / "link.bin").symlink_to(folder.parent / "secret.bin")
    (folder / "up").symlink_to(folder.parent)
    with pytest.raises(InvalidModelError, match="outside the model's folder"):
        loaded(folder, place(location))
    with pytest.raises(InvalidModelError, match="outside the model's folder"):
        loaded(folder, place(str(folder.parent / "secret.bin")))


@pytest.mark.parametrize("place", PLACES)
def test_weights_in_the_working_folder_are_not_read(folder: Path, place: Callable[[str], onnx.GraphProto]) -> None:
    with pytest.raises(InvalidModelError, match="missing"):
        loaded(folder, place("here.bin"))


def test_circular_links_are_refused(folder: Path) -> None:
    (folder / "a.bin").symlink_to("b.bin")
    (folder / "b.bin").symlink_to("a.bin")
    with pytest.raises(InvalidModelError, match=r"a\.bin cannot be read"):
        loaded(folder, initializer("a.bin"))


def test_a_link_is_followed_within_the_models_folder(folder: Path) -> None:
    (folder / "blobs").mkdir()
    (folder / "good.bin").rename(folder / "blobs" / "1f")
    (folder / "linked.bin").symlink_to("blobs/1f")
    np.testing.assert_array_equal(loaded(folder, initializer("linked.bin")).weights["w"], VALUES)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a named pipe", "a folder"])
def test_special_files_are_refused_and_closed(folder: Path, make: Callable[[Path], None]) -> None:
    make(folder / "no.bin")
    before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    with pytest.raises(InvalidModelError, match=r"no.bin is missing"):
        loaded(folder, initializer("no.bin"))
    assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize("location", ["good.bin", "below/good.bin"])
def test_a_link_created_between_check_and_open_is_not_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    (folder / "below").mkdir()
    (folder / "below" / "good.bin").write_bytes(VALUES.tobytes())
    (folder.parent / "good.bin").write_bytes((VALUES + 100).tobytes())
    check = initializers._resolved

    def then_swapped(name: str, text: str, source: Path) -> tuple[Path, Path]:
        found = check(name, text, source)
        first = folder / Path(text).parts[0]
        first.rename(folder / "before")
        first.symlink_to(folder.parent / "good.bin" if len(Path(text).parts) == 1 else folder.parent)
        return found

    monkeypatch.setattr(initializers, "_resolved", then_swapped)
    with pytest.raises(InvalidModelError, match=r"good\.bin (is missing|cannot be read)"):
        loaded(folder, initializer(location))


def test_a_file_that_was_cut_off_is_too_short(folder: Path) -> None:
    (folder / "good.bin").write_bytes(VALUES.tobytes()[:12])
    with pytest.raises(InvalidModelError, match=r"'good\.bin' is too short: 'w' needs bytes 0 to 16 of 12"):
        loaded(folder, initializer("good.bin"))
    (folder / "good.bin").write_bytes(b"")
    with pytest.raises(InvalidModelError, match="of 0"):
        loaded(folder, initializer("good.bin"))
