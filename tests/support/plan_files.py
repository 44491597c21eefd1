"""Plan files of small models, files with mistakes, and a program that opens and runs them under sanitizers."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from quantized import quantized
from small_models import branches, fused_chain, loaded, proto_of, weight

from iosched.models.model import Model
from iosched.runtime.cores import cpu_count
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.library import compiled, onnxruntime_path
from iosched.runtime.cpu.plan_file import PlanAbout, PlanProgram, write_plan
from iosched.scheduler.baselines import greedy

CPU = Path(__file__).parents[2] / "runtime" / "cpu"
START = struct.Struct("<8s6q")
LANES = min(2, cpu_count())
_BOUNDARIES = (0, -1, 1, 2, 3, 8, 11, 2**31, 2**62, 2**63 - 1, -(2**63), 2**32, 4096)
_FLAGS = ("-std=c++17", "-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-pthread")
_SANITIZERS = {
    "ASAN_OPTIONS": "allocator_may_return_null=1:hard_rss_limit_mb=3000:detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}

node = onnx.helper.make_node


def dynamic() -> onnx.ModelProto:
    """An output of unknown size, a constant one, one that is an input, and an input that nothing reads."""
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("NonZero", ["a"], ["found"]),
        node("MatMul", ["a", "w"], ["m"]),
        node("Exp", ["x"], ["e"]),
        node("Add", ["m", "e"], ["y"]),
        node("Identity", ["x"], ["same"]),
        node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.arange(3, dtype=np.int64))),
    ]
    outputs = {"found": onnx.TensorProto.INT64, "c": onnx.TensorProto.INT64, "y": 1, "same": 1}
    return proto_of(nodes, {"x": (4, 8), "unused": (2,)}, outputs, {"w": weight(8, 8)})


def conditional() -> onnx.ModelProto:
    """An If, whose condition is a scalar input."""
    branches = [
        onnx.helper.make_graph([node(kind, ["r"], ["b"])], kind, [], [onnx.ValueInfoProto(name="b")])
        for kind in ("Exp", "Neg")
    ]
    for each in branches:
        each.output[0].CopyFrom(onnx.helper.make_tensor_value_info("b", 1, (3, 4)))
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("If", ["flag"], ["i"], then_branch=branches[0], else_branch=branches[1]),
        node("Sigmoid", ["x"], ["s"]),
        node("Add", ["i", "s"], ["y"]),
    ]
    return proto_of(nodes, {"x": (3, 4), "flag": (onnx.TensorProto.BOOL, ())}, ["y"])


def shaped() -> onnx.ModelProto:
    """Operators whose constants and attributes decide shapes."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4, strides=[2, 2]),
        node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[1, 1]),
        node("Resize", ["p", "", "", "sizes"], ["z"], mode="linear"),
        node("PRelu", ["z", "slope"], ["q"]),
        node("Slice", ["q", "starts", "ends"], ["s"]),
        node("Transpose", ["s"], ["t"], perm=[0, 2, 1, 3]),
        node("Gather", ["t", "places"], ["g"], axis=2),
        node("Softmax", ["g"], ["y"], axis=1),
    ]
    weights = {"w": weight(16, 4, 3, 3), "b": weight(16), "slope": weight(16, 1, 1)}
    weights |= {"sizes": np.array([1, 16, 9, 9]), "starts": np.array([0, 2]), "ends": np.array([1, 12])}
    return proto_of(nodes, {"x": (1, 4, 10, 10)}, ["y"], {**weights, "places": np.array([3, 1, 0])})


