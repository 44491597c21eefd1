"""OpenVINO as a peer, when it cannot run the model."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from scripted import fire

from iosched.models.errors import DeviceError
from iosched.profiler.peers.openvino import open_openvino


def test_a_peer_that_refuses_the_model_says_so_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Core:
        def read_model(self, given: bytes | str) -> object:
            raise RuntimeError("Exception from src/core/src/model.cpp:758:")

    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Core=Core))
    with pytest.raises(DeviceError, match="cannot run this model"):
        open_openvino(fire(), 1, {})
