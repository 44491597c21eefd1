"""Proves that operators compute the same bits without a session as in one, and as fast.

They are compared on random inputs and their own constants, many in one session. The session runs first: it refuses
results whose shape differs from the plan's, which an operator alone does not check. An operator that differs,
fails or is slower keeps its session, which may pack weights. Results are saved in a file for this onnxruntime and CPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from iosched.models.errors import ExecutionError
from iosched.runtime.cpu.arrays import PlanEncoder, address, aligned_empty
from iosched.runtime.cpu.kernels import InvokedNode, Program
from iosched.runtime.cpu.library import call
from iosched.runtime.cpu.native_kernels import RuntimeHandle, executor, session
from iosched.runtime.handle import Handle
from iosched.runtime.inputs import numpy_dtype
from iosched.runtime.plan import Buffer, ExecutionPlan, MemorySpace, PlanTask, View
from iosched.runtime.processor import read_processor

_BATCH_NBYTES = 32 << 20
_POISONS = (0x5A, 0xA5)
_TRIAL_NBYTES = 256 << 10
_ROUNDS, _TRIES = 7, 3

_SLOWER = 1.2
"""Maximum slowdown of an operator over its session to count as equally fast; packing gains more."""


@dataclass(frozen=True, eq=False)
class ProofCandidate:
    """An operator, and the program that computes the same in a session."""

    program: Program
    invoked: InvokedNode
    handle: Handle


def proven(runtime: RuntimeHandle, candidates: Sequence[ProofCandidate]) -> frozenset[bytes]:
    """The signatures of the equivalent and equally fast candidates; one candidate for each signature."""
    same = [each for batch in _batches(candidates) for each in _same(runtime, batch)]
    tried: dict[object, ProofCandidate] = {}
    for each in sorted(same, key=lambda each: _trial_order(each.invoked)):
        tried.setdefault(_kind(each.invoked), each)
    slower = {kind for kind, each in tried.items() if _is_slower(runtime, each)}
    return frozenset(each.invoked.signature for each in same if _kind(each.invoked) not in slower)


def _kind(invoked: InvokedNode) -> object:
    """The kernel of a node: it decides whether a session packs constants."""
    return invoked.operator, invoked.version, tuple(sorted(invoked.constraints.items()))


def _trial_order(invoked: InvokedNode) -> tuple[int, int]:
    """Small operators first, those with most constants leading: they show whether a session packs them."""
    constants = sum(array.nbytes for array in invoked.constants)
    return (-constants, 0) if constants <= _TRIAL_NBYTES else (1, constants)


def _nbytes(invoked: InvokedNode) -> int:
    return sum(view.nbytes for view in (*invoked.reads, *invoked.writes))


def _batches(candidates: Iterable[ProofCandidate]) -> Iterator[list[ProofCandidate]]:
    batch: list[ProofCandidate] = []
    for each in candidates:
        if batch and sum(_nbytes(one.invoked) for one in (*batch, each)) > _BATCH_NBYTES:
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch


def _same(runtime: RuntimeHandle, batch: Sequence[ProofCandidate]) -> list[ProofCandidate]:
    try:
        run = _ProofRun(runtime, batch, session(runtime, _together(batch), (-1,)))
        run.times_us(1)
    except ExecutionError:
        if len(batch) < 2:
            return []
        half = len(batch) // 2
        return [*_same(runtime, batch[:half]), *_same(runtime, batch[half:])]
    return [each for index, each in enumerate(batch) if run.agrees(index)]


def _is_slower(runtime: RuntimeHandle, candidate: ProofCandidate) -> bool:
    """Whether it is slower in every try: the machine may be busy, and the result is saved.

    A failure counts as slower: the inputs differ from those of `_same`, so a Gather's indices may be out of bounds.
    """
    run = _ProofRun(runtime, [candidate], session(runtime, candidate.program, (-1,)))
    fastest_us = (run.times_us(_ROUNDS).min(axis=0) for _ in range(_TRIES))
    try:
        return all(alone_us > _SLOWER * in_session_us for in_session_us, alone_us in fastest_us)
    except ExecutionError:
        return True


def _together(batch: Sequence[ProofCandidate]) -> Program:
    joint = onnx.ModelProto()
    inputs, outputs, weights = [], [], []
    for index, each in enumerate(batch):
        program, model = each.program, onnx.ModelProto.FromString(each.program.model)
        if index == 0:
            joint.ir_version, joint.graph.name = model.ir_version, model.graph.name
        known = {entry.domain for entry in joint.opset_import}
        joint.opset_import.extend(entry for entry in model.opset_import if entry.domain not in known)
        _rename(model.graph, f"{index}/")
        for field in ("node", "input", "output", "initializer"):
            getattr(joint.graph, field).extend(getattr(model.graph, field))
        inputs += [f"{index}/{name}" for name in program.inputs]
        outputs += [f"{index}/{name}" for name in program.outputs]
        weights += [(f"{index}/{name}", array) for name, array in program.weights]
    return Program(joint.SerializeToString, tuple(inputs), tuple(outputs), tuple(weights))


def _rename(graph: onnx.GraphProto, prefix: str) -> None:
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = prefix + value.name
    for node in graph.node:
        node.name = prefix + node.name
        node.input[:] = [prefix + name if name else "" for name in node.input]
        node.output[:] = [prefix + name if name else "" for name in node.output]


class _ProofRun:
    """A plan on one lane: a session that computes all candidates, then the operators on the same inputs."""

    def __init__(self, runtime: RuntimeHandle, batch: Sequence[ProofCandidate], in_session: Handle) -> None:
        self._runtime, self._batch = runtime, batch
        self._kept = in_session
        reads = [_renamed(each.invoked.reads, f"{index}/r") for index, each in enumerate(batch)]
        writes = [_renamed(each.invoked.writes, f"{index}/w") for index, each in enumerate(batch)]
        self._expected = [_renamed(views, "session/") for views in writes]
        self._found = writes
        inputs, expected = _flat(reads), _flat(self._expected)
        made = (*expected, *_flat(writes))
        first = PlanTask("session", 0, inputs, expected)
        others = [
            PlanTask(each.invoked.operator, index, reads[index - 1], writes[index - 1])
            for index, each in enumerate(batch, start=1)
        ]
        buffers = (
            *(Buffer(view.buffer, MemorySpace.INPUT, view.nbytes) for view in inputs),
            *(Buffer(view.buffer, MemorySpace.OUTPUT, view.nbytes) for view in made),
        )
        plan = ExecutionPlan(((first, *others),), buffers, 0)
        kernels = [in_session, *(each.handle for each in batch)]
        words = PlanEncoder(plan, inputs, made).words(range(len(kernels)))
        self._executor = executor(runtime, words, kernels, [-1])
        self._inputs = _random_arrays(inputs)
        self._outputs = {view.buffer: _filled(view, _POISONS[place < len(expected)]) for place, view in enumerate(made)}

    def times_us(self, repeats: int) -> np.ndarray:
        """Microseconds of the session and of each operator: (repeats, 1 + operators).

        Raises:
            ExecutionError: the session refuses a shape, or an operator fails.
        """
        spans_us = np.zeros((repeats, 1 + len(self._batch), 2))
        times_us = (ctypes.c_double * repeats)()
        call(
            self._runtime.library.iosched_executor_run,
            *(self._executor.pointer, _pointers(self._inputs), _pointers(list(self._outputs.values())), repeats, 0),
            *(None, 0, times_us, address(spans_us)),
        )
        return spans_us[:, :, 1] - spans_us[:, :, 0]

    def agrees(self, index: int) -> bool:
        pairs = zip(self._expected[index], self._found[index], strict=True)
        return all(np.array_equal(self._outputs[one.buffer], self._outputs[two.buffer]) for one, two in pairs)


def _flat(views: Iterable[tuple[View, ...]]) -> tuple[View, ...]:
    return tuple(view for own in views for view in own)


def _renamed(views: Sequence[View], prefix: str) -> tuple[View, ...]:
    return tuple(
        replace(view, buffer=f"{prefix}{view.buffer if prefix == 'session/' else place}", offset=0)
        for place, view in enumerate(views)
    )


def _filled(view: View, value: int) -> np.ndarray:
    array = aligned_empty(view.nbytes)
    array.fill(value)
    return array


def _random_arrays(views: Sequence[View]) -> list[np.ndarray]:
    """Random values of each view's type, small so that integers do not overflow."""
    generator = np.random.default_rng(0)
    found = []
    for view in views:
        dtype = numpy_dtype(view.dtype)
        whole = generator.integers(0, 2 if dtype.kind == "b" else 9, 1 << 12)
        block = whole if dtype.kind in "biu" else generator.normal(size=1 << 12)
        array = aligned_empty(view.nbytes)
        array[:] = np.resize(block.astype(dtype).view(np.uint8), view.nbytes)
        found.append(array)
    return found


