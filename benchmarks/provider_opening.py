"""The part of `provider_versions.py` that runs in the environment of each onnxruntime. Prints its answer as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import iosched
from iosched.models.errors import IoschedError
from iosched.models.export import write_model
from iosched.models.zoo import build
from iosched.runtime.inputs import random_inputs
from iosched.runtime.processor import cpu_name
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.baselines import greedy
from iosched.scheduler.document import model_dtype

onnxruntime = load_onnxruntime()  # without its telemetry
CPU = "CPUExecutionProvider"
Arrays = Mapping[str, np.ndarray]


def main(task: str, *words: str) -> None:
    onnxruntime.register_execution_provider_library("iosched", iosched.plugin_path())
    print(json.dumps(TASKS[task](*words)), flush=True)


def scheduled(model: iosched.Model, path: Path) -> None:
    """Writes a model with its greedy schedule, as if found by `optimize`."""
    about = (
        model.name,
        model.digest,
        dict(model.bindings),
        model_dtype(model.graph),
        {"kind": "cpu", "name": cpu_name()},
    )
    document = iosched.ScheduleDocument(*about, greedy(model.graph), shipped="iosched")
    write_model(iosched.annotated(model, document), model.weights, path)


def exported(model: iosched.Model, folder: Path, lanes: int) -> tuple[Path, Path]:
    """A model with a schedule, and the exported one."""
    folder.mkdir(parents=True)
    source = folder / "source.iosched.onnx"
    scheduled(model, source)
    return source, iosched.export(source, folder, threads=lanes).model


def read(proto: onnx.ModelProto) -> iosched.Model:
    return iosched.load_model(proto.SerializeToString())


def opened(path: Path, way: str, profile: str = "", threads: int = 0, **given: str) -> Any:
    """A session of onnxruntime: by `devices`, by `providers`, or plain; `given` are options of the provider."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    if way == "devices":
        devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name == "iosched"]
        options.add_provider_for_devices(devices, given)
        return onnxruntime.InferenceSession(str(path), options)
    providers = ["iosched", CPU] if way == "providers" else [CPU]
    return onnxruntime.InferenceSession(str(path), options, providers=providers)


def run_by(path: Path, way: str, feed: Arrays) -> tuple[list[str], list[np.ndarray], list[str]]:
    """The providers whose nodes a run executes, its outputs, and the warnings."""
    with tempfile.TemporaryDirectory() as folder, stderr_lines() as lines:
        session = opened(path, way, str(Path(folder, "profile")))
        outputs = session.run(None, dict(feed))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    found = {each["args"]["provider"] for each in events if each.get("cat") == "Node" and "provider" in each["args"]}
    return sorted(found), outputs, [line for line in lines if "iosched" in line]


@contextmanager
def stderr_lines() -> Iterator[list[str]]:
    """The lines that this process writes to stderr, onnxruntime's too, and its Python warnings."""
    lines: list[str] = []
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("always")
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            lines += file.read().decode(errors="replace").splitlines()


