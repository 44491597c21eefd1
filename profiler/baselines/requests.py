"""Baselines with one concurrent request per core, as in model serving."""

from __future__ import annotations

from functools import partial

from iosched.models.model import Model
from iosched.runtime.divided_sessions import open_shared
from iosched.runtime.executor import Candidate, Requests
from iosched.runtime.inputs import Arrays
from iosched.runtime.openvino.openvino_model import open_requests
from iosched.scheduler.teams import Teams


def open_sessions(model: Model, threads: int, inputs: Arrays) -> Candidate:
    """Opens onnxruntime with a session of one thread for each request."""
    return open_in_teams(model, Teams(threads, 1, model.batch_size), threads, inputs)


def open_in_teams(model: Model, teams: Teams, threads: int, inputs: Arrays) -> Candidate:
    """Opens onnxruntime with a session for each team."""
    return timed(open_shared(model, teams, threads), inputs)


def open_streams(model: Model, threads: int, inputs: Arrays) -> Candidate:
    """Opens OpenVINO with its throughput settings; raises a DeviceError if it is missing or cannot run this model."""
    return timed(Requests(open_requests(model, threads, threads)), inputs)


def timed(requests: Requests, inputs: Arrays) -> Candidate:
    """Concurrent requests, ready to be timed on these inputs."""
    return Candidate(partial(requests.time, inputs), requests.close, in_flight=requests.in_flight)
