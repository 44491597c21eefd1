"""OpenVINO as a baseline and as a library to ship on: opened once, after a check against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from scripted import NEEDS_OPENVINO, fire, model_with

from iosched.models.errors import DeviceError, MismatchError
from iosched.profiler.baselines import library as baselines_library
from iosched.profiler.baselines import openvino
from iosched.profiler.baselines.openvino import OpenvinoBaseline, open_openvino
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.openvino import library
from iosched.runtime.openvino.openvino_model import OpenvinoModel


@NEEDS_OPENVINO
def test_openvino_runs_the_model_or_refuses_it() -> None:
    peer = open_openvino(fire(), 1, random_inputs(fire().graph.inputs))
    assert len(peer.time(3)) == 3
    peer.close()
    with pytest.raises(DeviceError, match="cannot run this model"):
        open_openvino(model_with([helper.make_node("Bernoulli", ["x"], ["y"])]), 1, {})


def test_a_missing_openvino_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "missing", lambda: "OpenVINO is not installed; run: pip install openvino")
    with pytest.raises(DeviceError, match="openvino"):
        open_openvino(fire(), 1, {})


@NEEDS_OPENVINO
def test_a_model_is_opened_once_and_ready_after_it_was_checked() -> None:
    plain = OpenvinoBaseline(fire(), 2)
    assert plain.is_installed()
    assert plain.opened is plain.opened
    assert plain.run_s > 0
    candidate = plain.ready(random_inputs(fire().graph.inputs))
    assert len(candidate.time(2)) == 2
    candidate.close()


def test_a_model_with_wrong_outputs_is_closed_and_refused_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    class Wrong:
        def __init__(self, *_: object) -> None:
            opened.append("opened")

        def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
            return {"gc": np.zeros((1, 32, 6, 6), np.float32)}

        def close(self) -> None:
            opened.append("closed")

    monkeypatch.setattr(openvino, "OpenvinoModel", Wrong)
    plain = OpenvinoBaseline(fire(), 1)
    for _ in range(2):
        with pytest.raises(MismatchError, match="'gc' differs by"):
            plain.ready({})
    assert opened == ["opened", "closed"]


@NEEDS_OPENVINO
def test_a_model_that_fails_while_it_runs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenvinoModel, "_output", lambda *_: library.call("ov_tensor_data", None, None))
    with pytest.raises(DeviceError, match="cannot run this model"):
        OpenvinoBaseline(fire(), 1).opened  # noqa: B018 - raises


def test_a_model_is_closed_if_its_check_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Ctrl+C while onnxruntime computes the expected outputs."""
    opened: list[str] = []

    class Opened:
        def close(self) -> None:
            opened.append("closed")

    class Interrupted:
        def __init__(self, *_: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(openvino, "OpenvinoModel", lambda *_: Opened())
    monkeypatch.setattr(baselines_library, "Reference", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        OpenvinoBaseline(fire(), 1).opened  # noqa: B018 - raises
    assert opened == ["closed"]
