"""Several models become one file that computes the same as each model alone and runs in the fastest way found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from batches import assert_as_alone
from onnx import helper
from scripted import Asked, script_stages
from small_models import chain, chains, data, headed, loaded, proto_of, weight

from iosched.jobs import batch as batch_job
from iosched.jobs.batch import CUT_SHORT, BatchSettings, batch
from iosched.jobs.run import open_executor
from iosched.models.composition.members import members_of
from iosched.models.errors import ExecutionError, InvalidModelError, MismatchError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.zoo.light import light_model
from iosched.profiler.devices.cpu import device as cpu_device
from iosched.profiler.devices.cpu import open as cpu_open
from iosched.profiler.measuring.interleaved_models import Budget
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.compare import compare
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.document import check_operators

V100 = BatchSettings(device="v100")


def checked(models: dict[str, Model], settings: BatchSettings = V100) -> batch_job.ClusterResult:
    """The only cluster, after a check that its model computes the same as each model alone."""
    (found,) = batch(models, settings).clusters
    assert_as_alone(found.model, members_of(found.model.proto), models)
    check_operators(found.document.schedule, found.model.graph)
    return found


@pytest.mark.parametrize("policy", ["auto", "dpbat", "greedy", "fcfs"])
def test_the_fastest_of_four_ways_ships(policy: str) -> None:
    found = checked(chains(3), replace(V100, policy=policy))
    assert [row.name for row in found.rows] == ["serial", "packed", "batched", "mixed"]
    assert found.latency_us(found.shipped) == pytest.approx(min(row.latency_us for row in found.rows))
    assert found.document.shipped == found.shipped
    assert found.document.latency_us["predicted"] == found.latency_us(found.shipped)
    assert all(row.low_us <= row.latency_us <= row.high_us for row in found.rows if row.low_us and row.high_us)


def test_without_batching_models_run_as_the_policy_says() -> None:
    (whole,) = batch(chains(3), replace(V100, policy="serial")).clusters
    assert (whole.shipped, whole.batched, [row.name for row in whole.rows]) == ("serial", 0, ["serial"])
    (packed,) = batch(chains(3), replace(V100, policy="packed")).clusters
    assert (packed.shipped, [row.name for row in packed.rows]) == ("packed", ["packed"])
    assert packed.document.search.strategy == "packed"
    (stage,) = packed.document.schedule.stages
    assert [{name[0] for name in group} for group in stage.groups] == [{"a"}, {"b"}, {"c"}]


def test_a_backbone_that_models_share_is_computed_and_stored_once() -> None:
    models = {name: loaded(headed(seed), name) for seed, name in enumerate("ab")}
    found = checked(models, replace(V100, shared_inputs=("x",)))
    assert found.shared == 2
    assert found.memory.alone_nbytes - found.memory.together_nbytes == 4 * 4 * 4 * 9
    assert [spec.name for spec in found.model.graph.inputs] == ["x"]
    alone = [member.latency_us for member in found.members]
    assert None not in alone
    assert sum(each or 0 for each in alone) == pytest.approx(found.latency_us("serial"))


@pytest.mark.parametrize("count", [2, 8])
def test_on_a_simulated_gpu_a_shared_backbone_is_compared_with_a_backbone_per_model(count: int) -> None:
    models = {f"m{seed}": loaded(headed(seed), f"m{seed}") for seed in range(count)}
    apart, found = checked(models), checked(models, replace(V100, shared_inputs=("x",)))
    for row in ("serial", "packed"):
        assert found.latency_us(row) == pytest.approx(apart.latency_us(row))
    assert (found.latency_us("serial") or 0) > 1.5 * (found.latency_us("mixed") or 0)
    assert found.shipped in ("batched", "mixed")
    assert [spec.name for spec in found.model.graph.inputs] == ["x"]


def test_models_that_share_a_backbone_ship_serially_with_the_serial_policy() -> None:
    models = {name: loaded(headed(seed), name) for seed, name in enumerate("ab")}
    found = checked(models, replace(V100, shared_inputs=("x",), policy="serial"))
    assert ([row.name for row in found.rows], found.shipped) == (["serial"], "serial")
    assert [spec.name for spec in found.model.graph.inputs] == ["x"]


def test_models_that_do_not_fit_into_the_memory_together_go_into_several_files() -> None:
    models = chains(4)
    nbytes = sum(array.nbytes for array in models["a"].weights.values()) + 3 * 4 * 4 * 12 * 12
    found = batch(models, replace(V100, memory_nbytes=2 * nbytes))
    assert [[member.name for member in each.members] for each in found.clusters] == [["a", "b"], ["c", "d"]]
    assert found.n_models == 4
    serial = next(row for row in found.rows if row.name == "serial")
    assert serial.latency_us == sum(each.latency_us("serial") or 0 for each in found.clusters)
    assert serial.low_us is None


def test_models_of_different_opsets_and_skeletons_are_combined() -> None:
    first = loaded(chain(0, kind="Sigmoid", opset=11), "old")
    checked({"old": first, "new": loaded(chain(1, channels=6), "new"), "net": squeezenet()})


def test_a_single_model_has_no_packed_or_batched_row() -> None:
    found = checked({"only": chains(1)["a"]})
    assert [row.name for row in found.rows] == ["serial", "mixed"]
    (packed,) = batch(chains(1), replace(V100, policy="packed")).clusters
    assert packed.shipped == "serial"


def test_the_shipped_file_runs_and_computes_the_same(tmp_path: Path) -> None:
    models = chains(2)
    settings = BatchSettings(device="cpu", threads=2, budget_s=0.5, profile_db=tmp_path / "db")
    (found,) = batch(models, settings).clusters
    assert {row.name for row in found.rows} >= {"serial", "packed", "mixed"}
    inputs = random_inputs(found.model.graph.inputs)
    with closing(open_executor(found.model, found.document, threads=2)) as executor, Reference(found.model) as session:
        assert compare(executor.run(inputs), session.run(inputs)).passed


@pytest.mark.parametrize("policy", ["serial", "packed"])
def test_the_document_records_whether_plain_onnxruntime_ships(policy: str, tmp_path: Path) -> None:
    settings = BatchSettings(device="cpu", threads=2, policy=policy, budget_s=0.5, profile_db=tmp_path / "db")
    (found,) = batch(chains(2), settings).clusters
    assert [row.name for row in found.rows] == [policy]
    assert found.document.is_plain == ("onnxruntime" in found.rows[0].how)
    assert {"sessions", "reference", "lanes"} & set(found.document.runtime)


def test_batched_models_are_measured_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batched_is_fastest = {"serial": 9.0, "packed": 8.0, "batched": 1.0, "mixed": 7.0}
    measured: list[set[str]] = []

    def in_turn(candidates: Mapping[str, Candidate], *_: object) -> dict[str, Measurement]:
        for each in candidates.values():
            assert len(each.time(1)) == 1
        measured.append(set(candidates))
        return {name: summarize([batched_is_fastest.get(name, 5.0)] * 7) for name in candidates}

    monkeypatch.setattr(cpu_open, "measure_interleaved", in_turn)
    settings = BatchSettings(device="cpu", threads=2, policy="greedy", budget_s=0.5, profile_db=tmp_path / "db")
    (found,) = batch(chains(2), settings).clusters
    assert measured[-1] == set(batched_is_fastest)
    assert (found.shipped, found.batched) == ("batched", 6)
    assert_as_alone(found.model, members_of(found.model.proto), chains(2))
    inputs = random_inputs(found.model.graph.inputs)
    with closing(open_executor(found.model, found.document, threads=2)) as executor, Reference(found.model) as session:
        assert compare(executor.run(inputs), session.run(inputs)).passed


@pytest.mark.parametrize("budget_s", [None, 1e-9])
def test_a_job_cut_short_by_the_budget_has_a_note(budget_s: float | None) -> None:
    (found,) = batch(chains(2), replace(V100, budget_s=budget_s)).clusters
    assert (CUT_SHORT in found.notes) == (budget_s is not None)


@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.parametrize("after", [1, 12, None])
def test_an_interruption_ends_with_the_best_known_or_nothing(
    answer: bool, after: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while a stage is measured or, with None, while whole models are."""
    interrupt = Asked(answer)
    rounds: list[int] = []

    def in_turn(
        candidates: Mapping[str, Candidate], budget: Budget, observer: Callable[[int, int], None] | None, *_: object
    ) -> Mapping[str, Measurement]:
        rounds.append(budget.rounds)
        interrupt.came = interrupt.came or (after is None and "serial" in candidates and not interrupt.times_asked)
        if observer is not None:
            observer(1, budget.rounds)
        return {name: summarize([5.0] * 7) for name in candidates}

    monkeypatch.setattr(cpu_open, "measure_interleaved", in_turn)

    def come(count: int) -> None:
        interrupt.came = interrupt.came or count + 1 == after

    measured = script_stages(monkeypatch, come)
    settings = BatchSettings(device="cpu", threads=2, profile_db=tmp_path / "db")
    if not answer:
        with pytest.raises(KeyboardInterrupt):
            batch(chains(2), settings, interrupt=interrupt)
        return
    (found,) = batch(chains(2), settings, interrupt=interrupt).clusters
    assert interrupt.times_asked == 1
    assert after is None or len(measured) <= after + 1  # all models side by side are one stage, which is asked for too
    assert rounds[-1] < Budget().rounds
    assert_as_alone(found.model, members_of(found.model.proto), chains(2))


