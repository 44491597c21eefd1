"""Which operators run without sessions in each version of onnxruntime, and whether they compute the same bits there.

    python benchmarks/invoked_versions.py [--versions 1.22,1.32] [--models M,...] [--folder F] [-o F.json]
    python benchmarks/invoked_versions.py --python NAME=COMMAND [--models M,...]

Each version, from the oldest that is supported to the newest on PyPI, is installed into an environment of its own, with
iosched from one wheel. There a child compiles each model for two lanes, once with operators invoked and once in
sessions alone. It counts kernels by operator and compares outputs: bit for bit with each other, and within tolerance
with plain onnxruntime. A child that crashes is a result. `--python` uses a Python that has all packages already, such
as one for another processor under emulation. A model is `chain` or a name of `cpu_models.py`. Measures nothing.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import venv
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
from cpu_models import cpu_model
from onnx import ModelProto, TensorProto, helper, numpy_helper
from testbed import RESULTS, keep_results, print_table

from iosched.models.errors import ExecutionError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.facts import package_version
from iosched.runtime.compare import compare
from iosched.runtime.cpu import proofs
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.checks import operators_of
from iosched.runtime.cpu.kernels import is_invocable
from iosched.runtime.cpu.native import NativeExecutor, NativeKernel, NativeRuntime
from iosched.runtime.cpu.native_kernels import RuntimeHandle, operator, prepare
from iosched.runtime.inputs import random_inputs
from iosched.runtime.processor import read_processor
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import greedy

ROOT = Path(__file__).parents[1]
KEPT = RESULTS / "invoked-versions.json"
MODELS = (
    *("chain", "zoo:squeezenet", "zoo:googlenet"),
    *("light_inception_v2", "light_shufflenet", "light_densenet121", "light_resnet50"),
)
LANES = 2
ROUNDS = 10  # of the chain's kinds of operators
SECONDS = 900  # that a child may take
HEADERS = ("onnxruntime", "model", "invoked", "in sessions", "same bits", "as onnxruntime")

Found = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    if options.child:
        print(json.dumps(tried(options.child)))
        return
    models = options.models.split(",")
    table: list[Sequence[str]] = []
    with TemporaryDirectory() as folder:
        if options.python:
            name, _, command = options.python.partition("=")
            kind, found = "pythons", iter([(name, _in_children(shlex.split(command), models))])
        else:
            kind, found = "versions", _of_versions(options, models, options.folder or Path(folder))
        for name, each in found:
            _keep(options.output, kind, name, each)
            table += rows(name, each)
    print_table(HEADERS, table)


def _keep(path: Path, kind: str, name: str, found: Found) -> None:
    """Adds to the results what was found with one version or one Python."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept = {each: known.get(each, {}) for each in ("versions", "pythons")}
    kept[kind] = {**kept[kind], name: found}
    keep_results(path, kept, goes_on=True, in_lines=True)


def tried(name: str) -> Found:
    """The kernels of a model, and checks of its outputs, on the installed onnxruntime and the compiled executor."""
    model = model_of(name)
    inputs = random_inputs(model.graph.inputs)
    with CpuBackend(model, lanes=LANES) as backend, NativeRuntime() as runtime:
        compiled = backend.compile(greedy(backend.graph))
        assert isinstance(compiled.executor, NativeExecutor)
        kernels = compiled.executor.kernels
        found = compiled.run(inputs)
        reasons = [(each, reason(runtime, each)) for each in kernels if each.invoked is None]
    with CpuBackend(model, lanes=LANES, invokes=False) as backend:
        in_sessions = backend.compile(greedy(backend.graph)).run(inputs)
    with Reference(model) as reference:
        check = compare(found, reference.run(inputs))
    return {
        "onnxruntime": package_version("onnxruntime"),
        "processor": {"name": read_processor().name, **read_processor().design},
        "invoked": _counted(each for each in kernels if each.invoked is not None),
        "in_sessions": {why: _counted(each for each, its in reasons if its == why) for _, why in reasons},
        "same_bits": {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in in_sessions.items()},
        "as_onnxruntime": check.passed,
        "max_rel": check.max_rel,
    }


def reason(runtime: NativeRuntime, kernel: NativeKernel) -> str:
    """Why a kernel has a session."""
    program, invoked = kernel.program, kernel.program.invoked
    lent = RuntimeHandle(runtime.library, runtime.handle.pointer)
    if invoked is None:
        listed = program.cores == 1 and any(map(is_invocable, ModelProto.FromString(program.model).graph.node))
        return "on the list, but of an unsuitable type or shape" if listed else "not on the list"
    try:
        prepare(lent)
    except ExecutionError as error:
        return f"no operator can be invoked: {error}"
    try:
        candidate = proofs.Candidate(program, invoked, operator(lent, invoked))
    except ExecutionError as error:
        return f"not proven: {error}"
    with mock.patch.object(proofs, "_SLOWER", math.inf):
        return "not proven: slower" if proofs.proven(lent, [candidate]) else "not proven: other results"


def _counted(kernels: Iterator[NativeKernel]) -> Mapping[str, int]:
    """How many kernels there are of each operator; those of several operators in one session are named by all."""
    return dict(sorted(Counter(map(operators_of, kernels)).items()))


