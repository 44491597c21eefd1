"""The valid files to damage: small models of every kind that is read, and the files that iosched makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx
from click.testing import CliRunner
from onnx import numpy_helper, parser

from iosched.cli.main import cli
from iosched.profiler.measuring.statistics import summarize
from iosched.profiler.store.database import ProfileDatabase

WEIGHTS = "weights.bin"

_FILE = Path(__file__).with_suffix(".txt")
_TEXTS = {text.split()[0]: text for text in _FILE.read_text(encoding="utf-8").split("\n\n")}
"""The models in ONNX's text format, by their names."""

SPACE = """
from iosched.models.mutation.mutator import by_type
from iosched.models.spaces.space import Space

class Behind:
    name = "behind"

    def match(self, graph):
        return by_type("Relu")(graph)

    def mutate(self, targets, edit):
        kind = edit.choose(("Tanh", "Sigmoid", "Relu"), "kind")
        node = edit.create(kind, [targets[0].name], name=f"{targets[0].name}/more")
        for reader in edit.graph.consumers(targets[0].name):
            for place, read in enumerate(edit.graph.node(reader.name).inputs):
                if read == targets[0].name and reader.name != node.name:
                    edit.connect(node.name, edit.graph.node(reader.name), place)

space = Space("behind", (Behind(),))
"""
_FUNCTION = """<domain: "here", opset_import: ["" : 18]>
    twice <times> (a) => (b) { t = Constant <value_float: float = @times> () b = Mul(a, t) }"""


@dataclass(frozen=True)
class Seed:
    """A valid model: its bytes, and its external weights if it has any."""

    name: str
    model: bytes
    weights: bytes | None = None


@dataclass(frozen=True)
class Corpus:
    """All valid files. Models with a schedule are in `models` too, and their schedules in `schedules` by name."""

    models: tuple[Seed, ...]
    schedules: Mapping[str, str]
    profile: bytes
    profile_lines: bytes
    study: bytes
    benches: tuple[str, str]


def _weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)

    def some(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    return {
        **{"w1": some(8, 8, 1, 1), "w3": some(8, 8, 3, 3), "wd": some(8, 1, 3, 3), "wg": some(5, 8), "bg": some(5)},
        **{"scale": some(8), "shift": some(8), "mean": some(8), "variance": np.abs(some(8))},
        **{"wq": some(8, 8), "wk": some(8, 8), "wv": some(8, 8), "one": np.array([1])},
        **{"heads": np.array([1, 6, 2, 4]), "zero": np.array([0]), "halves": np.array([2, 2]), "trips": np.array(3)},
        **{"sx": np.float32(0.05), "zx": np.uint8(128), "sw": np.float32(0.02), "zw": np.int8(0)},
        "wi": random.integers(-127, 127, (8, 8, 1, 1), np.int8),
        "mask": np.array([True, False, True, True]),
        "names": np.array(["a", "b", "c"], object),
    }


def _model(name: str, text: str) -> onnx.ModelProto:
    graph = parser.parse_graph(text)
    used = {each for node in graph.node for each in node.input}
    weights = {key: value for key, value in _weights().items() if key in used}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), key) for key, value in weights.items())
    opsets = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="fuzz")
    if name == "function":
        model.opset_import.append(onnx.helper.make_opsetid("here", 1))
        model.functions.append(parser.parse_function(_FUNCTION))
    return model


def model_of(name: str) -> onnx.ModelProto:
    """One of the models, by its name."""
    return _model(name, _TEXTS[name])


def _apart(model: onnx.ModelProto) -> tuple[bytes, bytes]:
    """A model with external weights, and the bytes of their file."""
    data = b""
    for tensor in model.graph.initializer:
        length = len(tensor.raw_data)
        for key, value in (("location", WEIGHTS), ("offset", str(len(data))), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        data += tensor.raw_data
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.ClearField("raw_data")
    return model.SerializeToString(), data


def iosched(*words: str) -> str:
    """Output of a command that must succeed."""
    found = CliRunner().invoke(cli, words)
    assert found.exit_code == 0, (words, found.output, found.exception)
    return found.stdout


def made(folder: Path) -> Corpus:
    """The corpus, made by the current code in an empty working folder; takes seconds.

    Schedules are planned for a V100, and samples made up, so that the same code makes the same files.
    """
    models = {name: _model(name, text) for name, text in _TEXTS.items()}
    for name, model in models.items():
        onnx.save(model, folder / f"{name}.onnx")
    seeds = [Seed(name, model.SerializeToString()) for name, model in models.items()]
    seeds.append(Seed("external", *_apart(model_of("branches"))))
    schedules = {}
    for name in ("branches", "separable", "attention"):
        iosched("optimize", f"{name}.onnx", "--device", "v100", "-q")
        seeds.append(Seed(f"{name}.iosched", (folder / f"{name}.iosched.onnx").read_bytes()))
        schedules[name] = (folder / f"{name}.schedule.json").read_text()
    words = ("a=branches.onnx", "b=separable.onnx", "-o", "both.onnx", "--device", "v100", "-q")
    iosched("batch", *words)
    seeds.append(Seed("both", (folder / "both.onnx").read_bytes()))
    profile, lines = _profile(folder)
    return Corpus(tuple(seeds), schedules, profile, lines, _study(folder), (_bench(1.0), _bench(1.1)))


def _profile(folder: Path) -> tuple[bytes, bytes]:
    path = folder / "profile.sqlite"
    with ProfileDatabase(path, clock=lambda: datetime(2026, 1, 1, tzinfo=UTC)) as database:
        for number in range(40):
            found = summarize([50.0 + number + sample for sample in range(12)])
            database.keep_stage(f"stage {number}", _DEVICE, found)
        database.keep_calibration(_DEVICE, summarize([30.0, 31.0, 32.0]))
        database.choose("setting", _DEVICE, "2 threads")
        database._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    lines = iosched("profile", "export", "-", "--profile-db", str(path))
    return path.read_bytes(), lines.encode()


_DEVICE = json.dumps({"kind": "cpu", "name": "made up", "precision": "float32", "threads": 2, "versions": {}})


def _study(folder: Path) -> bytes:
    (folder / "space.py").write_text(SPACE)
    words = ("--objective", "flops,params", "--sampler", "random", "--trials", "3", "-o", "study", "-q")
    iosched("explore", "branches.onnx", "--space", "space.py", *words)
    return (folder / "study" / "study.db").read_bytes()


def _bench(times: float) -> str:
    bases = {"iosched": 90.0, "sequential": 120.0}
    samples = {name: [base * times + step for step in range(12)] for name, base in bases.items()}
    rows = [{"name": name, "median_us": 1.0, "samples": 12, "speedup": 1.0} for name in samples]
    return json.dumps({"model": "m", "device": "cpu", "batch_size": 1, "rows": rows, "samples_us": samples}) + "\n"