def test_a_cluster_that_fails_falls_back_to_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(outputs: object, inputs: object, models: dict[str, Model], members: object, *, rtol: float) -> None:
        if len(models) > 1:
            raise MismatchError("outputs of model 'a' differ from those of the model alone\nfar too long a text")

    monkeypatch.setattr(batch_job, "check_members", fails)
    found = batch(chains(2), V100)
    assert [[member.name for member in each.members] for each in found.clusters] == [["a"], ["b"]]
    assert found.notes[-1] == (
        "a, b cannot run together and run one by one instead: outputs of model 'a' differ from those of the model alone"
    )


def test_a_broken_model_ends_the_job_unless_it_is_to_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(outputs: object, inputs: object, models: dict[str, Model], members: object, *, rtol: float) -> None:
        if "b" in models:
            raise ExecutionError("onnxruntime failed")

    monkeypatch.setattr(batch_job, "check_members", fails)
    with pytest.raises(ExecutionError):
        batch(chains(3), V100)
    found = batch(chains(3), replace(V100, skip_broken=True))
    assert [each.members[0].name for each in found.clusters] == ["a", "c"]
    assert found.left_out == {"b": "b: onnxruntime failed"}
    with pytest.raises(InvalidModelError, match="no model can run: b: onnxruntime failed"):
        batch({"b": chains(1)["a"]}, replace(V100, skip_broken=True))