def model_of(name: str) -> Model:
    return chain() if name == "chain" else cpu_model(name)


def chain() -> Model:
    """200 small operators of twenty kinds, one after another."""
    scale = numpy_helper.from_array(np.linspace(0.5, 1.5, 6, dtype=np.float32), "scale")
    bounds = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in (("low", -2), ("high", 2))]
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    kinds: list[tuple[str, list[str], dict[str, Any]]] = [
        *((kind, [], {}) for kind in ("Abs", "Sqrt")),
        *((kind, ["scale"], {}) for kind in ("Mul", "Add")),
        *((kind, [], {}) for kind in ("Log", "Erf", "HardSwish", "Softsign", "Neg", "Exp", "Selu")),
        ("Clip", ["low", "high"], {}),
        ("MaxPool", [], window),
        ("AveragePool", [], window),
        ("Softmax", [], {}),
        ("LayerNormalization", ["scale"], {}),
        ("Transpose", [], {"perm": [0, 1, 3, 2]}),
        ("LRN", [], {"size": 3}),
        *((kind, [], {}) for kind in ("Sigmoid", "Tanh")),
    ]
    steps = kinds * ROUNDS
    nodes = [
        helper.make_node(kind, [f"t{index}", *more], [f"t{index + 1}"], **attributes)
        for index, (kind, more, attributes) in enumerate(steps)
    ]
    first, end = (
        helper.make_tensor_value_info(f"t{index}", TensorProto.FLOAT, [1, 8, 6, 6]) for index in (0, len(steps))
    )
    graph = helper.make_graph(nodes, "chain", [first], [end], [scale, *bounds])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load_model(proto.SerializeToString(), name="chain")


def _of_versions(options: Namespace, models: Sequence[str], folder: Path) -> Iterator[tuple[str, Found]]:
    wheels = folder / "wheels"
    _pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT))
    (wheel,) = wheels.glob("iosched-*.whl")
    for version in options.versions.split(",") if options.versions else released():
        print(f"onnxruntime {version}", file=sys.stderr)
        python = str(folder / version / "bin" / "python")
        venv.create(folder / version, with_pip=True)
        try:
            _pip(python, "install", str(wheel), f"onnxruntime=={version}.*")
            _pip(python, "install", "--force-reinstall", "--no-deps", str(wheel))  # the folder may have an older one
        except subprocess.CalledProcessError as error:
            yield version, {"not_installed": _last_line(error.stderr)}
        else:
            yield version, _in_children([python], models)


def released() -> list[str]:
    """The minor versions of onnxruntime on PyPI for this Python, from the oldest that is supported."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    oldest = _number(extras["cpu"][0].partition(">=")[2])
    listed = _pip(sys.executable, "index", "versions", "onnxruntime")
    minors = {_number(text) for text in re.findall(r"\b\d+\.\d+(?=\.\d+)", listed)}
    return [".".join(map(str, each)) for each in sorted(minors) if each >= oldest]


def _number(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _pip(python: str, *words: str) -> str:
    done = subprocess.run([python, "-m", "pip", *words], check=True, capture_output=True, text=True, env=_environment())
    return done.stdout


def _environment() -> dict[str, str]:
    """Without PYTHONPATH: what it names would be found before what is installed."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _in_children(python: Sequence[str], models: Sequence[str]) -> Found:
    """What children of this Python find, one for each model."""
    found = {name: in_child(python, name) for name in models}
    shared = ("onnxruntime", "processor")
    same: dict[str, Any] = {key: each.pop(key) for each in found.values() for key in shared if key in each}
    return {**same, "models": found}


def in_child(python: Sequence[str], name: str) -> dict[str, Any]:
    """What a child finds of one model, with no proofs of earlier processes; or how it ended."""
    with TemporaryDirectory() as cache:
        environment = {**_environment(), "XDG_CACHE_HOME": cache}
        command = [*python, __file__, "--child", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return {"ended": f"not within {SECONDS} s"}
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
    return {"ended": how, "said": _last_line(done.stderr)}


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def rows(name: str, found: Found) -> Iterator[Sequence[str]]:
    """Of the table, for one version."""
    for model, each in found.get("models", {}).items():
        if "ended" in each:
            yield name, model, each["ended"], "", "", ""
            continue
        in_sessions = sum(sum(counts.values()) for counts in each["in_sessions"].values())
        answers = ("yes" if each[key] else "NO" for key in ("same_bits", "as_onnxruntime"))
        yield name, model, str(sum(each["invoked"].values())), str(in_sessions), *answers


def _options(arguments: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--versions", metavar="V,V", help="minor versions; by default all that are supported")
    parser.add_argument("--models", default=",".join(MODELS), metavar="M,M")
    parser.add_argument("--folder", type=Path, help="environments are made, or used again, here; by default they go")
    parser.add_argument("--python", metavar="NAME=COMMAND", help="use this Python, and keep its results by that name")
    parser.add_argument("--child", metavar="MODEL", help="for children: print what is found of a model as JSON")
    parser.add_argument("-o", "--output", type=Path, default=KEPT, help="raw results as JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
