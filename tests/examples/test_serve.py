"""The example of a service, called over HTTP: correct answers, refusals with the reason, a clean shutdown.

One service has two models in two processes, another has one model for several batch sizes in one process.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from example_scripts import EXAMPLES, environment
from shipped import optimized_file
from small_models import branches, chain, data, node, proto_of, run, weight

import iosched

pytest.importorskip("uvicorn", reason="the extra [examples] is not installed")
pytest.importorskip("starlette", reason="the extra [examples] is not installed")

X = np.random.default_rng(0).standard_normal((1, 8, 6, 6), np.float32)
INFER = "/v2/models/branches/infer"


class Service:
    """The running example."""

    def __init__(self, path: Path, *others: str, workers: int = 1) -> None:
        self.path, self.workers = path, workers
        self.log = path.with_suffix(".txt").open("w+")
        options = [] if workers == 1 else ["--workers", str(workers)]
        words = [str(EXAMPLES / "serve.py"), str(path), *others, *options, "--threads", "1", "--port", "0"]
        self.process = subprocess.Popen(
            [sys.executable, *words], env=environment(), stdout=self.log, stderr=subprocess.STDOUT
        )
        self.port = 0

    def wait(self) -> None:
        """Waits until all processes take requests."""
        self.port = int(self.said(r"running on http://127.0.0.1:(\d+)"))
        self.said(f"(?s)({'.*'.join(['startup complete'] * self.workers)})")
        assert self.call("GET", "/v2/health/ready") == (200, None)

    def said(self, pattern: str) -> str:
        for _ in range(600):
            found = re.search(pattern, Path(self.log.name).read_text())
            if found is not None:
                return found[1]
            assert self.process.poll() is None, Path(self.log.name).read_text()
            time.sleep(0.1)
        raise AssertionError(Path(self.log.name).read_text())

    def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text else None

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        self.log.close()


@contextmanager
def ready(started: Service) -> Iterator[Service]:
    try:
        started.wait()
        yield started
    finally:
        started.end()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    path = optimized_file(tmp_path_factory.mktemp("service") / "branches.iosched.onnx", branches())
    onnx.save(chain(), path.with_name("chain.onnx"))
    with ready(Service(path, f"other={path.with_name('chain.onnx')}", workers=2)) as found:
        yield found


@pytest.fixture(scope="module")
def of_several_sizes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Serves a file with schedules for batch sizes 1 and 4."""
    path = tmp_path_factory.mktemp("several") / "branches.iosched.onnx"
    iosched.optimize_batches(branches("n").SerializeToString(), (1, 4), device="v100", strategy="greedy").save(path)
    with ready(Service(path)) as found:
        yield found


def request(data: object = None, **other: object) -> bytes:
    entry = {
        "name": "x",
        "datatype": "FP32",
        "shape": [1, 8, 6, 6],
        "data": X.reshape(-1).tolist() if data is None else data,
    }
    return json.dumps({"inputs": [{**entry, **other}]}).encode()


def outputs(answer: Any) -> np.ndarray:
    (y,) = answer["outputs"]
    assert (y["name"], y["datatype"], y["shape"]) == ("y", "FP32", [1, 16, 6, 6])
    return np.reshape(y["data"], y["shape"])


