"""Damages models, schedules and databases by number, and tests that every command refuses them cleanly.

    python benchmarks/fuzz.py --seconds 200                    # continues after the last case
    python benchmarks/fuzz.py --kind models --only 1234        # one case again, with its output

Each case is drawn from the seed, its kind and its number. A command may end with any code of docs/exit-codes.md, within
ten seconds of processor time and with a few lines on stderr. It may touch no file outside of its folders.

Options:
    --portion: of all cases of each kind, from the first one on
    --only: run these cases of the first kind again, and keep nothing
    --seconds: for all kinds together
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from pkgutil import walk_packages
from random import Random
from typing import Any

import fuzz_children as children

os.environ.update(children.environment())  # before numpy is loaded

import onnx
from command_line import read_options
from fuzz_corpus import SPACE, WEIGHTS, Corpus, Seed, made
from fuzz_graphs import edit_graph, edited_schedule
from fuzz_mutations import damage_fields, damage_sqlite, damaged_bytes, damaged_json
from results_files import keep_results, known_results

from iosched.models.version import iosched_commit

RESULTS = Path(__file__).parent / "results" / "fuzz.json"
SEED = 18
COUNTS: Mapping[str, int] = {"models": 10_000, "schedules": 2_000, "stores": 500}


@dataclass
class Tally:
    """Outcomes of the cases of a kind so far.

    Attributes:
        done: how many cases were run, from number 0 on.
        commits: cases by the commit of iosched's code that ran them.
        codes: cases by exit code.
        stages: cases by the last step that they reached, for each kind of damage.
        lines: refusals by number of lines.
        errors: the most frequent refusals, without details of cases.
        faults: cases that broke a rule: number, violation, command, and the end of its output.
        most_cpu_s: processor time of the longest case.
        most_grown_mib: memory of the largest case.
    """

    done: int = 0
    commits: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    stages: dict[str, Counter[str]] = field(default_factory=dict)
    lines: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    faults: list[dict[str, Any]] = field(default_factory=list)
    most_cpu_s: float = 0.0
    most_grown_mib: float = 0.0

    def add(self, number: int, case: Case, ending: children.Ending) -> None:
        self.done = number + 1
        self.commits[str(iosched_commit())] += 1
        self.codes[str(ending.code)] += 1
        self.stages.setdefault(case.way, Counter())[ending.stage] += 1
        self.most_cpu_s = round(max(self.most_cpu_s, ending.cpu_s), 2)
        self.most_grown_mib = round(max(self.most_grown_mib, ending.grown_nbytes / 2**20))
        if ending.code:
            self.lines[str(len(ending.message.splitlines()))] += 1
            self.errors[f"{ending.code} {children.normal(ending.message)}"] += 1
        if found := ending.faults() + (["wrong outputs"] if case.words[0] == "optimize" and ending.code == 4 else []):
            fault = {"case": number, "faults": found, "command": " ".join(case.words), "stderr": ending.stderr[-600:]}
            self.faults.append(fault)


@dataclass(frozen=True)
class Case:
    """A command, and how its input files were damaged."""

    way: str
    words: tuple[str, ...]


def model_case(corpus: Corpus, random: Random, sandbox: children.Sandbox) -> Case:
    """A damaged model, for a command that reads models: half of them by bytes, the others by fields or by edits."""
    seed = random.choice(corpus.models)
    way = random.choices(("bytes", "fields", "graph"), (40, 12, 48))[0]
    data, weights = seed.model, seed.weights
    if way == "bytes":
        if weights is not None and random.random() < 0.3:
            weights = damaged_bytes(weights, random)
        else:
            data = damaged_bytes(data, random)
    else:
        data = _changed(seed, way, random)
    write_model(sandbox.work / "m.onnx", Seed(seed.name, data, weights))
    words = random.choices(*zip(*_MODEL_COMMANDS, strict=True))[0]
    is_bound = random.random() < (0.9 if seed.name == "dynamic" else 0.08)
    more = ("--batch-size", random.choice(("1", "2", "3", "3", "1000000000"))) if is_bound else ()
    return Case(way, (*words, *(more if words[0] != "show" else ())))


def _changed(seed: Seed, way: str, random: Random) -> bytes:
    proto = onnx.ModelProto.FromString(seed.model)
    if way == "fields":
        damage_fields(proto, random)
    else:
        edit_graph(proto, random, keeps_structure=".iosched" in seed.name and random.random() < 0.7)
    return proto.SerializeToString()


Commands = tuple[tuple[tuple[str, ...], float], ...]
_CPU = ("--threads", "2")
_STRICT = ("--strict",)  # a failing plan of ours is an error, without a fallback to plain onnxruntime
_MODEL_COMMANDS: Commands = (
    (("run", "m.onnx", *_CPU), 40),
    (("run", "m.onnx", *_CPU, "--check", "--json", "--output", "o.npz"), 25),
    (("inspect", "m.onnx", "--json"), 10),
    (("optimize", "m.onnx", "--device", "v100", "-q"), 8),
    (("optimize", "m.onnx", *_CPU, "--strategy", "greedy", "--budget", "0.02", "--json", *_STRICT), 8),
    (("optimize", "m.onnx", *_CPU, "--budget", "0.02", "-o", "o.onnx", *_STRICT), 3),
    (("show", "m.onnx"), 3),
    (("batch", "a=m.onnx", "b=m.onnx", "--device", "v100", "-o", "o.onnx"), 3),
)


def write_model(path: Path, seed: Seed) -> None:
    path.write_bytes(seed.model)
    if seed.weights is not None:
        (path.parent / WEIGHTS).write_bytes(seed.weights)


def schedule_case(corpus: Corpus, random: Random, sandbox: children.Sandbox) -> Case:
    """A damaged schedule, in a file of its own or inside its model."""
    name = random.choice(sorted(corpus.schedules))
    sound = corpus.schedules[name]
    way = random.choices(("bytes", "values", "stages"), (30, 20, 50))[0]
    if way == "bytes":
        data = damaged_bytes(sound.encode(), random)
    else:
        data = (damaged_json if way == "values" else edited_schedule)(sound, random).encode()
    (sandbox.work / "s.json").write_bytes(data)
    (sandbox.work / "sound.json").write_text(sound)
    model = next(seed for seed in corpus.models if seed.name == name)
    inside = random.random() < 0.25
    if inside:
        model = _carrying(corpus, name, data)
    write_model(sandbox.work / "m.onnx", model)
    words = random.choices(*zip(*(_CARRIED_COMMANDS if inside else _SCHEDULE_COMMANDS), strict=True))[0]
    return Case(f"{way} inside the model" if inside else way, words)


_SCHEDULE_COMMANDS: Commands = (
    (("run", "m.onnx", "--schedule", "s.json", *_CPU, "--check"), 50),
    (("show", "s.json"), 10),
    (("show", "s.json", "--format", "html"), 10),
    (("show", "s.json", "--format", "trace"), 5),
    (("diff", "sound.json", "s.json"), 10),
    (("explain", "s.json", "y", "--model", "m.onnx"), 5),
    (("optimize", "m.onnx", "--device", "v100", "--schedule-from", "s.json", "-q"), 10),
)
_CARRIED_COMMANDS: Commands = ((("run", "m.onnx", *_CPU, "--check"), 80), (("show", "m.onnx"), 20))


def _carrying(corpus: Corpus, name: str, schedule: bytes) -> Seed:
    """The optimized model with these bytes as its schedule; protobuf's setter would refuse invalid UTF-8."""
    proto = onnx.ModelProto.FromString(next(seed.model for seed in corpus.models if seed.name == f"{name}.iosched"))
    entry = next(item for item in proto.metadata_props if item.key == "io.iosched.schedule")
    entry.value = mark = "?" * len(schedule)
    return Seed(name, proto.SerializeToString().replace(mark.encode(), schedule))


