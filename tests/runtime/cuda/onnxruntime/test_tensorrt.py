"""TensorRT in onnxruntime: present only where it runs all of a model, in a separate process in fp32."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, strategies
from onnx import TensorProto, helper
from platformdirs import user_cache_dir
from scripted import fire
from small_models import loaded, proto_of
from tensorrt_stand_in import LISTED, stand_in

from iosched.models.errors import DeviceError, SeparateProcessError
from iosched.runtime.cuda.onnxruntime import tensorrt
from iosched.runtime.cuda.onnxruntime.tensorrt import Engine, TensorrtModel, TensorrtProcess, open_whole, written
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference

MODEL = fire()
INPUTS = random_inputs(MODEL.graph.inputs)


Install = Callable[..., Callable[[], list[Any]]]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of engines, in which nothing temporary may stay."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = Path(user_cache_dir("iosched", appauthor=False)) / "tensorrt"
    yield folder
    assert not [*folder.glob("building-*")]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Install:
    return lambda fault="": stand_in(monkeypatch, tmp_path / "log", fault)


def engine(precision: str = "fp32", key: str = "a model on a GPU") -> Engine:
    return Engine(0, precision, key)


def test_a_missing_provider_is_an_error_before_a_process_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tensorrt, "COMMAND", ("/nowhere",))
    with pytest.raises(DeviceError, match=r"no TensorRT provider; .*pip install"):
        TensorrtProcess(MODEL, engine())


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_provider_without_its_library_is_missing(
    precision: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real process, and this one, with an onnxruntime for CPUs that claims to have the provider."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: LISTED)
    with pytest.raises(
        DeviceError, match=r"^TensorRT's libnvinfer\.so\.10 does not load; pip install 'tensorrt-cu13==10\.\*'$"
    ):
        open_whole(MODEL, engine(precision))


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_onnxruntime_refuses_to_fall_back_for_real(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = pytest.raises(DeviceError, match=r"TensorRT does not run the whole model: .*explicitly disabled")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: LISTED)
    with written(MODEL, engine()) as path, refused:
        tensorrt._whole_session(path, {})


@pytest.mark.parametrize(
    ("content", "cuda", "words"),
    [
        (None, "", "libnvinfer.so.10 does not load; pip install 'tensorrt-cu13==10.*'"),
        (b"\0libnvinfer.so.987\0", "12.8", "libnvinfer.so.987 does not load; pip install 'tensorrt-cu12==987.*'"),
    ],
)
def test_the_library_that_onnxruntime_needs_is_named(
    content: bytes | None, cuda: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(onnxruntime, "cuda_version", cuda, raising=False)
    if content is not None:
        (tmp_path / "capi").mkdir()
        (tmp_path / "capi" / "libonnxruntime_providers_tensorrt.so").write_bytes(content)
    with pytest.raises(DeviceError, match=re.escape(words)):
        tensorrt._loaded_version()


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def test_a_separate_process_computes_the_same_as_onnxruntime(precision: str, install: Install) -> None:
    log = install()
    with closing(TensorrtProcess(MODEL, engine(precision))) as opened:
        with Reference(MODEL) as reference:
            expected = reference.run(INPUTS)
        found = opened.run(INPUTS)
        assert found.keys() == expected.keys()
        for name, array in found.items():
            np.testing.assert_array_equal(array, expected[name])
        assert opened.time(INPUTS, 3) == (1.0, 1.0, 1.0)
        assert opened.description.startswith("TensorRT 10.13.2 in onnxruntime 1.")
    (entry,) = log()
    assert entry["pid"] != os.getpid()
    assert entry["tf32"] == ("0" if precision == "fp32" else None)
    assert "NVIDIA_TF32_OVERRIDE" not in os.environ
    assert entry["trt_fp16_enable"] == str(precision == "fp16")
    assert (entry["device_id"], entry["trt_engine_cache_enable"], entry["user_compute_stream"] != "0") == (
        "0", "True", True,
    )  # fmt: skip


def test_arrays_pass_through_the_process_unchanged(install: Install) -> None:
    install()
    kinds = {"x": (TensorProto.FLOAT, [2, 3]), "b": (TensorProto.BOOL, [4]), "n": (TensorProto.INT64, [])}
    nodes = [helper.make_node("Identity", [name], [f"{name}2"]) for name in kinds]
    outputs = {f"{name}2": kind for name, (kind, _) in kinds.items()}
    model = loaded(proto_of(nodes, kinds, outputs, name="copies"), "copies")
    arrays = {
        "x": strategies.lists(strategies.floats(width=32), min_size=6, max_size=6),
        "b": strategies.lists(strategies.booleans(), min_size=4, max_size=4),
        "n": strategies.integers(-(2**63), 2**63 - 1),
    }
    with closing(TensorrtProcess(model, engine())) as opened:

        @given(strategies.fixed_dictionaries(arrays))
        def copied(values: dict[str, Any]) -> None:
            specs = model.graph.inputs
            sent = {spec.name: np.array(values[spec.name], spec.dtype).reshape(spec.shape) for spec in specs}
            found = opened.run(sent)
            for name, array in sent.items():
                np.testing.assert_array_equal(found[f"{name}2"], array)
                assert found[f"{name}2"].dtype == array.dtype

        copied()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_only_fp32_runs_in_a_separate_process(precision: str, install: Install) -> None:
    log = install()
    with closing(open_whole(MODEL, engine(precision))) as opened:
        assert opened.time(INPUTS, 2) == (1.0, 1.0)
        with Reference(MODEL) as reference:
            np.testing.assert_array_equal(opened.run(INPUTS)["gc"], reference.run(INPUTS)["gc"])
    assert isinstance(opened, TensorrtProcess if precision == "fp32" else TensorrtModel)
    assert (log()[0]["pid"] == os.getpid()) == (precision == "fp16")


def test_an_engine_is_built_once_for_each_key(cache: Path, install: Install) -> None:
    log = install()
    for key in ("a", "a", "b", "a"):
        open_whole(MODEL, engine("fp16", key)).close()
    assert [entry["built"] for entry in log()] == [True, False, True, False]
    assert len([*cache.iterdir()]) == 2
    assert all(each.suffix == "" and (each / "engine").exists() for each in cache.iterdir())


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("not installed", "TensorRT's libnvinfer.so.10 does not load; pip install 'tensorrt-cu13==10.*'"),
        ("no libraries", "TensorRT does not run the whole model: .*assigned to the default CPU EP"),
        ("falls back silently", "TensorRT does not run the whole model, but CPUExecutionProvider"),
        ("runs a part", "TensorRT does not run the whole model, but CPUExecutionProvider, TensorrtExecutionProvider"),
    ],
)
def test_a_model_not_fully_on_tensorrt_is_refused_with_a_one_line_reason(
    fault: str, reason: str, cache: Path, install: Install
) -> None:
    install(fault)
    with pytest.raises(DeviceError, match=reason) as found:
        open_whole(MODEL, engine("fp16"))
    assert "\n" not in str(found.value)
    assert not [*cache.iterdir()]  # no engine is kept


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("runs a part", "TensorRT does not run the whole model, but CPUExecutionProvider, TensorrtExecutionProvider"),
        ("dies while it builds", "its process ended with status 3"),
    ],
)
def test_a_process_that_opens_nothing_names_the_reason(fault: str, reason: str, cache: Path, install: Install) -> None:
    install(fault)
    with pytest.raises(SeparateProcessError, match=f"^{reason}$"):
        TensorrtProcess(MODEL, engine())
    assert not [*cache.iterdir()]


def test_building_an_engine_times_out(install: Install) -> None:
    install("builds slowly")
    began = time.monotonic()
    with pytest.raises(SeparateProcessError, match="did not open the model within 3 s"):
        TensorrtProcess(MODEL, engine(), limit_s=3.0)
    assert time.monotonic() - began < 50


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("dies", "its process ended with status 7"),
        ("hangs", "its process did not time the model within 1 s"),
        pytest.param("fails", "illegal memory access", marks=pytest.mark.slow),
    ],
)
def test_a_failed_process_has_ended_and_later_calls_report_it(
    fault: str, reason: str, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(fault)
    monkeypatch.setattr(tensorrt, "RUN_S", 0.0)
    opened = TensorrtProcess(MODEL, engine())
    monkeypatch.setattr(tensorrt, "ANSWER_S", 1.0 if fault == "hangs" else 60.0)
    with pytest.raises(SeparateProcessError, match=reason):
        opened.run(INPUTS) if fault == "fails" else opened.time(INPUTS, 2)
    with pytest.raises(SeparateProcessError, match="its process ended with status"):
        opened.time(INPUTS, 2)
    opened.close()


def test_the_process_ends_when_its_input_is_closed(install: Install) -> None:
    install()
    opened = TensorrtProcess(MODEL, engine())
    process = opened._process
    assert process.stdin is not None
    process.stdin.close()  # as when this process ends, however it does
    assert process.wait(30) == 0
    opened.close()


@pytest.mark.slow
def test_ctrl_c_does_not_end_the_process(install: Install) -> None:
    install()
    with closing(TensorrtProcess(MODEL, engine())) as opened:
        opened._process.send_signal(signal.SIGINT)
        assert opened.time(INPUTS, 1) == (1.0,)


def test_a_cache_folder_that_cannot_be_written_is_an_error(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DeviceError, match="the cache folder cannot keep an engine"):
        TensorrtProcess(MODEL, engine())
