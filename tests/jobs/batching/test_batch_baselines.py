"""Models in one graph run side by side in their separate parts if that beats the schedule of the whole graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from onnx import helper
from small_models import data, proto_of, weight

from iosched.jobs.batching.batch_baselines import OpenComposition, mixed_schedules
from iosched.jobs.open_model import opened
from iosched.jobs.schedules import schedule_by
from iosched.models.batching.rewrite import batched
from iosched.models.composition.compose import compose
from iosched.models.composition.members import members_of
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.profiled_device import OpenModel, Way
from iosched.profiler.devices.resolve import resolve
from iosched.scheduler.document import check_operators

node = helper.make_node
LENGTH = 12


def chain(seed: int) -> Model:
    """A convolution of one shape for all models, a chain that only some have, and a second shared convolution."""
    shape, nodes, weights = (4, 4, 3, 3), [node("Conv", ["x", "w0"], ["t0"], pads=[1] * 4)], {"w0": weight(4, 4, 3, 3)}
    for place in range(1, LENGTH):
        kernel = 3 if place == LENGTH - 1 else 1 + 2 * ((seed + place) % 3)
        weights[f"w{place}"] = weight(*shape[:2], kernel, kernel, seed=seed)
        nodes.append(node("Conv", [f"t{place - 1}", f"w{place}"], [f"t{place}"], pads=[kernel // 2] * 4))
    return load_model(data(proto_of(nodes, {"x": [1, 4, 16, 16]}, [f"t{LENGTH - 1}"], weights)))


@contextmanager
def on_paper(model: Model, tmp_path: Path) -> Iterator[OpenModel]:
    with opened(resolve("v100", model), model, OpenSettings(), tmp_path / "profile.db") as found:
        yield found


@pytest.mark.parametrize("count", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_schedules_are_distinct_and_sorted_by_latency(count: int, tmp_path: Path) -> None:
    whole = compose({f"m{seed}": chain(seed) for seed in range(count)})
    last = f"t{LENGTH - 1}"
    ends = [tuple(f"m{seed}/{name}" for seed in range(count)) for name in ("t0", last)]
    model = batched(whole.model, ends)
    with on_paper(model, tmp_path) as device:
        found, *others = mixed_schedules(OpenComposition(model, members_of(model.proto), device))
        alone = schedule_by(device, "both")
        for each in (found, *others):
            check_operators(each.schedule, device.graph)
    texts = [Way(each.schedule).text for each in (found, *others)]
    latencies_us = [each.schedule.predicted_us or 0.0 for each in (found, *others)]
    assert len(set(texts)) == len(texts)
    assert latencies_us == sorted(latencies_us)
    assert (found.schedule.predicted_us or 0.0) <= (alone.schedule.predicted_us or 0.0)
    if count == 6:
        longest = max(len(group) for stage in found.schedule.stages for group in stage.groups)
        assert longest == LENGTH - 2
        assert (found.schedule.predicted_us or 0.0) < (alone.schedule.predicted_us or 0.0)


def test_models_that_share_operators_run_side_by_side_in_their_separate_parts(tmp_path: Path) -> None:
    whole = compose({f"m{seed}": chain(seed) for seed in range(2)})
    model = batched(whole.model, [("m0/t0", "m1/t0")])
    with on_paper(model, tmp_path) as device:
        found = mixed_schedules(OpenComposition(model, members_of(model.proto), device))
    with on_paper(whole.model, tmp_path) as device:
        apart = mixed_schedules(OpenComposition(whole.model, whole.members, device))
    longest = [max(len(group) for stage in each.schedule.stages for group in stage.groups) for each in found]
    assert LENGTH - 1 in longest
    assert len(apart) <= 2
