"""The example of a score command rates how well the outputs of each network separate digits."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from iosched.jobs.batching.model_clusters import composed
from iosched.models.export import write_model
from iosched.models.load import load_model
from iosched.models.zoo.network import Network

SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "score_digits.py"


@pytest.fixture(scope="module")
def score() -> ModuleType:
    spec = importlib.util.spec_from_file_location("score_digits", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def network(name: str, channels: int = 4) -> onnx.ModelProto:
    net = Network(name)
    x = net.conv(net.input(3, 8), channels, 3, "conv", padding=1)
    return net.finish(net.linear(net.flatten(x, "flatten"), 32, "output"))


def blind(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The network with weights of zero: its outputs are the same for every image."""
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(tensor)), tensor.name))
    return proto


def printed(score: ModuleType, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    sys_argv, sys.argv = sys.argv, ["score_digits.py", *words]
    try:
        score.main()
    finally:
        sys.argv = sys_argv
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_useful_features_score_high_and_constant_ones_score_like_guessing(
    score: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, proto in (("seeing", network("a")), ("blind", blind(network("a")))):
        onnx.save(proto, tmp_path / f"{name}.onnx")
    seeing = printed(score, capsys, str(tmp_path / "seeing.onnx"), '{"channels": 4}')
    assert 0.8 < seeing["accuracy_low"] < seeing["accuracy"] < seeing["accuracy_high"] < 1  # type: ignore[operator]
    assert printed(score, capsys, str(tmp_path / "blind.onnx"))["accuracy"] == pytest.approx(0.1, abs=0.01)


@pytest.mark.slow
def test_fewer_images_lower_the_accuracy(score: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(network("a"), tmp_path / "a.onnx")
    few, many = (printed(score, capsys, str(tmp_path / "a.onnx"), "--images", count) for count in ("50", "800"))
    assert few["accuracy"] < many["accuracy"]  # type: ignore[operator]


@pytest.mark.slow
def test_each_of_several_networks_in_a_model_has_the_same_score_as_alone(
    score: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    protos = {"a": network("a"), "b": network("b", channels=1)}
    models = {name: load_model(proto.SerializeToString()) for name, proto in protos.items()}
    together = composed(models, shared_inputs=("input",)).model
    write_model(together.proto, together.weights, tmp_path / "both.onnx")
    both = printed(score, capsys, str(tmp_path / "both.onnx"), "--splits", "2")
    for name, proto in protos.items():
        onnx.save(proto, tmp_path / f"{name}.onnx")
        alone = printed(score, capsys, str(tmp_path / f"{name}.onnx"), "--splits", "2")
        assert both[name] == pytest.approx(alone)
    assert both["a"] != both["b"]
