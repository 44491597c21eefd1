"""`optimize` with schedule units given by the user, on every kind of device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from by_definition import groups_of
from gpu_plans import expected_outputs, relative_error
from host_cuda import needs_compiler
from host_driver import HostDriver
from host_gpu import HostGpu, attach_host, time_by_size
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import check_schedules, searched
from scripted import LATENCIES_US, fire, fire_proto, latencies_by_stage, script_models
from small_models import data, fused_chain, loaded, models
from thread_cluster import thread_pool
from variants import renamed, retrained

import iosched
from iosched.jobs.explain import explain_operator
from iosched.jobs.known_stages import known_stages
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.jobs.optimize_batches import optimize_batches
from iosched.jobs.optimize_task import optimize_on
from iosched.jobs.optimizing.estimate import estimate
from iosched.jobs.optimizing.whole_models import whole_key
from iosched.jobs.run import open_executor
from iosched.models.dynamic_batch import with_dynamic_batch
from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.load import load_model, read_unbound
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.document import ScheduleDocument, check_operators
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.unit_graph import Unit

UNITS: tuple[Unit, ...] = (("f3", "fs"), ("fc", "gs"))
"""Of `fire`; the operators of a unit may be named in any order."""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OptimizeSettings:
    """Settings with units, on a CPU with scripted latencies."""
    script_models(monkeypatch, LATENCIES_US)
    latencies_by_stage(monkeypatch)
    return OptimizeSettings(device="cpu", threads=2, profile_db=tmp_path / "p.db", units=UNITS)


def check_whole(document: ScheduleDocument, units: Sequence[Unit] = UNITS) -> None:
    """All schedules of the file keep the units whole, each in order; the file says which they are."""
    read = ScheduleDocument.from_json(document.to_json())
    assert read.units == tuple(units)
    for schedule in (read.schedule, *(each.schedule for each in read.alternatives)):
        groups = [group for stage in schedule.stages for group in stage.groups]
        for unit in units:
            (own,) = (group for group in groups if unit[0] in group)
            assert set(unit) <= set(own)


@pytest.mark.parametrize("device", ["cpu", "v100"])
def test_units_are_scheduled_shipped_run_and_explained(asked: OptimizeSettings, device: str) -> None:
    model = fire()
    result = optimize(model, replace(asked, device=device))
    check_whole(result.document)
    check_operators(result.schedule, model.graph)
    assert result.shipped == "iosched"
    executor = open_executor(model, result.document, device="cpu", threads=2)
    inputs = random_inputs(model.graph.inputs)
    assert relative_error(executor.run(inputs), expected_outputs(model, inputs)) < 1e-5
    executor.close()
    found = explain_operator(model, result.document, "f3", profile_db=asked.profile_db)
    assert (found.together, found.measurements) == (("fs", "f3"), 0)
    known = known_stages(model, result.document, asked.profile_db)
    assert len(known.stages) == len(tuple(result.schedule.stages))
    assert {members for members, _ in known.single_us} == {
        ("fs", "f3"),
        ("f1",),
        ("fc", "gs"),
        ("g1",),
        ("g3",),
        ("gc",),
    }
    assert sum(block.operators for block in estimate(model, replace(asked, device=device)).blocks) == 6


@needs_compiler
def test_units_are_kept_whole_on_an_attached_gpu(asked: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    model = fire()
    result = optimize(model, replace(asked, device="cuda"))
    check_whole(result.document)
    assert (result.cost, result.shipped) == ("measured", "iosched")
    again = optimize(model, replace(asked, device="cuda"))
    assert (again.measurements, again.schedule) == (0, result.schedule)
    executor = open_executor(model, result.document, device="cuda")
    inputs = random_inputs(model.graph.inputs)
    assert relative_error(executor.run(inputs), expected_outputs(model, inputs)) < 1e-4
    assert explain_operator(model, result.document, "f3", profile_db=asked.profile_db).together == ("fs", "f3")


@needs_compiler
def test_on_a_gpu_a_unit_is_measured_as_its_operators_in_one_group(asked: OptimizeSettings) -> None:
    gpu = HostGpu(0, "Host 1000", {}, HostDriver())
    with_units, without = (gpu.backend(fire(), "fp32", units=units) for units in (asked.units, ()))
    for unit, members in with_units.units.members.items():
        stages = (Stage(Strategy.CONCURRENT, (names,)) for names in ((unit,), members))
        assert {with_units.signature(stage) for stage in stages} == {
            without.signature(Stage(Strategy.CONCURRENT, (members,)))
        }
    assert with_units.operator_key("f1") == without.operator_key("f1")
    assert with_units.operator_key("fs") != without.operator_key("fs")


def test_measurements_of_units_are_not_reused_for_other_units(asked: OptimizeSettings) -> None:
    """The same node names mean other operators, so stages and whole models are stored under other keys."""
    model, other = fire(), replace(asked, units=(("fs", "f1"),))
    with_units, without = optimize(model, asked), optimize(model, replace(asked, units=()))
    assert with_units.document.units != without.document.units == ()
    assert optimize(model, asked).measurements == optimize(model, replace(asked, units=())).measurements == 0
    assert optimize(model, other).measurements > 0
    keys = set()
    with ProfileDatabase(asked.profile_db) as database:
        for each in (asked, other, replace(asked, units=())):
            opened = CpuDevice().open(model, each.opening, database)
            keys.add(whole_key(model, each, opened))
            opened.close()
    assert len(keys) == 3


def test_another_model_keeps_the_units_under_its_own_names(asked: OptimizeSettings) -> None:
    found = optimize(fire(), asked).document
    model = load_model(data(renamed(retrained(fire_proto()))))
    taken = optimize(model, replace(asked, units=(), schedule_from=found)).document
    names = {one.name: other.name for one, other in zip(fire().graph.operators, model.graph.operators, strict=True)}
    check_whole(taken, [tuple(names[name] for name in unit) for unit in UNITS])
    planned = optimize(fire(), OptimizeSettings(device="v100", schedule_from=found)).document
    check_whole(planned)


def test_a_cluster_keeps_the_units(asked: OptimizeSettings) -> None:
    local = optimize(fire(), asked)
    with thread_pool(cpu=2) as pool:
        found = optimize_on(pool, fire(), asked)
    check_whole(found.document)
    assert found.schedule == local.schedule
    assert len(pool.packets) > 1


def test_every_batch_size_has_the_units(asked: OptimizeSettings) -> None:
    proto = fire_proto()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    model = with_dynamic_batch(read_unbound(data(proto)), (1, 2))
    found = optimize_batches(model, (1, 2), replace(asked, device="v100"))
    for document in found.schedules.by_size.values():
        check_whole(document)


def test_units_may_be_lists_in_python(tmp_path: Path) -> None:
    path = tmp_path / "fire.onnx"
    onnx.save(fire_proto(), path)
    result = iosched.optimize(path, device="v100", units=[list(unit) for unit in UNITS])
    check_whole(result.document)


@pytest.mark.parametrize("device", ["cpu", "v100"])
def test_cyclic_units_and_units_for_throughput_are_refused(asked: OptimizeSettings, device: str) -> None:
    with pytest.raises(UsageError, match=r"unit 1 .* forms a cycle with 'f1'"):
        optimize(fire(), replace(asked, device=device, units=(("fs", "f3", "fc"),)))
    with pytest.raises(UsageError, match="omit --units or --objective"):
        optimize(fire(), replace(asked, device=device, objective="throughput"))


def test_a_unit_that_overlaps_a_fused_kernel_grows_to_contain_it_with_a_note(
    asked: OptimizeSettings,
) -> None:
    """One kernel computes d, e, p, q and g, so d, e, p and q go with m, which it reads."""
    result = optimize(loaded(fused_chain()), replace(asked, units=(("m", "d"), ("z", "y"))))
    assert result.notes == ("The unit 'm', 'd' also contains 'e', 'p', 'q': onnxruntime fuses them on this CPU.",)
    check_whole(result.document, (("m", "d"), ("z", "y")))
    groups = [group for stage in result.schedule.stages for group in stage.groups]
    assert any({"m", "d", "e", "p", "q"} <= set(group) for group in groups)


@settings(max_examples=15)
@given(models(), st.data())
def test_plans_of_units_compute_the_same_as_onnxruntime(proto: onnx.ModelProto, draws: st.DataObject) -> None:
    model = loaded(proto)
    units = draws.draw(runs_of(model.graph))
    with CpuBackend(model, lanes=2, units=units) as backend:
        joined = backend.coarse.units
        for unit in units:
            assert len({joined.unit_of[name] for name in unit}) == 1
        found = [(name, schedule, joined.expanded(schedule)) for name, schedule in searched(backend.graph)]
        for _, schedule, expanded in found:
            check_operators(expanded, model.graph)
            assert backend.lower(expanded).plan == backend.lower(schedule).plan
        check_schedules(model, backend, ((name, expanded) for name, _, expanded in found), seeds=(0,))


def runs_of(graph: ComputationGraph) -> st.SearchStrategy[tuple[Unit, ...]]:
    """Connected operators that are consecutive in topological order, which are always valid units."""
    names = [operator.name for operator in graph.operators]

    def connected(cuts: set[int]) -> tuple[Unit, ...]:
        ends = [0, *sorted(cuts), len(names)]
        runs = (tuple(names[start:end]) for start, end in pairwise(ends))
        return tuple(run for run in runs if run and len(groups_of(graph, frozenset(run))) == 1)

    return st.sets(st.integers(0, len(names))).map(connected)
