"""What `gpu.py` measures: pieces, each short enough for one call on a rented machine, and the cases of each.

Pieces stand in the order of their value, and so do the cases of a piece: what is lost when time ends matters least.
How long each takes is estimated here; `gpu.py` writes down what it really took, step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from iosched.models import zoo
from iosched.scheduler.strategies import SearchStrategy

CALL_S = 530.0
"""The longest piece: a call that is cut off at ten minutes has time left to start and to bring the results back."""

NETWORKS = ("squeezenet", "inception_v3", "randwire", "nasnet_a")
CONTROLS = ("resnet50", "googlenet", "densenet121", "vgg16")

JAX = "jax"
ONNXRUNTIME = "onnxruntime-cuda"
TORCH = ("torch-cudagraph", "torch")

LayoutChoice = Literal["preferred", "timed", "both"]

_OPEN_S = 2.0
"""A context of CUDA, cuDNN's handles and the profile database; what the host imports and computes is done before."""

_PLANS = {
    "squeezenet": 36, "inception_v3": 61, "randwire": 10, "nasnet_a": 40,
    "resnet50": 25, "googlenet": 62, "densenet121": 63, "vgg16": 12,
}  # fmt: skip
"""Different graphs of cuDNN at batch 1 in fp16, which has most, counted in `results/cudnn-desk.json`."""

_PLAN_S = 0.15
"""Building and timing up to twelve plans of one: 0.1 to 0.2 s, of which building was tried at a desk."""

_COMPILED_S = 0.005
"""Lowering, proving, warming up and capturing one operator of a whole model, of which there are up to five."""

_COMPARED_S = 2.5
"""Six or seven alternatives for 17 rounds of some 13 ms each, and their outputs read back and compared."""

_STAGES = {"squeezenet": (137, 48), "inception_v3": (738, 122), "randwire": (424, 143), "nasnet_a": (1397, 194)}
"""Stages that a search with the effort of `optimize` asks for, and those it measures again, counted under the analytic
model of an H200 with the bounds that an attached GPU has, which are weaker than the model's own."""

_STAGE_S, _TUNED_S = 0.04, 0.35
"""Seconds of one stage: 15 to 60 ms, most of it captures in Python; tuning it takes half a second at most."""

_WAYS_S = {"torch-cudagraph": 1.5, "torch": 1.5, ONNXRUNTIME: 15.0, "torch-compile": 90.0, JAX: 30.0}
"""PyTorch is warmed up in both layouts, cuDNN's own search included; compilers take minutes for large networks."""


@dataclass(frozen=True)
class NetworkCase:
    """One network at one batch size in one precision, ours in several schedules beside other frameworks.

    Attributes:
        ways: other frameworks.
        strategies: searches; the first is measured without barriers too. The others find most stages measured.
        tuned: whether a search takes all the effort of `optimize`. If not, fewer stages are measured, once each, and
            only while the time of the case lasts. None is made if there are no `strategies`.
        layout: how images lie in memory: as is best for the precision and the GPU by what was tried at a desk
            ("preferred"), as `optimize` finds by timing ("timed"), or one beside the other ("both").
    """

    piece: str
    network: str
    batch: int
    precision: str
    ways: tuple[str, ...] = TORCH
    strategies: tuple[SearchStrategy, ...] = ("both",)
    tuned: bool = False
    layout: LayoutChoice = "timed"

    @property
    def name(self) -> str:
        """For people and in the results."""
        return f"{self.network} b{self.batch} {self.precision}"

    @property
    def estimate_s(self) -> float:
        """The sum of the steps above; a search that is not tuned takes what is left."""
        layouts = 1 if self.layout == "preferred" else 2
        compiled = zoo.describe(self.network).operators * _COMPILED_S * (3 + layouts)
        plans = _PLANS.get(self.network, 60) * _PLAN_S * layouts
        stages, again = _STAGES.get(self.network, (800, 150)) if self.tuned else (0, 0)
        searched = (stages * _STAGE_S + again * _TUNED_S) * (1 + 0.2 * (len(self.strategies) - 1))
        large = 1 + self.batch / 32  # runs take longer, and so does the check by onnxruntime on the host
        ways = sum(_WAYS_S[way] for way in self.ways) * max(self._size, 1.0)
        return _OPEN_S + plans + compiled + searched + (ways + _COMPARED_S) * large

    @property
    def _size(self) -> float:
        return zoo.describe(self.network).operators / 120