def test_it_describes_the_model(service: Service) -> None:
    assert service.call("GET", "/v2/health/live") == (200, None)
    status, said = service.call("GET", "/v2/models/branches")
    assert status == 200
    assert said["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [1, 8, 6, 6]}]
    assert said["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 16, 6, 6]}]


def test_concurrent_requests_get_their_own_answers(service: Service) -> None:
    with iosched.load(service.path, threads=1) as model:
        wanted = [model.run({"x": X * number})["y"] for number in range(8)]

    def is_right(number: int) -> bool:
        status, answer = service.call("POST", INFER, request((X * number).tolist()))
        return status == 200 and np.allclose(outputs(answer), wanted[number], rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(is_right, [number % 8 for number in range(32)]))


def test_each_model_answers_its_own_requests(service: Service) -> None:
    z = np.random.default_rng(0).standard_normal((1, 4, 12, 12), np.float32)
    status, answer = service.call("POST", "/v2/models/other/infer", request(z.tolist(), shape=z.shape))
    assert (status, answer["model_name"]) == (200, "other")
    found = np.reshape(answer["outputs"][0]["data"], answer["outputs"][0]["shape"])
    np.testing.assert_allclose(found, run(data(chain()), {"x": z})["y"], rtol=1e-4, atol=1e-5)


def test_requests_that_exceed_the_queue_are_refused(tmp_path: Path) -> None:
    """So are those that wait for too long."""
    names = ["x", *(f"a{number}" for number in range(20)), "y"]
    nodes = [node("MatMul", [read, "w"], [written]) for read, written in pairwise(names)]  # takes milliseconds
    onnx.save(proto_of(nodes, {"x": [1, 1000]}, ["y"], {"w": weight(1000, 1000)}), tmp_path / "slow.onnx")
    body = request([1.0] * 1000, shape=[1, 1000])
    service = Service(tmp_path / "slow.onnx", "--waiting", "2", "--timeout", "0.005")
    with ready(service) as found, ThreadPoolExecutor(16) as callers:
        answers = list(callers.map(lambda _: found.call("POST", "/v2/models/slow/infer", body), range(200)))
    assert {status for status, _ in answers} == {200, 503}
    texts = {answer["error"] for status, answer in answers if status == 503}
    assert "2 requests of 'slow' wait already: try again later" in texts
    assert texts <= {
        "2 requests of 'slow' wait already: try again later",
        "no core became free for the request of 'slow' in time: try again later",
    }


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        (INFER, b"{", 400, "the body is not a valid request"),
        (INFER, b"[" * 70_000, 400, "RecursionError"),
        (INFER, b"{}", 400, "KeyError: 'inputs'"),
        (INFER, b'{"inputs": [3]}', 400, "TypeError"),
        (INFER, b'{"inputs": []}', 400, "input 'x' is missing"),
        (INFER, request(name="z"), 400, "input 'x' is missing"),
        (INFER, request(datatype="FP64"), 400, "must be float32"),
        (INFER, request(datatype="BYTES"), 400, "KeyError: 'BYTES'"),
        (INFER, request(datatype="INT8"), 400, "values that are not INT8"),
        (INFER, request([1.0, 2.0]), 400, "cannot reshape"),
        (INFER, request([[1.0], [2.0, 3.0]]), 400, "ValueError"),
        (INFER, request(["a"] * 288), 400, "ValueError"),
        (INFER, request(["1"] * 288), 400, "values that are not FP32"),
        (INFER, request([None] * 288), 400, "values that are not FP32"),
        (INFER, request([1e300] * 288), 400, "values that are not FP32"),
        (INFER, request().replace(b"-", b"1e999, -", 1), 400, "values that are not FP32"),
        (INFER, json.dumps({"inputs": json.loads(request())["inputs"] * 2}).encode(), 400, "duplicate inputs: x, x"),
        (INFER, request([float("nan")] * 288), 400, "NaN is not a JSON number"),
        (INFER, b" " * 200_000, 413, "the request exceeds"),
        ("/v2/models/z/infer", request(), 404, "no model 'z'; this server has 'branches', 'other'"),
        ("/v2/models/branches/infer/x", request(), 404, "Not Found"),
    ],
)
def test_a_wrong_request_is_refused_with_the_reason(
    service: Service, path: str, body: bytes, status: int, said: str
) -> None:
    found, answer = service.call("POST", path, body)
    assert found == status
    assert said in answer["error"]


def test_a_model_for_several_batch_sizes_has_a_dynamic_batch(of_several_sizes: Service) -> None:
    status, said = of_several_sizes.call("GET", "/v2/models/branches")
    assert status == 200
    assert said["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 8, 6, 6]}]
    assert said["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 16, 6, 6]}]


def test_concurrent_requests_of_any_batch_size_get_their_own_answers(of_several_sizes: Service) -> None:
    images = {size: np.random.default_rng(size).standard_normal((size, 8, 6, 6), np.float32) for size in range(1, 5)}
    with iosched.load_batches(of_several_sizes.path, device="cpu", threads=1) as model:
        wanted = {size: model.run({"x": x})["y"] for size, x in images.items()}

    def is_right(size: int) -> bool:
        body = request(images[size].tolist(), shape=images[size].shape)
        status, answer = of_several_sizes.call("POST", INFER, body)
        found = np.reshape(answer["outputs"][0]["data"], answer["outputs"][0]["shape"])
        return status == 200 and np.allclose(found, wanted[size], rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(4) as callers:
        assert all(callers.map(is_right, [1 + number % 4 for number in range(16)]))


def test_a_batch_larger_than_all_scheduled_ones_is_refused(of_several_sizes: Service) -> None:
    status, answer = of_several_sizes.call("POST", INFER, request([0] * 5 * 288, shape=[5, 8, 6, 6]))
    assert (status, answer["error"]) == (413, "batch size 5 is too large; the limit is 4")
    assert of_several_sizes.call("POST", INFER, b" " * 300_000)[0] == 413
    status, answer = of_several_sizes.call("POST", INFER, request([0] * 4 * 216, shape=[4, 6, 6, 6]))
    assert (status, "shape" in answer["error"]) == (400, True)


def test_incomplete_bodies_do_not_block_other_requests(of_several_sizes: Service) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(100):  # more than can wait and run at a time
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", of_several_sizes.port), timeout=60))
            connection.sendall(head)
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")  # the service waits for the body
            connection.sendall(b"{")
        assert of_several_sizes.call("POST", INFER, request(shape=[1, 8, 6, 6]))[0] == 200


def test_running_requests_finish_before_shutdown(service: Service) -> None:
    body = request()
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        fields = f"Connection: close\r\nExpect: 100-continue\r\nContent-Length: {len(body)}"
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")  # a process waits for the body
        connection.sendall(body[:100])
        service.process.send_signal(signal.SIGTERM)
        service.said("(Shutting down)")
        connection.sendall(body[100:])
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    assert service.process.wait(60) == 0
    with pytest.raises(ConnectionRefusedError):
        service.call("GET", "/v2/health/live")