def wide() -> onnx.ModelProto:
    """Convolutions in blocked layout, with a summand."""
    nodes = [
        node("Conv", ["x", "v"], ["a"], pads=[1] * 4),
        node("Relu", ["a"], ["r"]),
        node("Conv", ["r", "w"], ["c"], pads=[1] * 4),
        node("Conv", ["r", "u"], ["d"]),
        node("Add", ["c", "d"], ["s"]),
        node("MaxPool", ["s"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p"], ["y"]),
    ]
    weights = {"v": weight(32, 3, 3, 3), "w": weight(32, 32, 3, 3), "u": weight(32, 32, 1, 1)}
    return proto_of(nodes, {"x": (1, 3, 8, 8)}, ["y"], weights)


def small_models() -> dict[str, Sequence[Model]]:
    """Models by name; several are the same at several batch sizes."""
    return {
        "branches": [loaded(branches("N", 16), batch_size=size) for size in (1, 3)],
        "matmul": [loaded(fused_chain())],
        "dynamic": [loaded(dynamic())],
        "int8": [loaded(quantized(branches(1)))],
        "if": [loaded(conditional())],
        "shaped": [loaded(shaped())],
        "wide": [loaded(wide())],
    }


def plan_of(models: Sequence[Model], lanes: int = LANES, version: str = onnxruntime.__version__) -> bytes:
    """The plan file of models, on greedy schedules."""
    return _plan_of(models, lanes, version)[0]


def _plan_of(models: Sequence[Model], lanes: int, version: str) -> tuple[bytes, list[bytes]]:
    file = io.BytesIO()
    backends = [CpuBackend(model, lanes=lanes) for model in models]
    programs = [
        PlanProgram.of(model, backend.compile(greedy(backend.graph)))
        for model, backend in zip(models, backends, strict=True)
    ]
    runtime = backends[0]._native
    assert runtime is not None
    write_plan(file, PlanAbout(version, lanes, (1, 2), "0" * 64, has_dynamic_batch=len(models) > 1), programs, runtime)
    return file.getvalue(), [kernel.program.model for each in programs for kernel in each.encoded.kernels]


def with_checksum(content: bytes) -> bytes:
    """The file with the checksum of the head that it has."""
    magic, version, nbytes, offset, length, _, lanes = START.unpack_from(content)
    head = content[offset : offset + length] if 0 <= offset <= len(content) and length >= 0 else b""
    return START.pack(magic, version, nbytes, offset, length, _checksum(head), lanes) + content[START.size :]


def _checksum(data: bytes) -> int:
    library = compiled()
    assert library is not None
    found = int(library.iosched_checksum(data, len(data)))
    return found - (found >> 63 << 64)


@dataclass
class Seed:
    """A good plan file in parts.

    Attributes:
        regions: the words of the head where each region is described, and its content.
        models: place in the head of each kernel's model.
    """

    body: bytes
    head: bytearray
    regions: list[int]
    models: list[tuple[int, int]]

    @classmethod
    def of(cls, content: bytes, models: Sequence[bytes]) -> Seed:
        offset = START.unpack_from(content)[3]
        head = bytearray(content[offset:])
        places = [(head.find(model), len(model)) for model in dict.fromkeys(models)]
        regions = [
            at // 8 for at in range(0, len(head) - 24, 8)
            if _region_checksum(content, head, at) == struct.unpack_from("<q", head, at + 16)[0]
        ]  # fmt: skip
        return cls(content[:offset], head, regions, [place for place in places if place[0] >= 0])

    def with_model(self, number: int, model: bytes) -> bytes:
        """The plan file with another model in place of one of its kernels'."""
        at, length = self.models[number]
        head = bytearray(self.head)
        head[at - 8 : at + -(-length // 8) * 8] = struct.pack("<q", len(model)) + model + bytes(-len(model) % 8)
        return self.file(head)

    def file(self, head: bytes, body: bytes | None = None) -> bytes:
        """A plan file of another head, with good checksums."""
        body = self.body if body is None else body
        magic, version, *_, lanes = START.unpack_from(body)
        start = START.pack(magic, version, len(body) + len(head), len(body), len(head), 0, lanes)
        return with_checksum(start + body[START.size :] + head)


def _region_checksum(content: bytes, head: bytes, at: int) -> int | None:
    offset, nbytes, checksum = struct.unpack_from("<3q", head, at)
    if offset < 4096 or offset % 4096 or not 0 < nbytes <= len(content) - offset or not checksum:
        return None
    return _checksum(content[offset : offset + nbytes])


@cache
def seeds() -> Mapping[str, Seed]:
    """Good plan files by name."""
    return {name: Seed.of(*_plan_of(models, LANES, onnxruntime.__version__)) for name, models in small_models().items()}


def mutated(number: int) -> tuple[bytes, bool]:
    """A plan file with mistakes, drawn from its number, and whether its checksums fit."""
    random = Random(number)
    seed = random.choice(list(seeds().values()))
    good = seed.file(seed.head)
    if random.random() < 0.1:
        changed = bytearray(good)
        for _ in range(random.choice((1, 1, 3))):
            changed[random.randrange(len(changed))] ^= random.randrange(1, 256)
        if random.random() < 0.3:
            del changed[random.randrange(len(changed)) :]
        return bytes(changed), False
    if random.random() < 0.05:
        return _with_other_start(good, random), True
    if random.random() < 0.1:
        return _with_other_weights(seed, random), True
    head = bytearray(seed.head)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if len(head) >= 8:
            random.choice(_EDITS)(head, seed, random)
    return seed.file(bytes(head)), True


def _with_other_start(content: bytes, random: Random) -> bytes:
    words = list(START.unpack_from(content))
    place = random.randrange(1, 6)
    words[place] = _other(words[place], random)
    return with_checksum(START.pack(*words) + content[START.size :])


def _with_other_weights(seed: Seed, random: Random) -> bytes:
    body, head = bytearray(seed.body), bytearray(seed.head)
    for at in seed.regions:
        offset, nbytes, _ = struct.unpack_from("<3q", head, at * 8)
        for _ in range(random.randint(1, 20)):
            body[offset + random.randrange(nbytes)] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))
        struct.pack_into("<q", head, at * 8 + 16, _checksum(bytes(body[offset : offset + nbytes])))
    return seed.file(bytes(head), bytes(body))


def _other(word: int, random: Random) -> int:
    made = random.choice(
        (random.choice(_BOUNDARIES), word + random.choice((-8, -1, 1, 8)), word ^ 1 << random.randrange(64), word * 2)
    )
    return (made + 2**63) % 2**64 - 2**63


def _place(head: bytearray, seed: Seed, random: Random) -> int:
    """A word outside of the models, which are longer than all others."""
    for _ in range(20):
        at = random.randrange(len(head) // 8) * 8
        if not any(start <= at < start + length for start, length in seed.models):
            return at
    return 0


def _set_word(head: bytearray, seed: Seed, random: Random) -> None:
    at = _place(head, seed, random)
    struct.pack_into("<q", head, at, _other(struct.unpack_from("<q", head, at)[0], random))


def _copy_word(head: bytearray, seed: Seed, random: Random) -> None:
    at, source = _place(head, seed, random), _place(head, seed, random)
    head[at : at + 8] = head[source : source + 8]


def _insert_words(head: bytearray, seed: Seed, random: Random) -> None:
    at, count = _place(head, seed, random), random.randint(1, 4)
    head[at:at] = b"".join(struct.pack("<q", random.choice(_BOUNDARIES)) for _ in range(count))


def _delete_words(head: bytearray, seed: Seed, random: Random) -> None:
    at = _place(head, seed, random)
    del head[at : at + 8 * random.randint(1, 4)]


def _swap_words(head: bytearray, seed: Seed, random: Random) -> None:
    one, other = sorted((_place(head, seed, random), _place(head, seed, random)))
    count = 8 * random.randint(1, 12)
    if one + count <= other and other + count <= len(head):
        head[one : one + count], head[other : other + count] = head[other : other + count], head[one : one + count]


def _truncate(head: bytearray, seed: Seed, random: Random) -> None:
    del head[random.randrange(len(head) // 8) * 8 :]


def _set_byte(head: bytearray, seed: Seed, random: Random) -> None:
    head[random.randrange(len(head))] = random.randrange(256)


def _change_model(head: bytearray, seed: Seed, random: Random) -> None:
    if not seed.models:
        return
    start, length = random.choice(seed.models)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = start + random.randrange(length)
        if at < len(head):
            head[at] = random.choice((head[at] ^ 1 << random.randrange(8), head[at] + 1, head[at] - 1, 0, 255)) & 255


def _change_fields(head: bytearray, seed: Seed, random: Random) -> None:
    """Another model that is still one: other operators, attributes, constants, names or versions."""
    start, length = random.choice(seed.models or [(0, 0)])
    with suppress(DecodeError, UnicodeError, IndexError):  # it may be damaged already
        proto = onnx.ModelProto.FromString(bytes(head[start : start + length]))
        _edit_model(proto, random)
        model = proto.SerializeToString()
        head[start - 8 : start + -(-length // 8) * 8] = struct.pack("<q", len(model)) + model + bytes(-len(model) % 8)


def _edit_model(proto: onnx.ModelProto, random: Random) -> None:
    node = random.choice(proto.graph.node)
    kind = random.randrange(7)
    attributes = [each for each in node.attribute if each.ints or each.HasField("i") or each.HasField("s")]
    if kind == 0 and attributes:
        attribute = random.choice(attributes)
        if attribute.ints:
            attribute.ints[random.randrange(len(attribute.ints))] = _other(attribute.ints[0], random)
        elif attribute.HasField("i"):
            attribute.i = _other(attribute.i, random)
        else:
            attribute.s = random.choice((b"VALID", b"SAME_UPPER", b"cubic", b""))
    elif kind == 1:
        node.op_type, node.domain = random.choice(_OPERATORS), random.choice(("", "", "com.microsoft", node.domain))
    elif kind == 2 and node.input:
        names = [*node.input, *node.output, *(each.name for each in proto.graph.initializer), ""]
        node.input[random.randrange(len(node.input))] = random.choice(names)
    elif kind == 3 and proto.graph.initializer:
        tensor = random.choice(proto.graph.initializer)
        tensor.dims[:] = [_other(4, random) for _ in range(random.randint(0, 3))]
        tensor.data_type = random.choice((1, 2, 3, 6, 7, 8, 9, 11))
    elif kind == 4 and proto.graph.input:
        value = random.choice([*proto.graph.input, *proto.graph.output]).type.tensor_type
        value.elem_type = random.choice((1, 2, 6, 7, 8, 11))
        value.shape.dim.add(dim_value=_other(4, random))
    elif kind == 5:
        proto.opset_import[0].version = random.randint(1, 25)
    elif kind == 6:
        node.attribute.append(onnx.helper.make_attribute(random.choice(_ATTRIBUTES), random.choice(_BOUNDARIES)))


_ATTRIBUTES = ("axis", "group", "keepdims", "to", "num_outputs", "blocksize", "ceil_mode", "channels", "size", "k", "N")
_OPERATORS = (
    *("Relu", "MatMul", "Gemm", "Concat", "Split", "Gather", "GatherElements", "Loop", "Scan", "If", "Conv", "Reshape"),
    *("Transpose", "NonZero", "TopK", "Slice", "Pad", "Resize", "QLinearConv", "DequantizeLinear", "SequenceConstruct"),
    *("ConstantOfShape", "Range", "OneHot", "ScatterND", "LSTM", "Einsum", "NonMaxSuppression", "RoiAlign", "Cast"),
    *(
        "FusedMatMul",
        "FusedConv",
        "BiasGelu",
        "MatMulInteger",
        "Identity",
        "Optional",
        "StringSplit",
        "CumSum",
        "Where",
    ),
)
_Edit = Callable[[bytearray, Seed, Random], None]
_EDITS: Sequence[_Edit] = (
    *(_set_word, _set_word, _set_word, _set_word, _copy_word, _insert_words, _delete_words, _swap_words, _truncate),
    *(_set_byte, _change_model, _change_model, *(_change_fields,) * 6),
)


def why_not() -> str:
    """Why plan files cannot be run under sanitizers here; empty where they can."""
    if shutil.which("g++") is None:
        return "no g++"
    if compiled() is None or onnxruntime_path() is None:
        return "the compiled executor or onnxruntime is missing"
    return ""


def build_driver(folder: Path) -> Path:
    """Compile the library and `plan_driver.cpp` with sanitizers."""
    program = folder / "plan_driver"
    sources = [Path(__file__).with_name("plan_driver.cpp"), CPU / "executor.cpp", CPU / "plan_api.cpp"]
    redirected = ("-Dmmap=guarded_mmap", "-Dmunmap=guarded_munmap", f"-I{CPU / 'include'}")
    subprocess.run(["g++", *_FLAGS, *redirected, *map(str, sources), "-o", str(program), "-ldl"], check=True)
    return program


@dataclass(frozen=True)
class Outcome:
    """The result of opening and running a file.

    Attributes:
        text: "refused" and an error, "opened" and an error of a run or nothing, or how the process ended.
        is_fault: whether the process did not answer, or opened a file whose checksums do not fit.
    """

    number: int
    text: str
    is_fault: bool


def outcomes(driver: Path, numbers: Sequence[int], seconds: int = 30) -> Iterator[Outcome]:
    """Open and run the files of these numbers, many in a process, and go on after each one that ends it."""
    with tempfile.TemporaryDirectory(prefix="iosched-plans-") as name:
        made = [(number, *mutated(number)) for number in numbers]
        paths = [Path(name) / str(number) for number in numbers]
        for path, (_, content, _) in zip(paths, made, strict=True):
            path.write_bytes(content)
        at = 0
        while at < len(made):
            command = [str(driver), str(onnxruntime_path()), str(seconds), *map(str, paths[at:])]
            done = subprocess.run(command, capture_output=True, check=False, env=_SANITIZERS)
            lines = done.stdout.decode(errors="replace").split("\n")[:-1]
            ended = done.returncode != 0 and len(lines) < len(made) - at
            for (number, _, fits), line in zip(made[at:], lines, strict=False):
                yield Outcome(number, line, not fits and not line.startswith("refused"))
            at += len(lines)
            if ended or not lines:
                report = done.stderr.decode(errors="replace")[-6000:]
                yield Outcome(made[at][0], f"exit status {done.returncode}\n{report}", True)
                at += 1