def _pointers(arrays: Sequence[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(arrays))(*(address(array) for array in arrays))


_SIGNATURE_NBYTES = 16
_VERDICTS = {"yes": True, "no": False}


def proofs_path(onnxruntime: Path) -> Path | None:
    """The file for this onnxruntime and CPU; None without a cache folder."""
    from platformdirs import user_cache_dir

    try:
        state = onnxruntime.stat()
        folder = Path(user_cache_dir("iosched", appauthor=False)) / "operators"
    except (OSError, RuntimeError):  # such as a missing home folder
        return None
    processor = read_processor()
    key = (onnxruntime.name, state.st_size, state.st_mtime_ns, processor.name, sorted(processor.design.items()))
    return folder / f"{hashlib.blake2b(repr(key).encode(), digest_size=8).hexdigest()}.txt"


def load_proofs(path: Path | None) -> dict[bytes, bool]:
    """By signature, whether an operator runs without a session; unreadable lines are skipped."""
    found: dict[bytes, bool] = {}
    if path is None:
        return found
    with suppress(OSError, UnicodeDecodeError):
        for line in path.read_text("ascii").splitlines():
            signature, _, verdict = line.partition(" ")
            with suppress(ValueError):
                if verdict in _VERDICTS and len(bytes.fromhex(signature)) == _SIGNATURE_NBYTES:
                    found[bytes.fromhex(signature)] = _VERDICTS[verdict]
    return found


def save_proofs(path: Path | None, proofs: Mapping[bytes, bool]) -> None:
    """Append to the file in one write, so that concurrent processes can too; failures are ignored."""
    if path is None or not proofs:
        return
    lines = "".join(f"{signature.hex()} {'yes' if proof else 'no'}\n" for signature, proof in proofs.items())
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, lines.encode("ascii"))
        finally:
            os.close(file)