@dataclass(frozen=True)
class CommandCase:
    """A script that measures or tests by itself; done if it returns 0.

    Attributes:
        words: its words after `python`; {gpu}, {database} and {folder} are filled in.
        printed: what its standard output is kept as, in the folder of the results; not kept if empty.
    """

    piece: str
    name: str
    words: tuple[str, ...]
    estimate_s: float
    printed: str = ""
    ways: ClassVar[tuple[str, ...]] = ()


Case = NetworkCase | CommandCase
"""Something that is measured in a process of its own."""


@dataclass(frozen=True)
class Piece:
    """What one call measures.

    Attributes:
        seconds: no longer than this, whatever it takes; what is missing then is measured by calling it again.
    """

    name: str
    about: str
    seconds: float
    cases: tuple[Case, ...]

    @property
    def estimate_s(self) -> float:
        """About how many seconds all of it takes, the first process's own start included."""
        return START_S + sum(case.estimate_s for case in self.cases)


START_S = 12.0
"""Imports of CuPy, cuDNN and PyTorch in the first process; those of the others come while the GPU is at work."""


def _cases(piece: str, networks: tuple[str, ...], precisions: tuple[str, ...], batch: int = 1) -> list[NetworkCase]:
    return [NetworkCase(piece, network, batch, precision) for precision in precisions for network in networks]


def _first() -> tuple[Case, ...]:
    return tuple(replace(each, layout="preferred") for each in _cases("first", NETWORKS, ("fp32", "fp16")))


def _layouts() -> tuple[Case, ...]:
    cases = _cases("layouts", NETWORKS, ("fp32", "fp16", "tf32"))
    return tuple(replace(each, layout="both", ways=(), strategies=()) for each in cases)


def _searched(piece: str, networks: tuple[str, ...], precisions: tuple[str, ...]) -> tuple[Case, ...]:
    strategies: tuple[SearchStrategy, ...] = ("both", "concurrent", "merge")
    return tuple(replace(each, tuned=True, strategies=strategies) for each in _cases(piece, networks, precisions))


def _beside(piece: str, ways: tuple[str, ...], networks: tuple[str, ...], precision: str) -> tuple[Case, ...]:
    return tuple(replace(each, ways=ways) for each in _cases(piece, networks, (precision,)))


def _tests() -> tuple[Case, ...]:
    """The tests of every network and strategy, file by file, on eight cores."""
    # -P: the working folder is not where the package is.
    words = ("-P", "-m", "pytest", "-q", "-n", "8", "--dist", "worksteal")
    files = {"test_networks": 240.0, "test_fused": 40.0, "test_kernels": 90.0, "test_arrays": 30.0}
    made = ((name, (*words, f"tests/gpu/{name}.py"), seconds) for name, seconds in files.items())
    return tuple(CommandCase("tests", *each) for each in made)


def _script(piece: str, name: str, script: str, words: Sequence[str], file: str, seconds: float) -> Case:
    where = ("--device", "cuda:{gpu}", "--profile-db", "{database}")
    output = ("-o", f"{{folder}}/ablation-{script}-gpu-{file}.json")
    return CommandCase(piece, name, (f"benchmarks/ablation_{script}.py", *words, *where, *output), seconds)


