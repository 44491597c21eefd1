"""`import iosched` is a thin façade: every name exists, and paths may be strings."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from shipped import document, optimized_file
from small_models import branches

import iosched


class Named(os.PathLike[str]):
    """A path that is neither a `str` nor a `Path`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __fspath__(self) -> str:
        return self._name


KINDS: dict[str, Callable[[str], str | os.PathLike[str]]] = {"str": str, "Path": Path, "PathLike": Named}


@pytest.mark.parametrize("name", iosched.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(iosched, name)
    assert name in dir(iosched)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = iosched.no_such_name


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(iosched.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported | {"__version__"} == set(iosched.__all__)


@pytest.mark.parametrize("kind", KINDS)
def test_every_function_takes_a_path_of_any_kind(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = KINDS[kind]
    monkeypatch.chdir(tmp_path)
    onnx.save(branches(), "m.onnx")
    optimized_file(Path("m.iosched.onnx"), branches())
    model = iosched.load_model(path("m.onnx"))
    assert (model.name, model.original) == ("m", Path("m.onnx"))
    assert iosched.write_model(model.proto, model.weights, path("written.onnx")) is None
    assert iosched.load_model(path("written.onnx")).digest == model.digest

    Path("s.json").write_text(document(model).to_json())
    iosched.load(path("m.onnx"), schedule=path("s.json")).close()
    iosched.load_any(path("m.iosched.onnx")).close()
    iosched.InferenceSession(path("m.iosched.onnx"), providers=["CPUExecutionProvider"]).close()

    result = iosched.optimize(path("m.onnx"), device="v100", profile_db=path("no.db"))
    result.save(path("o.onnx"), schedule=path("o.json"))
    assert Path("o.onnx").exists()
    assert Path("o.json").exists()
    found = iosched.optimize_batches(path("m.onnx"), (1, 2), device="v100", profile_db=path("no.db"))
    found.save(path("b.onnx"))
    Path("b.json").write_text(found.schedules.to_json())
    iosched.load_batches(path("b.onnx"), schedules=path("b.json")).close()

    iosched.bench(model, None, names=["onnxruntime"], rounds=3, threads=1, profile_db=path("p.db"))
    assert Path("p.db").exists()
    mutators = "(iosched.InputMutator('reads', iosched.by_type('Conv')),)"
    Path("space.py").write_text(f"import iosched\nspace = iosched.Space('mine', {mutators})\n")
    assert iosched.find_space(path("space.py")).name == "mine"


def test_settings_accept_strings_as_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = iosched.load_model(branches().SerializeToString(), name="m")
    iosched.rank({"m": model}, iosched.RankSettings(measure="none", profile_db="no.db"))
    iosched.batch({"m": model}, iosched.BatchSettings(device="v100", profile_db="no.db"))
    iosched.optimize(model, iosched.OptimizeSettings(device="v100", profile_db="no.db"))


def test_the_path_of_a_study_may_be_a_string(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna", reason="the extra [explore] is not installed")
    monkeypatch.chdir(tmp_path)
    study = iosched.ExploreSettings("study.db", trials=1, objectives=("params",), top=0)
    found = iosched.explore(None, iosched.find_space("builtin:inception:32"), study)
    assert found.found.storage == Path("study.db")
    assert Path("study.db").exists()