def store_case(corpus: Corpus, random: Random, sandbox: children.Sandbox) -> Case:
    """A damaged profile database, export, study, result of bench, or file of settings."""
    case = random.choices((_profile, _lines, _study, _bench, _settings), (200, 90, 90, 70, 50))[0]
    return case(corpus, random, sandbox)


def _profile(corpus: Corpus, random: Random, sandbox: children.Sandbox) -> Case:
    way = _damaged_database(sandbox.profile, corpus.profile, random)
    write_model(sandbox.work / "m.onnx", corpus.models[0])
    commands = (
        ("profile", "stats"), ("profile", "stats", "--json"), ("profile", "export", "out.jsonl"),
        ("profile", "clear", "--yes"), ("optimize", "m.onnx", "--device", "v100", "-q"),
        ("optimize", "m.onnx", *_CPU, "--budget", "0.05", *_STRICT),
    )  # fmt: skip
    # `doctor` starts a process for each library that it checks, which takes seconds.
    return Case(f"profile by {way}", ("doctor",) if random.random() < 0.03 else random.choice(commands))


def _damaged_database(path: Path, data: bytes, random: Random) -> str:
    path.parent.mkdir(exist_ok=True)
    way = random.choice(("bytes", "rows", "rows", "log"))
    path.write_bytes(damaged_bytes(data, random) if way == "bytes" else data)
    if way == "rows":
        damage_sqlite(path, random)
    elif way == "log":
        (path.parent / f"{path.name}-wal").write_bytes(random.randbytes(random.choice((0, 32, 5000))))
        (path.parent / f"{path.name}-journal").write_bytes(random.randbytes(random.choice((0, 600))))
    return way


