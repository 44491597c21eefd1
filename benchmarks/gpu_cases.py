"""The cases of `gpu.py`: pieces of at most nine minutes, the most valuable first, with a process for each case.

The seconds of a case are estimates for an H100; `gpu.py` records the measured seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from iosched.models import zoo
from iosched.models.zoo.light import NAMES as LIGHT

ROOT = Path(__file__).parents[1]
MOST_S = 540.0
"""Of a piece: a call with a limit of ten minutes has time left to start, and to return the results."""

NETWORKS = ("squeezenet", "inception_v3", "randwire", "nasnet_a")
CONTROLS = ("googlenet", "resnet50", "densenet121", "vgg16")
ONNXRUNTIME, TENSORRT = "onnxruntime-cuda", "onnxruntime-tensorrt"
QUICK = (ONNXRUNTIME, "torch-cudagraph", "torch")
SLOW = (TENSORRT, "torch-compile")
"""Other programs that compile for minutes; without their packages they fail at once."""

_SEARCH_S = {"squeezenet": 20.0, "inception_v3": 50.0, "randwire": 60.0, "nasnet_a": 110.0}
_COMPILE_S = {"squeezenet": 90.0, "inception_v3": 160.0, "randwire": 200.0, "nasnet_a": 500.0}
_TEST_S = {"test_networks": 240.0, "test_kernels": 90.0}
KERNEL_PARTS = 3
"""Cases of kernels in one precision."""


@dataclass(frozen=True)
class Case:
    """A measurement in a separate process.

    Attributes:
        measure: the function that does it, as MODULE.FUNCTION.
        ways: other programs that a network is compared with.
        part: of the kernels.
        words: of a command after `python`; {gpu}, {database} and {folder} are filled in.
    """

    piece: str
    name: str
    seconds: float
    measure: str
    network: str = ""
    precision: str = ""
    batch: int = 1
    ways: tuple[str, ...] = ()
    part: int = 0
    words: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.piece}/{self.name}"


@dataclass(frozen=True)
class Piece:
    """Measurements for one purpose."""

    name: str
    about: str
    cases: tuple[Case, ...]

    @cached_property
    def seconds(self) -> float:
        """By estimate."""
        return sum(case.seconds for case in self.cases)


def _networks(piece: str, networks: tuple[str, ...], *precisions: str, batch: int = 1, slow: bool = False) -> Piece:
    cases = []
    for precision in precisions:
        for network in networks:
            seconds = _SEARCH_S.get(network, 40.0) + (10.0 if slow else 20.0) + batch
            seconds += _COMPILE_S[network] - _SEARCH_S[network] if slow else 0.0
            name = f"{network} b{batch} {precision}"
            ways = SLOW if slow else QUICK
            cases.append(
                Case(piece, name, min(seconds, MOST_S), "gpu_networks.latency", network, precision, batch, ways)
            )
    others = "TensorRT and torch.compile" if slow else "onnxruntime and PyTorch"
    about = f"{', '.join(networks)} at batch {batch} in {' and '.join(precisions)}: sequential, greedy, found, {others}"
    return Piece(piece, about, tuple(cases))


def _tests() -> Piece:
    # -P: the working folder is not where the package is.
    words = ("-P", "-m", "pytest", "-q", "-n", "8", "--dist", "worksteal")
    files = sorted(path.stem for path in (ROOT / "tests" / "gpu").glob("test_*.py"))
    cases = (
        Case("tests", name, _TEST_S.get(name, 40.0), "gpu_case.command", words=(*words, f"tests/gpu/{name}.py"))
        for name in files
    )
    return Piece("tests", "tests/gpu, file by file", tuple(cases))


def _outputs() -> Piece:
    names = [*zoo.names(), *(f"light_{name}" for name in LIGHT)]
    cases = (Case("outputs", name, 20.0, "gpu_networks.outputs", name) for name in names)
    return Piece("outputs", "outputs of every network in each precision and layout, against onnxruntime", tuple(cases))


def _stages() -> Piece:
    pairs = [(network, precision) for precision in ("fp32", "fp16") for network in NETWORKS]
    cases = (Case("stages", f"{name} {p}", 40.0, "gpu_networks.stages", name, p) for name, p in pairs)
    return Piece("stages", "stages of schedules, predicted by the analytic model and measured", tuple(cases))


def _refit() -> Piece:
    kernels = [
        Case("refit", f"kernels {p} {part + 1}", 60.0, "gpu_refit.kernels", precision=p, part=part)
        for p in ("fp32", "fp16")
        for part in range(KERNEL_PARTS)
    ]
    fit = Case("refit", "fit", 60.0, "gpu_refit.refit")
    return Piece("refit", "kernels, and the analytic model fitted to them", (*kernels, fit))


def _ablations() -> Piece:
    where = ("--device", "cuda:{gpu}", "--profile-db", "{database}")

    def script(name: str, word: str, seconds: float, *more: str) -> Case:
        output = f"{{folder}}/ablation-{name}-{word}.json"
        words = (f"benchmarks/ablation_{name}.py", *more, *where, "-o", output)
        return Case("ablations", f"{name} {word}", seconds, "gpu_case.command", words=words)

    additive = script("additive", "squeezenet", 120.0, "--networks", "squeezenet", "--schedules", "40")
    sizes = [
        script("batch", size, 120.0, "--networks", "inception_v3", "--batch-sizes", size) for size in ("1", "16", "64")
    ]
    return Piece("ablations", "claims of the papers on sums of stages and batch sizes", (additive, *sizes))


_ALL = (
    Piece("environment", "machine, packages, self-test",
          (Case("environment", "self-test", 60.0, "gpu_case.environment"),)),
    _tests(),
    _outputs(),
    _networks("latency-fp32", NETWORKS, "fp32"),
    _networks("compilers-fp32", NETWORKS[:3], "fp32", slow=True),
    _networks("latency-fp16", NETWORKS, "fp16"),
    _networks("compilers-fp16", NETWORKS[:3], "fp16", slow=True),
    _stages(),
    _refit(),
    _networks("latency-tf32", NETWORKS, "tf32"),
    _networks("controls", CONTROLS, "fp32", "fp16"),
    _networks("compilers-nasnet", NETWORKS[3:], "fp32", slow=True),
    _networks("batch-16", NETWORKS, "fp16", batch=16),
    _networks("batch-64", NETWORKS[:2], "fp16", batch=64),
    _ablations(),
)  # fmt: skip

PIECES: Mapping[str, Piece] = {piece.name: piece for piece in _ALL}
"""All pieces by name, the most valuable first."""


def case_of(key: str) -> Case:
    """The case with this key."""
    return next(case for case in PIECES[key.partition("/")[0]].cases if case.key == key)