def open_network(network: str, folder: str, lanes: str, rounds: str) -> dict[str, Any]:
    """Providers that run an exported network, comparison of its outputs, and opening times."""
    source, path = exported(read(build(network)), Path(folder), int(lanes))
    feed = random_inputs(iosched.load_model(path).graph.inputs)
    runs = {way: run_by(path, way, feed) for way in ("devices", "providers", "plain")}
    with iosched.load(path, strict=True) as model:
        own = list(model.run(feed).values())
    plain = runs["plain"][1]
    openers: dict[str, Callable[[], Any]] = {
        "onnxruntime": lambda: opened(path, "plain"),
        "provider": lambda: opened(path, "devices"),
        "iosched.load, plan": lambda: iosched.load(path, strict=True),
        "iosched.load, no plan": lambda: iosched.load(source, threads=int(lanes)),
    }
    return {
        "run_by": {way: found for way, (found, _, _) in runs.items()},
        "warnings": {way: texts_of(lines, Path(folder)) for way, (_, _, lines) in runs.items() if lines},
        "equal_to_own": all(map(np.array_equal, runs["devices"][1], own)),
        "equal_to_onnxruntime": all(map(np.array_equal, runs["devices"][1], plain)),
        "relative_error": max(map(relative_error, runs["devices"][1], plain)),
        "model_nbytes": sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*")),
        "plan_nbytes": path.with_suffix(".plan").stat().st_size,
        "opening_ms": opening_ms(openers, int(rounds)),
    }


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, in units of the largest expected number."""
    scale = float(np.abs(expected).max())
    return float(np.abs(found.astype(np.float64) - expected).max()) / (scale or 1.0)


def opening_ms(openers: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Opening times in milliseconds, interleaved, without the first round."""
    found: dict[str, list[float]] = {name: [] for name in openers}
    for number in range(rounds + 1):
        for name, opener in openers.items():
            began = time.perf_counter()
            session = opener()
            if number:
                found[name].append(round((time.perf_counter() - began) * 1e3, 3))
            if hasattr(session, "close"):
                session.close()
    return found


def decline(folder: str, is_changed: str) -> dict[str, Any]:
    """Providers that run a model whose plan does not match, and the warnings."""
    (path,) = (each for each in Path(folder).glob("*.onnx") if ".iosched" not in each.name)
    proto = onnx.load(path)
    if int(is_changed):
        tensor = next(each for each in proto.graph.initializer if len(each.raw_data) > 1000)
        weights = numpy_helper.to_array(tensor).copy()
        weights.flat[0] += 1
        tensor.CopyFrom(numpy_helper.from_array(weights, tensor.name))
        onnx.save(proto, path)
    feed = random_inputs(iosched.load_model(path).graph.inputs)
    by, outputs, lines = run_by(path, "devices", feed)
    plain = run_by(path, "plain", feed)[1]
    equal = all(map(np.array_equal, outputs, plain))
    return {"run_by": by, "warnings": texts_of(lines, Path(folder)), "equal_to_onnxruntime": equal}


def texts_of(lines: Sequence[str], folder: Path) -> list[str]:
    """The texts of warnings, without times and paths."""
    texts = [line.split("iosched] ")[-1].replace(f"{folder}/", "").removesuffix("\033[m") for line in lines]
    return [text.split("UserWarning: ")[-1] for text in texts]


def loop(folder: str) -> dict[str, Any]:
    """A model with a subgraph: the providers that run it, or why it is not exported."""
    info = helper.make_tensor_value_info
    floats = info("v", TensorProto.FLOAT, [4])
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "one"], ["w"]), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), floats],
        [info("d", TensorProto.BOOL, []), info("w", TensorProto.FLOAT, [4])],
    )
    nodes = [helper.make_node("Loop", ["n", "go", "x"], ["y"], body=body), helper.make_node("Relu", ["y"], ["z"])]
    constants = {"n": np.array(3, np.int64), "go": np.array(True), "one": np.ones(4, np.float32)}
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    ends = [info("x", TensorProto.FLOAT, [4])], [info("z", TensorProto.FLOAT, [4])]
    graph = helper.make_graph(nodes, "loop", *ends, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    try:
        _, path = exported(read(proto), Path(folder), 1)
    except IoschedError as error:
        return {"not_exported": str(error)}
    by, (outputs,), lines = run_by(path, "devices", {"x": np.zeros(4, np.float32)})
    return {"run_by": by, "warnings": texts_of(lines, Path(folder)), "is_right": outputs.tolist() == [3.0] * 4}


def about() -> dict[str, Any]:
    """The processor, as reported by Python, and onnxruntime's version."""
    return {"architecture": platform.machine(), "onnxruntime": onnxruntime.__version__}


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "open": open_network,
    "declined": decline,
    "loop": loop,
    "about": about,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