def _lines(corpus: Corpus, random: Random, sandbox: children.Sandbox) -> Case:
    lines = corpus.profile_lines.decode().splitlines()
    at = random.randrange(len(lines))
    lines[at] = damaged_json(lines[at], random)
    data = "\n".join(lines).encode()
    way = random.choice(("values", "bytes"))
    (sandbox.work / "in.jsonl").write_bytes(data if way == "values" else damaged_bytes(corpus.profile_lines, random))
    return Case(f"export by {way}", ("profile", "import", "in.jsonl"))


def _study(corpus: Corpus, random: Random, sandbox: children.Sandbox) -> Case:
    (sandbox.work / "study").mkdir()
    way = _damaged_database(sandbox.work / "study" / "study.db", corpus.study, random)
    (sandbox.work / "space.py").write_text(SPACE)
    write_model(sandbox.work / "m.onnx", corpus.models[0])
    more = ("--space", "space.py", "--objective", "flops,params", "--sampler", "random", "--trials", "4", "-o", "study")
    go_on = (*more, "--top", "1")  # each of the best is searched for, which takes seconds
    commands = (("explore", "show", "study/study.db"), ("explore", "m.onnx", *go_on))
    return Case(f"study by {way}", random.choice(commands))


def _bench(corpus: Corpus, random: Random, sandbox: children.Sandbox) -> Case:
    sound, other = corpus.benches
    way = random.choice(("values", "bytes"))
    changed = damaged_json(other, random).encode() if way == "values" else damaged_bytes(other.encode(), random)
    (sandbox.work / "a.json").write_text(sound)
    (sandbox.work / "b.json").write_bytes(changed)
    more = ("--max-regression", "3%", "--relative-to", "sequential") if random.random() < 0.5 else ("--json",)
    return Case(f"bench by {way}", ("diff", "a.json", "b.json", *more))


