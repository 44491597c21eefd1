"""The example of a predictor for KServe, called over HTTP."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from example_scripts import EXAMPLES, environment
from shipped import optimized_file
from small_models import branches

import iosched
from iosched.jobs.export import export
from iosched.runtime.cpu import library

pytestmark = pytest.mark.skipif(not library.available(), reason="the compiled executor is not built")
pytest.importorskip("kserve", reason="KServe is not installed")

X = np.random.default_rng(0).standard_normal((1, 8, 6, 6), np.float32)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Predictor:
    """The running example."""

    def __init__(self, plan: Path) -> None:
        self.port = free_port()
        words = ["--plan", plan, "--strict", "--model_name", "m", "--http_port", self.port, "--grpc_port", free_port()]
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "kserve_server.py"), *map(str, words)], env=environment()
        )
        for _ in range(600):
            assert self.process.poll() is None
            try:
                self.call("v2/models/m/ready")
            except URLError:
                time.sleep(0.1)
            else:
                return
        raise AssertionError("the predictor does not start")

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = Request(f"http://127.0.0.1:{self.port}/{path}", content, {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def infer(self, x: np.ndarray) -> Any:
        tensor = {"name": "x", "datatype": "FP32", "shape": x.shape, "data": x.reshape(-1).tolist()}
        return self.call("v2/models/m/infer", {"inputs": [tensor]})


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kserve")
    return export(optimized_file(folder / "m.iosched.onnx", branches()), folder / "m.plan", threads=1).model.parent


@pytest.fixture(scope="module")
def predictor(plan: Path) -> Iterator[Predictor]:
    started = Predictor(plan)
    yield started
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(60) == 0


@pytest.mark.slow
def test_answers_match_the_outputs_of_the_model(predictor: Predictor, plan: Path) -> None:
    (found,) = predictor.infer(X)["outputs"]
    with iosched.load(plan) as model:
        expected = model.run({"x": X})["y"]
    assert (found["name"], found["datatype"], found["shape"]) == ("y", "FP32", list(expected.shape))
    np.testing.assert_array_equal(np.array(found["data"], np.float32).reshape(expected.shape), expected)
    described = predictor.call("v2/models/m")
    assert described["inputs"] == [{"name": "x", "datatype": "FP32", "shape": list(X.shape)}]


@pytest.mark.slow
def test_a_wrong_shape_is_refused_with_the_reason(predictor: Predictor) -> None:
    with pytest.raises(HTTPError) as refused:
        predictor.infer(X[:, :4])
    assert refused.value.code == 400
    assert "input 'x' must be float32 of shape (1, 8, 6, 6)" in refused.value.read().decode()
