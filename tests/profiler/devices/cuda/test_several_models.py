"""`batch` from end to end, on a GPU emulated in host memory."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from batches import assert_as_alone
from gpu_plans import relative_error
from host_cuda import needs_compiler
from host_gpu import attach_host, time_by_size
from small_models import chains

from iosched.jobs.batch import BatchSettings, batch
from iosched.jobs.run import open_executor
from iosched.models.composition.members import members_of
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference

pytestmark = needs_compiler


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["auto", "packed"])
def test_several_models_run_in_the_way_that_was_found_fastest(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    models = chains(3)
    settings = BatchSettings(device="cuda", policy=policy, profile_db=tmp_path / "p.db")
    result = batch(models, settings)
    (found,) = result.clusters
    assert (result.device_kind, result.device_name, result.cost) == ("cuda", "Host 1000", "measured")
    assert not result.notes
    assert [row.name for row in found.rows][:2] == (["packed"] if policy == "packed" else ["serial", "packed"])
    assert found.latency_us(found.shipped) == min(row.latency_us for row in found.rows)
    assert not found.document.is_plain
    assert_as_alone(found.model, members_of(found.model.proto), models)
    inputs = random_inputs(found.model.graph.inputs)
    with closing(open_executor(found.model, found.document, device="cuda:0")) as executor:
        outputs = executor.run(inputs)
    with Reference(found.model) as session:
        assert relative_error(outputs, session.run(inputs)) < 1e-4