def _settings(corpus: Corpus, random: Random, sandbox: children.Sandbox) -> Case:
    text = 'device = "cpu"\nthreads = 2\n'
    if random.random() < 0.3:
        more = ('cluster = "auto"\n', 'profile-db = "../x"\n', "[a.b]\nc = [1, [2]]\n", "x = " + "[" * 5000)
        text += random.choice(more)
    (sandbox.work / "iosched.toml").write_bytes(damaged_bytes(text.encode(), random))
    write_model(sandbox.work / "m.onnx", corpus.models[0])
    return Case("settings by bytes", random.choice((("run", "m.onnx"), ("optimize", "m.onnx", "--dry-run"))))


KINDS: Mapping[str, Callable[[Corpus, Random, children.Sandbox], Case]] = {
    "models": model_case, "schedules": schedule_case, "stores": store_case,
}  # fmt: skip


def corpus() -> Corpus:
    """The corpus, made in this process rather than a forked child: it opens no session of onnxruntime."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return made(Path(folder))
        finally:
            os.chdir(before)


def load_everything() -> None:
    """Imports the modules of all commands, so that children need not."""
    import iosched

    import_module("onnxruntime")
    for module in walk_packages(iosched.__path__, "iosched."):
        with suppress(ImportError):  # of missing packages, such as CuPy
            if not module.name.endswith("__main__"):
                import_module(module.name)


def tried(kind: str, number: int, corpus: Corpus, folder: Path) -> tuple[Case, children.Ending]:
    """Makes case `number` in an empty folder below `folder`, runs it, and removes the folder."""
    random = Random(f"{SEED} {kind} {number}")
    sandbox = children.Sandbox(folder / f"{kind}-{number}")
    sandbox.work.mkdir(parents=True)
    try:
        case = KINDS[kind](corpus, random, sandbox)
        return case, children.run(case.words, sandbox)
    finally:
        shutil.rmtree(sandbox.root, ignore_errors=True)


def main() -> None:
    asked = read_options(
        __file__, kind={"choices": KINDS, "nargs": "+", "default": list(KINDS)}, portion=1.0,
        only={"type": int, "nargs": "+"}, seconds=float("inf"), results=RESULTS,
    )  # fmt: skip
    load_everything()
    sound = corpus()
    end = time.monotonic() + asked.seconds
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for number in asked.only or ():
            case, ending = tried(asked.kind[0], number, sound, Path(folder))
            print(case.words, ending.code, ending.stage, ending.faults(), ending.stderr, sep="\n")
        found = [
            _go_on(kind, round(COUNTS[kind] * asked.portion), end, sound, Path(folder), asked.results)
            for kind in asked.kind
            if not asked.only
        ]
    if any(tally.faults for tally in found):
        raise SystemExit("\n".join(json.dumps(fault, indent=1) for tally in found for fault in tally.faults))


def _go_on(kind: str, until: int, end: float, sound: Corpus, folder: Path, results: Path) -> Tally:
    kinds = known_results(results).get("kinds", {})
    tally = _tally(kinds.get(kind, {}))
    while tally.done < until and time.monotonic() < end:
        tally.add(tally.done, *tried(kind, tally.done, sound, folder))
    kinds[kind] = vars(tally) | {"errors": dict(tally.errors.most_common(60))}
    content = {"seed": SEED, "versions": versions(), "kinds": kinds}
    keep_results(results, content, seeds={"cases": SEED}, goes_on=True)
    print(f"{kind}: {tally.done} cases, by exit code {dict(tally.codes)}, {len(tally.faults)} faults", flush=True)
    return tally


def _tally(kept: Mapping[str, Any]) -> Tally:
    counters = {name: Counter(kept[name]) for name in ("commits", "codes", "lines", "errors") if name in kept}
    stages = {way: Counter(each) for way, each in kept.get("stages", {}).items()}
    return Tally(**{**kept, **counters, "stages": stages})


def versions() -> dict[str, str]:
    packages = ("onnx", "onnxruntime", "numpy", "protobuf", "optuna")
    own = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    return own | {package: metadata.version(package) for package in packages}


if __name__ == "__main__":
    main()