def test_invalid_settings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_device, "check_precision", lambda precision: None)  # as if OpenVINO supported it
    with pytest.raises(UsageError, match="no model to batch"):
        batch({}, V100)
    with pytest.raises(UsageError, match="cannot share input 'z': no model has it; the inputs are x"):
        batch(chains(2), replace(V100, shared_inputs=("z",)))
    with pytest.raises(UsageError, match=r"alone needs .* MB"):
        batch(chains(2), replace(V100, memory_nbytes=10))
    with pytest.raises(UsageError, match="no schedule runs in fp16 on this device: remove --precision"):
        batch(chains(2), BatchSettings(device="cpu", precision="fp16", profile_db=tmp_path / "db"))
    with pytest.raises(UsageError, match="unknown policy 'best'"):
        batch(chains(2), replace(V100, policy="best"))  # type: ignore[arg-type]


def test_outputs_that_differ_from_run_to_run_are_not_compared() -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["y"])]
    random = loaded(proto_of(nodes, {"x": [1, 4]}, ["y"], {}), "random")
    found = batch({"random": random, "chain": chains(1)["a"]}, V100)
    assert [member.name for member in found.clusters[0].members] == ["random", "chain"]


def squeezenet() -> Model:
    return load_model(data(light_model("squeezenet")), name="net")


def test_weights_are_not_mixed_up() -> None:
    """Models of equal skeletons whose outputs differ only because of their weights."""
    assert (weight(4, 4, 3, 3, seed=0) != weight(4, 4, 3, 3, seed=1)).any()
    found = checked(chains(2), replace(V100, policy="greedy"))
    assert {name for member in members_of(found.model.proto) for name in member.outputs.values()} == {"a/y", "b/y"}


def test_models_that_share_a_backbone_are_compared_with_models_that_do_not(tmp_path: Path) -> None:
    """In the baseline, each model computes the backbone itself."""
    models = {name: loaded(headed(seed), name) for seed, name in enumerate("ab")}
    settings = BatchSettings(device="cpu", threads=2, budget_s=0.5, profile_db=tmp_path / "db", shared_inputs=("x",))
    (found,) = batch(models, settings).clusters
    how = {row.name: row.how for row in found.rows}
    assert how.keys() == {"serial", "packed", "batched", "mixed"}
    assert all("a session for each model" in how[name] for name in ("serial", "packed"))
