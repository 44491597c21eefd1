"""Errors about a missing resource are not errors of the model."""

from __future__ import annotations

import pytest
from small_models import branches

from iosched.models.errors import InvalidModelError, ResourceError
from iosched.runtime.missing_dependencies import missing_resource
from iosched.runtime.session import load_onnxruntime, open_session, running

TEXTS = {
    "pthread_create failed, error code: 11 error msg: Resource temporarily unavailable": "ulimit -u",
    "Resource temporarily unavailable": "ulimit -u",
    "std::bad_alloc": "out of memory",
    "/onnxruntime_src/bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 1": "out of memory",
    'graph.cc:5468 Failed to write external initializers to file: "/tmp/iosched-1/weights.bin"': "TMPDIR",
    "no memory for an arena of 4096 bytes": "out of memory",
    "libonnxruntime.so: failed to map segment from shared object": "out of memory",
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_missing_resource_is_named_with_the_fix(text: str) -> None:
    assert TEXTS[text] in (missing_resource(text) or "")
    assert missing_resource("the node is of no known type") is None


@pytest.mark.parametrize("text", TEXTS)
def test_a_library_with_a_missing_resource_is_not_a_model_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(load_onnxruntime(), "InferenceSession", fail)
    with pytest.raises(ResourceError, match=TEXTS[text]):
        open_session(branches().SerializeToString(), None)
    with pytest.raises(ResourceError, match=TEXTS[text]), running():
        raise RuntimeError(text)


def test_an_invalid_model_is_a_model_error() -> None:
    with pytest.raises(InvalidModelError, match="onnxruntime cannot run this model"):
        open_session(b"no model", None)
