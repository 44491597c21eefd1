"""`optimize --batch-sizes`, and other commands on the file that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import Result
from small_models import branches

from iosched.jobs import optimize as job
from iosched.jobs.optimize import optimize
from iosched.models.errors import DeviceError
from iosched.scheduler.batch_schedules import BatchSchedules

Invoke = Callable[..., Result]
Complains = Callable[..., str]


@pytest.fixture
def dynamic(workdir: Path) -> Path:
    """`dynamic.onnx` in the working folder, whose batch is dynamic."""
    path = workdir / "dynamic.onnx"
    onnx.save(branches("n"), path)
    return path


@pytest.fixture
def several(invoke: Invoke, dynamic: Path) -> Path:
    """`dynamic.iosched.onnx` with schedules for batch sizes 1 and 4, and `dynamic.schedule.json`."""
    result = invoke("optimize", dynamic, "--device", "v100", "--batch-sizes", "4,1", "-q")
    assert result.exit_code == 0, result.stderr
    return dynamic.with_name("dynamic.iosched.onnx")


def test_one_file_has_a_schedule_for_each_size(invoke: Invoke, dynamic: Path) -> None:
    result = invoke("optimize", dynamic, "--device", "v100", "--batch-sizes", "16,1", "--batch-sizes", "4,1")
    assert result.exit_code == 0, result.stderr
    titles = [line for line in result.stdout.splitlines() if line.startswith("dynamic, batch size")]
    assert [title.split(",")[1] for title in titles] == [" batch size 1", " batch size 4", " batch size 16"]
    assert "Next:  iosched run dynamic.iosched.onnx --batch-size 16 --check" in result.stdout
    written = onnx.load("dynamic.iosched.onnx")
    inside = next(item.value for item in written.metadata_props if item.key == "io.iosched.schedules")
    assert inside == Path("dynamic.schedule.json").read_text()
    assert BatchSchedules.from_json(inside).batch_sizes == (1, 4, 16)
    assert written.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"


def test_json_has_an_object_for_each_size(invoke: Invoke, dynamic: Path) -> None:
    result = invoke("optimize", dynamic, "--device", "v100", "--batch-sizes", "1,4", "--json", "-q")
    found = json.loads(result.stdout)
    assert (found["output"], found["schedule"]) == ("dynamic.iosched.onnx", "dynamic.schedule.json")
    assert (found["batch_sizes"], found["failed"], found["left"]) == ([1, 4], [], [])
    alone = json.loads(invoke("optimize", dynamic, "--device", "v100", "--batch-size", 4, "--json", "-q").stdout)
    (one, four) = found["results"]
    assert (one["batch_size"], four["batch_size"]) == (1, 4)
    assert four.keys() - {"batch_size"} == alone.keys() - {"model", "output", "schedule", "provenance"}
    assert "provenance" in found
    assert four["latency_us"] == alone["latency_us"]


def test_batch_sizes_with_one_size_equals_batch_size(invoke: Invoke, dynamic: Path) -> None:
    for option in ("--batch-sizes", "--batch-size"):
        assert invoke("optimize", dynamic, "--device", "v100", option, "4", "-o", f"{option}.onnx").exit_code == 0
    assert Path("--batch-sizes.onnx").read_bytes() == Path("--batch-size.onnx").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--batch-sizes", "1,0"), "'0' is not a batch size"),
        (("--batch-sizes", "1,-4"), "'-4' is not a batch size"),
        (("--batch-sizes", "1,x"), "'x' is not a batch size"),
        (("--batch-sizes", "1," + "9" * 30), "is not a batch size"),
        (("--batch-sizes", "1,4", "--batch-size", "1"), "contradict each other"),
        (("--batch-sizes", "1,4", "--input-shape", "x=2x8x6x6"), "which is none of 1, 4"),
        (("--batch-sizes", ",".join(map(str, range(1, 66)))), "1 to 64 positive batch sizes"),
        (("--batch-sizes", "1,4", "-o", "-", "--json"), "both write to stdout"),
    ],
)
def test_wrong_sizes_are_refused(invoke: Invoke, dynamic: Path, words: tuple[str, ...], message: str) -> None:
    result = invoke("optimize", dynamic, "--device", "v100", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert not Path("dynamic.iosched.onnx").exists()


def test_a_size_that_fails_is_reported_and_the_others_are_written(
    invoke: Invoke, dynamic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_at_4(model: object, *rest: object) -> object:
        if model.batch_size == 4:  # type: ignore[attr-defined]
            raise DeviceError("the memory is too small")
        return optimize(model, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(job, "optimize", fails_at_4)
    result = invoke("optimize", dynamic, "--device", "v100", "--batch-sizes", "1,4,16", "--json")
    assert result.exit_code == 3
    assert "Batch size 4 failed; the files have the schedules for the others." in result.stderr
    assert "Error: the memory is too small" in result.stderr
    assert json.loads(result.stdout)["failed"] == [{"batch_size": 4, "error": "the memory is too small"}]
    assert BatchSchedules.from_json(Path("dynamic.schedule.json").read_text()).batch_sizes == (1, 16)


def test_a_dry_run_covers_each_size(invoke: Invoke, dynamic: Path) -> None:
    result = invoke("optimize", dynamic, "--device", "v100", "--batch-sizes", "1,4", "--dry-run", "--json")
    assert [json.loads(line)["model"] for line in result.stdout.splitlines()] == ["dynamic", "dynamic"]
    text = invoke("optimize", dynamic, "--device", "v100", "--batch-sizes", "1,4", "--dry-run").stdout
    assert [line for line in text.splitlines() if line.startswith("Batch")] == ["Batch size 1", "Batch size 4"]


def test_schedule_from_takes_a_file_with_several_sizes(invoke: Invoke, several: Path, model: Path) -> None:
    words = ("--device", "v100", "--schedule-from", several)
    result = invoke("optimize", "dynamic.onnx", *words, "--batch-sizes", "1,4", "-o", "again.onnx")
    assert result.exit_code == 0, result.stderr
    assert Path("again.schedule.json").exists()
    one = invoke("optimize", "dynamic.onnx", *words, "--batch-size", "3", "-o", "three.onnx")
    assert "using the one for 4, the nearest" in one.stderr
    assert invoke("show", "three.onnx", "--json").exit_code == 0


def test_a_pipeline_through_stdout(invoke: Invoke, dynamic: Path) -> None:
    data = invoke("optimize", "-", "--device", "v100", "--batch-sizes", "1,4", "-o", "-", stdin=dynamic.read_bytes())
    assert data.exit_code == 0
    result = invoke("run", "-", "--check", "--batch-size", "4", "--threads", "1", stdin=data.stdout_bytes)
    assert result.exit_code == 0, result.stderr
    assert "4x16x6x6" in result.stdout


@pytest.mark.parametrize(
    ("batch_size", "said"),
    [
        (None, "has schedules for batch sizes 1, 4: using batch size 1."),
        (1, None),
        (4, None),
        (3, "There is no schedule for batch size 3: using the one for 4, the nearest."),
        (40, "using the one for 4, the nearest"),
    ],
)
def test_run_takes_the_schedule_for_the_batch_size_or_the_nearest(
    invoke: Invoke, several: Path, batch_size: int | None, said: str | None
) -> None:
    words = () if batch_size is None else ("--batch-size", batch_size)
    result = invoke("run", several, *words, "--check", "--threads", "1", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["outputs"]["y"] == [batch_size or 1, 16, 6, 6]
    assert found["check"]["passed"]
    assert said is None or said in result.stderr
    assert said is not None or "schedule for batch" not in result.stderr
    assert "analytic" in result.stderr  # so a schedule runs


def ships_plain_at_four(path: Path) -> None:
    """Marks plain onnxruntime as shipped at batch size 4 in the file."""
    proto = onnx.load(path)
    item = next(each for each in proto.metadata_props if each.key == "io.iosched.schedules")
    content = json.loads(item.value)
    next(each for each in content["schedules"] if each["batch_size"] == 4)["schedule"]["shipped"] = "reference"
    item.value = json.dumps(content)
    onnx.save(proto, path)


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        ((), {"batch_size": 1, "exact": True, "shipped": "iosched"}),
        (("--batch-size", 4), {"batch_size": 4, "exact": True, "shipped": "reference"}),
        (("--batch-size", 7), {"batch_size": 4, "exact": False, "shipped": "reference"}),
    ],
)
def test_json_of_run_says_which_schedule_ran(
    invoke: Invoke, several: Path, words: tuple[object, ...], schedule: dict[str, object]
) -> None:
    ships_plain_at_four(several)
    assert json.loads(invoke("run", several, *words, "--threads", "1", "--json").stdout)["schedule"] == schedule


def test_check_compares_a_schedule_only_if_it_ships_and_check_schedule_compares_any(
    invoke: Invoke, several: Path
) -> None:
    ships_plain_at_four(several)
    for size, option, checks in ((1, "--check", True), (4, "--check", False), (4, "--check-schedule", True)):
        result = invoke("run", several, "--batch-size", size, option, "--threads", "1", "--json")
        assert result.exit_code == 0, result.stderr
        assert (json.loads(result.stdout)["check"] is not None) == checks
        assert ("Nothing to compare" in result.stderr) != checks


def test_run_without_a_schedule_says_that_none_ran(invoke: Invoke, dynamic: Path) -> None:
    assert json.loads(invoke("run", dynamic, "--batch-size", 2, "--json").stdout)["schedule"] is None


def test_inspect_lists_the_batch_sizes_and_what_ships_at_each(invoke: Invoke, several: Path) -> None:
    ships_plain_at_four(several)
    assert json.loads(invoke("inspect", several, "--json").stdout)["schedules"] == [
        {"batch_size": 1, "shipped": "iosched"}, {"batch_size": 4, "shipped": "reference"},
    ]  # fmt: skip
    text = invoke("inspect", several).stdout
    assert "with schedules for batch sizes 1 (iosched ships), 4 (reference ships)" in text


def test_inspect_says_what_ships_of_a_file_for_one_size(invoke: Invoke, dynamic: Path) -> None:
    invoke("optimize", dynamic, "--device", "v100", "--batch-size", 4, "-q")
    text = invoke("inspect", "dynamic.iosched.onnx").stdout
    assert "with a schedule for batch size 4 (iosched ships)" in text


def test_run_takes_the_batch_size_from_its_input_file(invoke: Invoke, several: Path) -> None:
    np.save("x.npy", np.ones((4, 8, 6, 6), np.float32))
    result = invoke("run", several, "--input", "x=x.npy", "--check", "--threads", "1", "--json")
    assert json.loads(result.stdout)["outputs"]["y"] == [4, 16, 6, 6]
    assert "using batch size" not in result.stderr


def test_run_takes_schedules_from_a_file(invoke: Invoke, several: Path) -> None:
    words = ("dynamic.onnx", "--schedule", "dynamic.schedule.json", "--threads", "1", "--check")
    assert invoke("run", *words, "--batch-size", "4").exit_code == 0
    result = invoke("run", *words, "--batch-size", "2")
    assert (result.exit_code, "using the one for 1, the nearest" in result.stderr) == (0, True)


@pytest.mark.parametrize("words", [("show",), ("explain", "c")])
@pytest.mark.parametrize("source", ["dynamic.iosched.onnx", "dynamic.schedule.json"])
def test_commands_on_schedules_take_one_of_them(
    invoke: Invoke, several: Path, words: tuple[str, ...], source: str
) -> None:
    command, *rest = words
    model = ("--model", "dynamic.onnx") if source.endswith("json") else ()
    result = invoke(command, source, *rest, *model, "--json", "--batch-size", "4")
    assert result.exit_code == 0, result.stderr
    default = invoke(command, source, *rest, *model, "--json")
    assert "has schedules for batch sizes 1, 4: using the one for 1" in default.stderr
    assert json.loads(default.stdout) != json.loads(result.stdout)
    missing = invoke(command, source, *rest, *model, "--batch-size", "3")
    assert missing.exit_code == 2
    assert "has no schedule for batch size 3, only for batch sizes 1, 4" in missing.stderr


def test_a_schedule_for_one_size_refuses_another_size(invoke: Invoke, model: Path) -> None:
    invoke("optimize", model, "--device", "v100")
    assert invoke("show", "branches.schedule.json", "--batch-size", "1").exit_code == 0
    result = invoke("show", "branches.schedule.json", "--batch-size", "2")
    assert (result.exit_code, "a schedule for batch size 1 only" in result.stderr) == (2, True)


def test_diff_compares_two_sizes_of_one_file(invoke: Invoke, several: Path) -> None:
    sizes = ("--batch-size", "1", "--batch-size", "4")
    assert invoke("diff", several, several, "--batch-size", "4").exit_code == 0
    assert invoke("diff", several, several, *sizes).exit_code == 2
    result = invoke("diff", several, several, *sizes, "--anyway", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["a"]["latency_us"] != json.loads(result.stdout)["b"]["latency_us"]
    assert "more than twice" in invoke("diff", several, several, *sizes, "--batch-size", "1").stderr


def test_other_commands_take_the_smallest_size_and_say_so(invoke: Invoke, several: Path) -> None:
    result = invoke("inspect", several, "--json")
    assert json.loads(result.stdout)["operators"] == 3
    assert "using batch size 1" in result.stderr
    words = ("--with", "iosched", "--threads", "1", "--rounds", "3", "--json")
    rows = invoke("bench", several, "--batch-size", "1", "--batch-size", "4", *words)
    assert [json.loads(line)["batch_size"] for line in rows.stdout.splitlines()] == [1, 4]


@pytest.mark.parametrize("text", ["{}", "[", '{"format": "iosched.schedule", "version": 9}'])
def test_broken_schedules_inside_a_model_are_refused(
    invoke: Invoke, several: Path, complains: Complains, text: str
) -> None:
    proto = onnx.load(several)
    next(item for item in proto.metadata_props if item.key == "io.iosched.schedules").value = text
    onnx.save(proto, several)
    complains(invoke("run", several), 2, "the schedules inside the model")
    complains(invoke("show", several), 2, "the schedules inside the model")


def test_schedules_of_another_model_are_refused(invoke: Invoke, several: Path, complains: Complains) -> None:
    onnx.save(branches("n", channels=4), "other.onnx")
    words = ("--schedule", "dynamic.schedule.json", "--batch-size", "4", "--threads", "1")
    complains(invoke("run", "other.onnx", *words, "-q"), 2, "shape")
