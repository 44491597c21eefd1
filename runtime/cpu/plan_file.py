"""Writes plan files: everything that the compiled executor needs to run a model, without Python (plan_file.hpp)."""

from __future__ import annotations

import ctypes
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

import numpy as np
import onnx

from iosched.models.errors import ExecutionError, UsageError
from iosched.models.graph import TensorSpec
from iosched.models.model import Model
from iosched.runtime.cores import allowed_cpus
from iosched.runtime.cpu.arrays import address
from iosched.runtime.cpu.backend import CompiledModel
from iosched.runtime.cpu.kernels import ELEMENT_TYPE, InvokedNode, Program
from iosched.runtime.cpu.native import EncodedPlan, NativeExecutor, NativeKernel, NativeRuntime
from iosched.runtime.cpu.native_kernels import KINDS, inferred

_MAGIC = b"iosched\n"
_VERSION = 1
_START = struct.Struct("<8s6q")
_PAGE = 4096
_ALIGNMENT = 64
_REGION_NBYTES = 1 << 20
_SESSION, _CALL = 0, 1
_ARRAY, _OF_UNKNOWN_SIZE, _CONSTANT, _INPUT_ITSELF = range(4)


@dataclass(frozen=True, eq=False)
class PlanProgram:
    """A model at one set of input shapes, compiled for the compiled executor.

    Attributes:
        inputs: all inputs of the model, in its order.
        outputs: all outputs, likewise.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    compiled: CompiledModel
    encoded: EncodedPlan

    @classmethod
    def of(cls, model: Model, compiled: CompiledModel) -> Self:
        """The program of a compiled model.

        Raises:
            UsageError: parts of it need Python.
        """
        if not isinstance(compiled.executor, NativeExecutor):
            raise UsageError("parts of the model need Python: it cannot be exported")
        return cls(model.graph.inputs, _outputs(model), compiled, compiled.executor.encoded())


def check_types(model: Model) -> None:
    """Check that all inputs and outputs of a model are tensors that a plan can hold.

    Raises:
        UsageError: one is not; the error names it.
    """
    for spec in (*model.graph.inputs, *_outputs(model)):
        if spec.dtype not in ELEMENT_TYPE:
            raise UsageError(f"{spec.name!r} is of type {spec.dtype}, which needs Python: it cannot be exported")


def _outputs(model: Model) -> tuple[TensorSpec, ...]:
    return tuple(model.graph.tensor[name] for name in model.graph.outputs)


@dataclass(frozen=True)
class PlanAbout:
    """The purpose of a plan file.

    Attributes:
        onnxruntime: its exact version.
        lanes: threads of a run.
        digests: of the model's graph, as onnxruntime shows it to execution providers.
        model_sha256: of the ONNX file next to the plan.
        has_dynamic_batch: whether the model's batch is dynamic, with a program for each batch size of a schedule.
    """

    onnxruntime: str
    lanes: int
    digests: tuple[int, ...]
    model_sha256: str
    has_dynamic_batch: bool


def write_plan(file: BinaryIO, about: PlanAbout, programs: Sequence[PlanProgram], runtime: NativeRuntime) -> int:
    """Write a plan file and return the checksum of its head, which names all other checksums.

    Raises:
        OSError: the file cannot be written.
    """
    library = runtime.library
    kernels = list(dict.fromkeys(kernel for each in programs for kernel in each.encoded.kernels))
    invoked = [kernel.invoked for kernel in kernels if kernel.invoked is not None]
    calls = {id(node) for node, is_good in zip(invoked, inferred(runtime.opened(), invoked), strict=True) if is_good}
    weights = _Weights.of(
        [
            *(array for kernel in kernels for array in _arrays(kernel, calls)),
            *(array for each in programs for array in each.compiled.constant_outputs.values()),
        ]
    )
    regions: list[tuple[int, int, int]] = []
    file.seek(_PAGE)
    for content in weights.regions():
        regions.append((_to_page(file), len(content), _signed(library.iosched_checksum(content, len(content)))))
        file.write(content)
    architecture, features = library.iosched_processor().decode().split("\n")
    head = _HeadWriter()
    head.text(about.onnxruntime).text(architecture).text(features).number(about.lanes)
    head.numbers([*map(_signed, about.digests)]).text(about.model_sha256).number(about.has_dynamic_batch)
    head.number(len(regions))
    for region in regions:
        head.number(*region)
    head.number(len(kernels))
    for kernel in kernels:
        _write_kernel(head, kernel, weights, calls)
    number_of = {kernel: number for number, kernel in enumerate(kernels)}
    head.number(len(programs))
    for each in programs:
        _write_program(head, each, weights, number_of)
    content, offset = bytes(head.content), _to_page(file)
    file.write(content)
    checksum = library.iosched_checksum(content, len(content))
    file.seek(0)
    sizes = offset + len(content), offset, len(content)
    file.write(_START.pack(_MAGIC, _VERSION, *sizes, _signed(checksum), about.lanes))
    return int(checksum)


def plan_lanes(path: Path) -> int:
    """The lanes of a plan file, at most the number of allowed processors.

    Raises:
        ExecutionError: it cannot be read, or is not a plan file.
    """
    start = b""
    try:
        if path.is_file() or not path.exists():  # a pipe would wait
            with path.open("rb") as file:
                start = file.read(_START.size)
    except OSError as error:
        raise ExecutionError(f"{path}: {error.strerror}") from None
    if len(start) < _START.size or not start.startswith(_MAGIC):
        raise ExecutionError(f"{path} is not a plan file")
    return min(max(int(_START.unpack(start)[-1]), 1), len(allowed_cpus()))


def _to_page(file: BinaryIO) -> int:
    """Seek to the next page boundary; returns its offset."""
    return file.seek(-(-file.tell() // _PAGE) * _PAGE)


def _signed(value: int) -> int:
    return value - (value >> 63 << 64)


class _HeadWriter:
    """Words of 8 bytes, and texts padded to them."""

    def __init__(self) -> None:
        self.content = bytearray()

    def number(self, *values: int) -> Self:
        self.content += struct.pack(f"<{len(values)}q", *values)
        return self

    def numbers(self, values: Sequence[int]) -> Self:
        return self.number(len(values), *values)

    def text(self, value: str | bytes) -> Self:
        encoded = value.encode() if isinstance(value, str) else value
        self.number(len(encoded))
        self.content += encoded + bytes(-len(encoded) % 8)
        return self

    def texts(self, values: Sequence[str | bytes]) -> Self:
        self.number(len(values))
        for value in values:
            self.text(value)
        return self


class _WeightSpan(NamedTuple):
    """Memory of this process that one or several arrays share, and its place in the file."""

    begin: int
    end: int
    region: int
    offset: int


@dataclass(frozen=True, eq=False)
class _Weights:
    """The memory of all arrays in ascending order, and the pieces to write: equal pieces are stored once.

    The arrays must outlive it.
    """

    pieces: list[_WeightSpan]
    stored: list[_WeightSpan]

    @classmethod
    def of(cls, arrays: Iterable[np.ndarray]) -> Self:
        """Lay out the memory of these arrays; a region holds about a MiB, or one larger piece."""
        pieces: list[_WeightSpan] = []
        stored: dict[tuple[bytes, int], _WeightSpan] = {}
        region = nbytes = 0
        for begin, end in _merged((address(array), address(array) + array.nbytes) for array in arrays if array.nbytes):
            content = blake2b(_memory(begin, end)).digest(), begin % _ALIGNMENT
            if (same := stored.get(content)) is not None:
                pieces.append(_WeightSpan(begin, end, same.region, same.offset))
                continue
            if nbytes >= _REGION_NBYTES:
                region, nbytes = region + 1, 0
            offset = nbytes + (begin - nbytes) % _ALIGNMENT  # slices keep their alignment
            stored[content] = _WeightSpan(begin, end, region, offset)
            pieces.append(stored[content])
            nbytes = offset + end - begin
        return cls(pieces, list(stored.values()))

    def place(self, array: np.ndarray) -> tuple[int, int]:
        """Region and offset of an array."""
        if not array.nbytes:
            return 0, 0
        begin = address(array)
        piece = self.pieces[bisect_right(self.pieces, begin, key=lambda piece: piece.begin) - 1]
        return piece.region, piece.offset + begin - piece.begin

    def regions(self) -> Iterator[bytes]:
        """The content of each region; there is at least one, for empty arrays."""
        for _, pieces in groupby(self.stored or [_WeightSpan(0, 0, 0, 0)], key=lambda piece: piece.region):
            content = bytearray()
            for piece in pieces:
                content += bytes(piece.offset - len(content)) + _memory(piece.begin, piece.end)
            yield bytes(content)


def _memory(begin: int, end: int) -> bytes:
    return ctypes.string_at(begin, end - begin)


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending spans; overlapping ones are joined."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _arrays(kernel: NativeKernel, calls: set[int]) -> Sequence[np.ndarray]:
    if kernel.invoked is not None and id(kernel.invoked) in calls:
        return kernel.invoked.constants
    return [array for _, array in kernel.program.weights]


def _write_kernel(head: _HeadWriter, kernel: NativeKernel, weights: _Weights, calls: set[int]) -> None:
    if kernel.invoked is not None and id(kernel.invoked) in calls:
        head.number(_CALL)
        _write_call(head, kernel.invoked, weights)
    else:
        head.number(_SESSION)
        _write_session(head, kernel.program, weights)


def _write_session(head: _HeadWriter, program: Program, weights: _Weights) -> None:
    head.text(program.model).texts(program.inputs).texts(program.outputs).number(program.cores)
    head.number(len(program.weights))
    for name, array in program.weights:
        head.text(name)
        _write_constant(head, array, weights)


def _write_constant(head: _HeadWriter, array: np.ndarray, weights: _Weights) -> None:
    head.number(ELEMENT_TYPE[array.dtype.name]).numbers(array.shape).number(*weights.place(array))


def _write_call(head: _HeadWriter, node: InvokedNode, weights: _Weights) -> None:
    head.text(node.op_type).text(node.domain).number(node.version)
    head.number(len(node.constraints))
    for name, kind in node.constraints.items():
        head.text(name).number(kind)
    head.number(len(node.attributes))
    for attribute in node.attributes:
        _write_attribute(head, attribute)
    head.number(len(node.constants))
    for array in node.constants:
        _write_constant(head, array, weights)
    head.numbers(node.sources)
    for views in (node.reads, node.writes):
        head.number(len(views))
        for view in views:
            head.number(ELEMENT_TYPE[view.dtype]).numbers(view.shape or ())


def _write_attribute(head: _HeadWriter, attribute: onnx.AttributeProto) -> None:
    kind, name, _ = KINDS[attribute.type]
    value = getattr(attribute, name)
    head.text(attribute.name).number(kind)
    if name == "s":
        head.text(value)
    elif name == "strings":
        head.texts(value)
    else:
        values = value if name in ("ints", "floats") else (value,)
        words = values if name in ("i", "ints") else [_float_word(each) for each in values]
        head.numbers(list(words))


def _float_word(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")


def _write_program(
    head: _HeadWriter, program: PlanProgram, weights: _Weights, number_of: Mapping[NativeKernel, int]
) -> None:
    encoded = program.encoded
    head.number(len(program.inputs))
    for spec in program.inputs:
        _write_port(head, spec.name, spec.dtype, spec.shape)
    place_of = {spec.name: place for place, spec in enumerate(program.inputs)}
    arrays = {view.buffer: place for place, view in enumerate(encoded.outputs)}
    head.number(len(program.outputs))
    for spec in program.outputs:
        _write_output(head, program, spec, place_of, arrays, weights)
    head.numbers([place_of[view.buffer] for view in encoded.inputs])
    head.numbers([number_of[kernel] for kernel in encoded.kernels])
    head.numbers(encoded.words)


def _write_output(
    head: _HeadWriter,
    program: PlanProgram,
    spec: TensorSpec,
    inputs: Mapping[str, int],
    arrays: Mapping[str, int],
    weights: _Weights,
) -> None:
    name, slots = spec.name, program.encoded.slots
    if (constant := program.compiled.constant_outputs.get(name)) is not None:
        head.number(_CONSTANT)
        _write_port(head, name, constant.dtype.name, constant.shape)
        head.number(*weights.place(constant))
    elif name in program.compiled.forwarded_outputs:
        head.number(_INPUT_ITSELF)
        _write_port(head, name, spec.dtype, program.inputs[inputs[name]].shape)
        head.number(inputs[name])
    elif name in slots:
        head.number(_OF_UNKNOWN_SIZE)
        _write_port(head, name, spec.dtype, ())
        head.number(slots[name])
    else:
        head.number(_ARRAY)
        view = program.encoded.outputs[arrays[name]]
        _write_port(head, name, view.dtype, view.shape)
        head.number(arrays[name])


def _write_port(head: _HeadWriter, name: str, dtype: str, shape: tuple[int, ...] | None) -> None:
    head.text(name).number(ELEMENT_TYPE[dtype]).numbers(shape or ())