def _ablations() -> tuple[Case, ...]:
    """What the papers claim of sums of stages and of batch sizes, on this GPU."""
    seconds = {"squeezenet": 120.0, "inception_v3": 300.0}
    additive = (
        _script("additive", name, "additive", ("--networks", name, "--schedules", "40"), name, seconds[name])
        for name in seconds
    )
    batch = (
        _script("batch", f"batch {size}", "batch", ("--networks", "inception_v3", "--batch-sizes", size), size, 120.0)
        for size in ("1", "16", "64")
    )
    words = ("-P", "-m", "iosched", "matrix", "zoo:inception_v3", "--device", "cuda:{gpu}", "--batch-sizes", "1,16,64")
    matrix = CommandCase("batch", "matrix", (*words, "--json", "--profile-db", "{database}"), 60.0, "matrix-gpu.json")
    return (*additive, *batch, matrix)


_SMALL = ("squeezenet", "inception_v3", "randwire")

_TABLE: Mapping[str, tuple[str, float, tuple[Case, ...]]] = {
    "first": (
        "the four networks at batch 1 in fp32 and fp16, against one operator after another and PyTorch; a quick search",
        170.0,
        _first(),
    ),
    "tests": ("numbers of every network, strategy and kernel against onnxruntime", CALL_S, _tests()),
    "layouts": ("images in NHWC and in NCHW, one operator after another and side by side, in all precisions", CALL_S,
                _layouts()),
    "searched-fp32": ("batch 1, searched as `optimize` does, in three strategies", CALL_S,
                      _searched("searched-fp32", _SMALL, ("fp32",))),
    "searched-fp16": ("the same in fp16", CALL_S, _searched("searched-fp16", _SMALL, ("fp16",))),
    "searched-nasnet": ("the same of NASNet-A, in both", CALL_S,
                        _searched("searched-nasnet", ("nasnet_a",), ("fp32", "fp16"))),
    "onnxruntime": ("the four networks beside onnxruntime's CUDA provider", CALL_S,
                    _beside("onnxruntime", (ONNXRUNTIME,), NETWORKS, "fp32")),
    "compilers-fp32": ("beside torch.compile and JAX, batch 1", CALL_S,
                       _beside("compilers-fp32", ("torch-compile", JAX), _SMALL, "fp32")),
    "compilers-fp16": ("the same in fp16", CALL_S, _beside("compilers-fp16", ("torch-compile", JAX), _SMALL, "fp16")),
    "tf32": ("the four networks at batch 1 in tf32; a quick search", CALL_S,
             tuple(_cases("tf32", NETWORKS, ("tf32",)))),
    "batch-16": ("the four networks at batch 16 in fp32 and fp16; a quick search", CALL_S,
                 tuple(_cases("batch-16", NETWORKS, ("fp32", "fp16"), 16))),
    "batch-64": ("the same at batch 64", CALL_S, tuple(_cases("batch-64", NETWORKS, ("fp32", "fp16"), 64))),
    "controls": ("networks with little to run side by side, batch 1, in fp32 and fp16; a quick search", CALL_S,
                 tuple(_cases("controls", CONTROLS, ("fp32", "fp16")))),
    "compilers-nasnet": ("NASNet-A beside torch.compile and JAX, batch 1", CALL_S,
                         _beside("compilers-nasnet", ("torch-compile", JAX), ("nasnet_a",), "fp32")),
    "batch": ("what batch size does to the gain (thesis, figure 4.9), and schedules of one on another", CALL_S,
              tuple(case for case in _ablations() if case.piece == "batch")),
    "additive": ("whether the sum of its stages says what a schedule takes", CALL_S,
                 tuple(case for case in _ablations() if case.piece == "additive")),
}  # fmt: skip

PIECES: Mapping[str, Piece] = {name: Piece(name, *rest) for name, rest in _TABLE.items()}
"""All pieces by name, the most valuable first."""


def key_of(case: Case) -> str:
    """What the case is called in the results: "PIECE/NAME"."""
    return f"{case.piece}/{case.name}"


def case_of(key: str) -> Case:
    """The case that is called so.

    Raises:
        KeyError: there is none.
    """
    return next(case for case in PIECES[key.partition("/")[0]].cases if key_of(case) == key)
