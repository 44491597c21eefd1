"""A model for several batch sizes serves several threads while it opens further batch sizes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from small_models import branches, data

import iosched
from iosched.jobs.loading import batches as loaded_batches
from iosched.jobs.loading.batches import LoadedBatches
from iosched.jobs.loading.loaded_model import LoadedModel
from iosched.models.errors import UsageError
from iosched.models.model import Model

SLOW = 4
PATIENCE_S = 30.0


class Opening:
    """Opens models, the slow batch size only once allowed; records which were opened."""

    def __init__(self) -> None:
        self.sizes: list[int | None] = []
        self.has_begun, self.may_end = Event(), Event()

    def __call__(self, model: Model, *rest: Any, **more: Any) -> LoadedModel:
        self.sizes.append(model.batch_size)
        if model.batch_size == SLOW:
            self.has_begun.set()
            assert self.may_end.wait(PATIENCE_S)
        return LoadedModel(model, *rest, **more)


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Opening:
    opening = Opening()
    monkeypatch.setattr(loaded_batches, "LoadedModel", opening)
    return opening


@pytest.fixture
def model(tmp_path: Path) -> Iterator[LoadedBatches]:
    iosched.optimize_batches(data(branches("n")), (1, SLOW), device="v100").save(tmp_path / "several.onnx")
    with iosched.load_batches(tmp_path / "several.onnx", device="cpu", threads=1) as model:
        yield model


def image(size: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(size).standard_normal((size, 8, 6, 6), np.float32)}


def test_an_open_batch_size_runs_while_another_is_opened(model: LoadedBatches, opening: Opening) -> None:
    before = model.run(image(1))["y"]
    with ThreadPoolExecutor(2) as callers:
        slow = callers.submit(model.run, image(SLOW))
        assert opening.has_begun.wait(PATIENCE_S)
        try:
            meanwhile = callers.submit(model.run, image(1)).result(PATIENCE_S)["y"]
        finally:
            opening.may_end.set()
        np.testing.assert_array_equal(meanwhile, before)
        assert slow.result(PATIENCE_S)["y"].shape == (SLOW, 16, 6, 6)
    assert sorted(model.opened) == [1, SLOW]


def test_a_batch_size_is_opened_once_for_several_waiting_threads(model: LoadedBatches, opening: Opening) -> None:
    with ThreadPoolExecutor(4) as callers:
        runs = [callers.submit(model.run, image(SLOW)) for _ in range(4)]
        assert opening.has_begun.wait(PATIENCE_S)
        opening.may_end.set()
        first, *others = [run.result(PATIENCE_S)["y"] for run in runs]
    for other in others:
        np.testing.assert_array_equal(other, first)
    assert opening.sizes == [SLOW]


def test_a_batch_size_that_is_being_opened_during_close_finishes_its_run(
    model: LoadedBatches, opening: Opening
) -> None:
    with ThreadPoolExecutor(1) as callers:
        slow = callers.submit(model.run, image(SLOW))
        assert opening.has_begun.wait(PATIENCE_S)
        model.close()
        opening.may_end.set()
        assert slow.result(PATIENCE_S)["y"].shape == (SLOW, 16, 6, 6)
    assert model.opened == ()
    with pytest.raises(UsageError, match="closed"):
        model.run(image(SLOW))
