"""The calls that are compared: each scenario is a list of command lines that run one after another in one folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LIGHT = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip
COMMANDS = (
    "optimize", "run", "bench", "inspect", "show", "explain", "matrix", "rank", "explore", "explore show", "batch",
    "diff", "doctor", "devices", "zoo", "zoo list", "zoo export", "profile", "profile stats", "profile export",
    "profile import", "profile clear", "completion",
)  # fmt: skip
FROZEN = "frozen profile"
FORMATS = ("text", "svg", "html", "netron", "trace")


def scenarios() -> Mapping[str, Sequence[str]]:
    """All scenarios by name."""
    return {
        "help": ["--help", "--version", *(f"{command} --help" for command in COMMANDS)],
        **{f"simulated {name}": _simulated(f"light_{name}.onnx", f"light_{name}") for name in LIGHT},
        "simulated zoo": [
            f"optimize zoo:{name} --device v100 --json" for name in ("squeezenet", "googlenet", "resnet50")
        ],
        "counts": [f"inspect zoo:{name} --json" for name in ("squeezenet", "inception_v3", "bert_mini", "vgg16")],
        "settings": _settings(),
        "several devices": [
            "matrix model.onnx --device v100,k80 --json",
            "matrix model.onnx --device v100,h100 --batch-sizes 1,4",
            "rank model.onnx small.onnx light_squeezenet.onnx --device v100,t4 --json",
            "rank model.onnx small.onnx broken.onnx --device v100",
        ],
        "several models": [
            "batch model.onnx retrained.onnx small.onnx --device v100 -o both.onnx --json",
            "batch model.onnx retrained.onnx --device v100 --policy dpbat -o dpbat.onnx",
            "inspect both.onnx --json",
            "run both.onnx --device cpu --output both.npz",
            "run both.onnx --device cpu --against model=model.onnx --json",
        ],
        "several sizes": [
            "optimize dynamic.onnx --batch-sizes 1,4 --device v100 -o sizes.onnx --json",
            "inspect sizes.onnx --batch-size 1 --json",
            "show sizes.onnx --batch-size 4",
            "run sizes.onnx --batch-size 4 --device cpu --output sizes.npz",
        ],
        "exploration": [
            "explore --space builtin:inception:32 --objective latency:v100,params --sampler random --trials 3 -o found",
            "explore --space builtin:pelee:32 --objective latency:v100 --sampler grid --trials 2 -o grid --json",
        ],
        "pipeline": ["optimize model.onnx --device v100 -o -", "zoo export squeezenet -o -"],
        "failures": FAILURES,
        FROZEN: _frozen(),
        "killed": _killed(),
        "machine": ["devices --json", "zoo list --json", "profile stats --profile-db new.db --json"],
    }


def _simulated(model: str, name: str) -> list[str]:
    return [
        f"inspect {model} --json",
        f"inspect {model}",
        f"optimize {model} --device v100 --json -o v100.onnx --schedule v100.json",
        f"optimize {model} --device h100 --precision fp16 -o h100.onnx --schedule h100.json",
        f"optimize {model} --device k80 --strategy greedy --json -o k80.onnx --schedule k80.json",
        *(f"show v100.json --model {model} --format {kind} -o picture.{kind}" for kind in FORMATS),
        "show v100.json --json",
        "diff v100.json h100.json --json",
        "run v100.onnx --device cpu --threads 2 --output outputs.npz",
        f"run {model} --schedule k80.json --device cpu --threads 1 --output outputs1.npz",
    ]


def _killed() -> list[str]:
    """A study and a search that are killed or interrupted, and the same command again."""
    explore = "explore --space builtin:inception:32 --objective latency:v100 --sampler random --trials 6 -o found"
    search = "optimize zoo:squeezenet --device cpu --threads 2 --budget 20 -o found.onnx --profile-db"
    return [
        f"KILL when found/study.db has 200000 bytes: {explore}",
        "explore show found/study.db --json",
        f"INT when found/study.db has 250000 bytes: {explore}",
        f"{explore} --json",
        f"KILL when k.db-wal has 100000 bytes: {search} k.db",
        f"INT when i.db-wal has 100000 bytes: {search} i.db",
        "profile import frozen.jsonl --profile-db k.db",
        "optimize small.onnx --threads 2 --profile-db k.db --json -o found.onnx",
    ]


def _frozen() -> list[str]:
    """Decisions on a CPU from a profile with all latencies: nothing is measured, so schedules are identical."""
    database = "--profile-db frozen.db"
    calls = [f"profile import frozen.jsonl {database}"]
    for model, operator in (("model", "d"), ("small", "d"), ("light_squeezenet", "r11")):
        files = f"-o {model}.cpu.onnx --schedule {model}.cpu.json"
        calls += [
            f"optimize {model}.onnx --threads 2 --dry-run {database} --json",
            f"optimize {model}.onnx --threads 2 --strict {database} --json {files}",
            f"optimize {model}.onnx --threads 2 --strict {database} {files}",
            f"optimize {model}.onnx --threads 2 --strategy concurrent --dry-run {database}",
            f"run {model}.cpu.onnx --threads 2 --check-schedule --output {model}.npz",
            f"show {model}.cpu.json --model {model}.onnx",
            f"explain {model}.cpu.onnx {operator} --measurements 0 {database} --json",
        ]
    return [*calls, f"profile stats {database} --json", f"profile export exported.jsonl {database}"]


def _settings() -> list[str]:
    variants = (
        "--strategy concurrent", "--strategy merge", "--strategy dos", "--strategy sequential", "-r 1", "-s 2",
        "--no-pruning", "--precision fp16", "--batch-size 1", "--dry-run", "--exhaustive", "--budget 30",
    )  # fmt: skip
    return [
        *(
            f"optimize light_inception_v1.onnx --device v100 {words} --json -o out.onnx --schedule out.json"
            for words in variants
        ),
        "optimize retrained.onnx --device v100 --schedule-from o.json",
        "optimize model.onnx --device v100 -o m.onnx --schedule m.json",
        "optimize retrained.onnx --device v100 --schedule-from m.json -o r.onnx --schedule r.json --json",
        "explain m.onnx d --json",
        "explain m.onnx d",
        "diff m.json r.json",
        "run m.onnx --device cpu --input x=x.npy --output y.npz --json",
        "run m.onnx --device cpu --check",
        "show m.onnx --block 0",
        "show m.onnx --alternative sequential",
    ]


FAILURES = (
    "nothing", "optimize", "optimize missing.onnx", "optimize broken.onnx", "optimize empty.onnx",
    "optimize cut.onnx", "optimize .", "optimize model.onnx --device nosuch", "optimize model.onnx --device cuda",
    "optimize model.onnx -r 0", "optimize model.onnx --strategy none", "optimize model.onnx --batch-size 0",
    "optimize model.onnx --input-shape x", "optimize model.onnx --input-shape z=1x2",
    "optimize model.onnx --input-shape x=1x2 --device v100", "optimize dynamic.onnx --device v100",
    "optimize model.onnx --device v100 -o no/such/folder/out.onnx", "optimize model.onnx --device v100 -o - --json",
    "optimize model.onnx --threads 0", "optimize model.onnx --budget 0",
    "optimize model.onnx --device v100 --strategy dos -r 2", "optimize model.onnx --batch-sizes 1,x --device v100",
    "optimize model.onnx --schedule-from broken.onnx --device v100", "optimize zoo:nosuch",
    "optimize model.onnx --nosuch", "optimize model.onnx --precision fp8",
    "optimize model.onnx --profile-db . --device cpu", "run missing.onnx", "run broken.onnx", "run cut.onnx",
    "run model.onnx --input x=missing.npy --device cpu", "run model.onnx --input x=wrong.npy --device cpu",
    "run model.onnx --input z=x.npy --device cpu", "run model.onnx --schedule broken.onnx --device cpu",
    "run model.onnx --device v100", "run model.onnx --repeat 0", "run dynamic.onnx --device cpu",
    "run model.onnx --against broken.onnx --device cpu", "run model.onnx --against small.onnx --device cpu",
    "bench missing.onnx", "bench model.onnx --with nosuch", "bench model.onnx --rounds 1", "bench broken.onnx",
    "inspect missing.onnx", "inspect broken.onnx", "inspect model.onnx -r 0", "show missing.json",
    "show broken.onnx", "show model.onnx", "explain model.onnx", "explain missing.json a", "matrix",
    "matrix model.onnx --device nosuch", "rank", "rank broken.onnx --device v100",
    "batch model.onnx broken.onnx --device v100", "diff model.onnx", "diff broken.onnx broken.onnx", "explore",
    "explore --space builtin:nosuch", "explore model.onnx --space missing.py", "zoo export nosuch -o -",
    "profile import missing.jsonl", "profile import broken.onnx --profile-db p.db",
    "profile stats --profile-db broken.onnx", "completion nosuch", "optimize model.onnx --cluster nosuch",
)  # fmt: skip
