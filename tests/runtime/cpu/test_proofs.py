"""Operators without sessions: their descriptions, and that only equivalent ones are accepted."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given
from onnx.helper import make_attribute, make_node
from small_models import branches, loaded, models, proto_of

from iosched.models.errors import ExecutionError
from iosched.runtime.cpu import native, proofs
from iosched.runtime.cpu.backend import CompiledModel, CpuBackend
from iosched.runtime.cpu.kernels import ELEMENT_TYPE, InvokedNode, Program, invoked_node, is_invocable
from iosched.runtime.cpu.library import available
from iosched.runtime.cpu.native import NativeExecutor, NativeRuntime
from iosched.runtime.cpu.native_kernels import RuntimeHandle, operator
from iosched.runtime.cpu.proofs import ProofCandidate, proven
from iosched.runtime.hazards import CheckedPlan
from iosched.runtime.inputs import random_inputs
from iosched.runtime.plan import Buffer, ExecutionPlan, MemorySpace, PlanTask, View
from iosched.scheduler.baselines import greedy, sequential

OPSETS = {"": 17, "com.microsoft": 1, "com.microsoft.nchwc": 1}

Shapes = Mapping[str, tuple[int, ...]]


def floats(shapes: Shapes) -> dict[str, View]:
    return {name: View(name, "float32", shape, 0, 4 * int(np.prod(shape))) for name, shape in shapes.items()}


def program_of(
    node: onnx.NodeProto, reads: Mapping[str, View], writes: Mapping[str, View], constants: Mapping[str, np.ndarray]
) -> Program:
    inputs = {name: (ELEMENT_TYPE[view.dtype], view.shape or ()) for name, view in reads.items()}
    outputs = {name: ELEMENT_TYPE[view.dtype] for name, view in writes.items()}
    model = proto_of([node], inputs, outputs, constants, domains=[domain for domain in OPSETS if domain])
    return Program(model.SerializeToString, tuple(reads), tuple(writes))


def invoked(
    node: onnx.NodeProto, reads: Mapping[str, View], writes: Mapping[str, View], constants: Mapping[str, np.ndarray]
) -> InvokedNode:
    found = invoked_node(node, OPSETS, reads, writes, constants)
    assert found is not None
    return found


def lent(runtime: NativeRuntime) -> RuntimeHandle:
    return RuntimeHandle(runtime.library, runtime.handle.pointer)


def candidate(runtime: NativeRuntime, program: Program, node: InvokedNode) -> ProofCandidate:
    return ProofCandidate(program, node, operator(lent(runtime), node))


pytestmark = pytest.mark.skipif(not available(), reason="there is no compiled executor")

IMAGE = {"x": (1, 8, 6, 6)}
POOL = {"kernel_shape": [2, 2]}
WEIGHT = np.ones((8, 8, 1, 1), np.float32)
INTS = np.array([1, 2], np.int64)

Case = tuple[onnx.NodeProto, Shapes, Shapes, dict[str, np.ndarray]]
CASES: dict[str, Case] = {
    "relu": (make_node("Relu", ["x"], ["y"]), IMAGE, {"y": (1, 8, 6, 6)}, {}),
    "one operand twice": (make_node("Add", ["x", "x"], ["y"]), IMAGE, {"y": (1, 8, 6, 6)}, {}),
    "sum of two": (make_node("Sum", ["x", "z"], ["y"]), {**IMAGE, "z": (1, 8, 6, 6)}, {"y": (1, 8, 6, 6)}, {}),
    "convolution": (make_node("Conv", ["x", "w"], ["y"]), IMAGE, {"y": (1, 8, 6, 6)}, {"w": WEIGHT}),
    "pool": (make_node("MaxPool", ["x"], ["y"], **POOL), IMAGE, {"y": (1, 8, 5, 5)}, {}),
    "softmax": (make_node("Softmax", ["x"], ["y"]), IMAGE, {"y": (1, 8, 6, 6)}, {}),
    "optional operands left out": (
        make_node("Resize", ["x", "", "s"], ["y"], mode="linear"),
        IMAGE,
        {"y": (1, 8, 12, 12)},
        {"s": np.array([1, 1, 2, 2], np.float32)},
    ),
    "slice": (make_node("Slice", ["x", "a", "b"], ["y"]), {"x": (4, 3)}, {"y": (1, 2)}, {"a": INTS * 0, "b": INTS}),
    "blocks": (
        make_node("ReorderInput", ["x"], ["y"], domain="com.microsoft.nchwc"),
        {"x": (1, 16, 6, 6)},
        {"y": (1, 16, 6, 6)},
        {},
    ),
}


@pytest.fixture(scope="module")
def runtime() -> Iterator[NativeRuntime]:
    with NativeRuntime() as made:
        yield made


def of(case: str) -> InvokedNode:
    node, reads, writes, constants = CASES[case]
    return invoked(node, floats(reads), floats(writes), constants)


def is_proven(runtime: NativeRuntime, case: str, changed: InvokedNode | None = None) -> bool:
    node, reads, writes, constants = CASES[case]
    program = program_of(node, floats(reads), floats(writes), constants)
    return bool(proven(lent(runtime), [candidate(runtime, program, changed or of(case))]))


@pytest.mark.parametrize("case", [name for name in CASES if name != "blocks"])
def test_operator_without_session_computes_the_same(runtime: NativeRuntime, case: str) -> None:
    assert is_proven(runtime, case)


@pytest.mark.parametrize(
    "kind", ["Concat", "Max", "MatMul", "Gemm", "LSTM", "If", "Identity", "Constant", "QLinearConv"]
)
def test_an_operator_that_is_not_known_to_be_safe_keeps_its_session(kind: str) -> None:
    assert not is_invocable(make_node(kind, ["x", "z"], ["y"]))


def test_operators_shaped_by_computed_operands_keep_their_session() -> None:
    reads = {**floats({"x": (4, 3)}), "s": View("s", "int64", (2,), 0, 16)}
    node = make_node("Reshape", ["x", "s"], ["y"])
    assert invoked_node(node, {"": 17}, reads, floats({"y": (3, 4)}), {}) is None


@pytest.mark.parametrize(("opset", "scales"), [(10, 1), (11, 2)])
def test_a_resize_of_opset_10_keeps_its_session(opset: int, scales: int) -> None:
    """Without one, onnxruntime crashes."""
    inputs = ["x", "", "s"] if scales == 2 else ["x", "s"]
    node, constants = make_node("Resize", inputs, ["y"], mode="nearest"), {"s": np.float32([1, 1, 2, 2])}
    reads, writes = floats({"x": (1, 1, 2, 2)}), floats({"y": (1, 1, 4, 4)})
    assert (invoked_node(node, {"": opset}, reads, writes, constants) is None) == (opset == 10)


@pytest.mark.parametrize("shape", [None, (0, 3)])
def test_views_of_unknown_or_zero_size_keep_their_session(shape: tuple[int, ...] | None) -> None:
    views = [{name: View(name, "float32", shape)} for name in ("x", "y")]
    assert invoked_node(make_node("Relu", ["x"], ["y"]), {"": 17}, *views, {}) is None


def test_versions_and_attributes_are_those_of_the_operator_set() -> None:
    assert {each.name for each in of("pool").attributes} >= {"auto_pad", "ceil_mode", "storage_order"}
    assert (of("pool").version, of("relu").version, of("blocks").version) == (12, 14, 1)
    assert of("optional operands left out").sources == (0, -1, -2)


def test_only_constants_that_determine_shapes_change_the_signature() -> None:
    node, reads, writes, constants = CASES["convolution"]
    other = invoked(node, floats(reads), floats(writes), {"w": 2 * constants["w"]})
    assert other.signature == of("convolution").signature
    node, reads, writes, constants = CASES["slice"]
    other = invoked(node, floats(reads), floats(writes), {**constants, "a": constants["a"] + 1})
    assert other.signature != of("slice").signature
    node, reads, writes, constants = CASES["optional operands left out"]
    other = invoked(node, floats(reads), floats(writes), {"s": constants["s"] * np.float32(1.01)})
    assert other.signature != of("optional operands left out").signature


def test_a_missing_attribute_is_rejected(runtime: NativeRuntime) -> None:
    only = (make_attribute("kernel_shape", [2, 2]),)
    with pytest.raises(ExecutionError, match="auto_pad"):
        is_proven(runtime, "pool", replace(of("pool"), attributes=only))


def test_a_changed_attribute_value_is_rejected(runtime: NativeRuntime) -> None:
    other = (make_attribute("axis", 1),)
    assert not is_proven(runtime, "softmax", replace(of("softmax"), attributes=other))


def test_another_operator_version_is_rejected(runtime: NativeRuntime) -> None:
    with pytest.raises(ExecutionError, match=r"(?i)version"):
        is_proven(runtime, "relu", replace(of("relu"), version=17))


@pytest.mark.parametrize("shape", [(1, 8, 5, 4), (1, 8, 3, 3)])
def test_a_wrong_output_shape_is_rejected(runtime: NativeRuntime, shape: tuple[int, ...]) -> None:
    node, reads, _, _ = CASES["pool"]
    changed = invoked(node, floats(reads), floats({"y": shape}), {})
    assert not is_proven(runtime, "pool", changed)


def test_a_kernel_of_another_type_is_rejected(runtime: NativeRuntime) -> None:
    with pytest.raises(ExecutionError):
        is_proven(runtime, "relu", replace(of("relu"), constraints={"T": onnx.TensorProto.BOOL}))
    doubles = {name: replace(view, dtype="float64") for name, view in floats({"x": (8,), "y": (8,)}).items()}
    node = make_node("Relu", ["x"], ["y"])
    said = replace(invoked(node, {"x": doubles["x"]}, {"y": doubles["y"]}, {}), constraints={"T": 1})
    program = program_of(node, {"x": doubles["x"]}, {"y": doubles["y"]}, {})
    assert not proven(lent(runtime), [candidate(runtime, program, said)])


def test_an_incorrectly_described_variadic_operator_is_rejected(runtime: NativeRuntime) -> None:
    node = make_node("Max", ["x", "z"], ["y"])
    two, one = floats({"x": (8,), "z": (8,)}), floats({"y": (8,)})
    add = invoked(make_node("Add", ["x", "z"], ["y"]), two, one, {})
    said = replace(add, op_type="Max", version=13)
    assert not proven(lent(runtime), [candidate(runtime, program_of(node, two, one, {}), said)])


def test_an_operator_that_fails_does_not_affect_the_others(runtime: NativeRuntime) -> None:
    node, reads, _, _ = CASES["pool"]
    wrong = invoked(node, floats(reads), floats({"y": (1, 8, 3, 3)}), {})
    program = program_of(node, floats(reads), floats({"y": (1, 8, 3, 3)}), {})
    good = {name: of(name) for name in ("relu", "convolution", "slice")}
    others = []
    for name, each in good.items():
        node, reads, writes, constants = CASES[name]
        others.append(candidate(runtime, program_of(node, floats(reads), floats(writes), constants), each))
    found = proven(lent(runtime), [others[0], candidate(runtime, program, wrong), *others[1:]])
    assert found == {each.signature for each in good.values()}


def test_an_operator_that_fails_while_timed_keeps_its_session(
    runtime: NativeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proofs, "_same", lambda runtime, batch: list(batch))
    node, reads, _, _ = CASES["pool"]
    wrong = invoked(node, floats(reads), floats({"y": (1, 8, 3, 3)}), {})
    program = program_of(node, floats(reads), floats({"y": (1, 8, 3, 3)}), {})
    assert proven(lent(runtime), [candidate(runtime, program, wrong)]) == frozenset()


def test_operators_slower_without_session_keep_it(runtime: NativeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "_SLOWER", 0.0)
    assert not is_proven(runtime, "relu")


@pytest.fixture
def everything_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything counts as proven."""

    def believed(_: RuntimeHandle, candidates: list[proofs.ProofCandidate]) -> frozenset[bytes]:
        return frozenset(each.invoked.signature for each in candidates)

    monkeypatch.setattr(native, "proven", believed)


def ready(case: str, shape: tuple[int, ...], result: tuple[int, ...]) -> NativeExecutor:
    """An executor of one operator, in a plan with views of these shapes."""
    node, reads, writes, constants = CASES[case]
    program = program_of(node, floats(reads), floats(writes), constants)
    views = floats({"x": shape, "y": result})
    buffers = (Buffer("x", MemorySpace.INPUT, views["x"].nbytes), Buffer("y", MemorySpace.OUTPUT, views["y"].nbytes))
    task = PlanTask("a task", 0, (views["x"],), (views["y"],))
    plan = CheckedPlan(ExecutionPlan(((task,),), buffers, 0))
    return NativeExecutor(plan, [replace(program, invoked=of(case))])


@pytest.mark.usefixtures("everything_proven")
@pytest.mark.parametrize("shape", [(4, 4), (8, 6, 6), (1, 8, 6, 7)])
def test_views_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ExecutionError, match="another type or shape"):
        ready("relu", shape, shape)


@pytest.mark.usefixtures("everything_proven")
def test_failing_operator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fifteen = make_node("Reshape", ["x", "s"], ["y"]), {"x": (4, 4)}, {"y": (16,)}, {"s": np.array([15], np.int64)}
    monkeypatch.setitem(CASES, "reshape", fifteen)
    with ready("reshape", (4, 4), (16,)) as failing:
        for _ in range(2):
            with pytest.raises(ExecutionError, match=r"^a task: Reshape: "):
                failing.run({"x": np.ones((4, 4), np.float32)})


def _called(compiled: CompiledModel) -> set[bool]:
    assert isinstance(compiled.executor, NativeExecutor)
    return {kernel.invoked is not None for kernel in compiled.executor.kernels}


def test_operators_without_sessions_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(branches())
    for invokes in (True, False):
        with CpuBackend(model, invokes=invokes) as backend:
            assert invokes in _called(backend.compile(sequential(backend.graph)))


def test_an_onnxruntime_too_old_for_invoking_operators_uses_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: RuntimeHandle) -> None:
        raise ExecutionError("too old")

    monkeypatch.setattr(native, "prepare", refuses)
    with CpuBackend(loaded(branches())) as backend:
        assert _called(backend.compile(sequential(backend.graph))) == {False}


@given(proto=models())
def test_any_model_computes_the_same_bits_without_sessions(proto: onnx.ModelProto) -> None:
    model = loaded(proto)
    inputs = random_inputs(model.graph.inputs)
    with CpuBackend(model, lanes=2) as without, CpuBackend(model, lanes=2, invokes=False) as within:
        for schedule in (sequential, greedy):
            found = without.compile(schedule(without.graph)).run(inputs)
            expected = within.compile(schedule(within.graph)).run(inputs)
            assert _bits(found) == _bits(expected)


_IN_A_PROCESS = """
import os, sys
import onnx
from iosched.models.errors import ExecutionError
from iosched.models.load import load_model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import sequential
model = load_model(sys.stdin.buffer.read())
backend = CpuBackend(model, lanes=2)
compiled = backend.compile(sequential(backend.graph))
assert any(kernel.invoked is not None for kernel in compiled.executor.kernels)
inputs = random_inputs(model.graph.inputs)
compiled.run(inputs)
"""
_FORKED = """
pid = os.fork()
if pid == 0:
    try:
        compiled.run(inputs)
    except ExecutionError as error:
        os._exit(7 if "forked" in str(error) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
compiled.run(inputs)
"""


@pytest.mark.parametrize("then", ["", _FORKED], ids=["exit with a model open", "fork"])
def test_processes_end_and_fork_as_with_sessions(then: str) -> None:
    command = [sys.executable, "-c", _IN_A_PROCESS + then]
    done = subprocess.run(command, input=branches().SerializeToString(), capture_output=True, timeout=120)
    assert (done.returncode, done.stderr.decode()) == (0, "")


@pytest.mark.slow
def test_eight_threads_run_four_models_that_share_operators() -> None:
    model = loaded(branches())
    inputs = random_inputs(model.graph.inputs)
    with ExitStack() as stack:
        first = stack.enter_context(CpuBackend(model, lanes=2))
        backends = [first, *(stack.enter_context(CpuBackend(model, lanes=2)) for _ in range(2))]
        backends.append(stack.enter_context(CpuBackend(model, sharing=first)))
        compiled = [each.compile(greedy(each.graph)) for each in backends]
        expected = _bits(compiled[0].run(inputs))

        def run(index: int) -> bool:
            return all(_bits(compiled[index % 4].run(inputs)) == expected for _ in range(2000))

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(run, range(8)))


def _bits(outputs: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in outputs.items()}


def test_proofs_are_kept_for_later_backends_and_malformed_lines_are_ignored(
    runtime: NativeRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = loaded(branches())
    asked: list[int] = []

    def counted(lent: RuntimeHandle, candidates: list[proofs.ProofCandidate]) -> frozenset[bytes]:
        asked.append(len(candidates))
        return proven(lent, candidates)

    monkeypatch.setattr(native, "proven", counted)
    for _ in range(2):
        with CpuBackend(model, lanes=1) as backend:
            backend.compile(sequential(backend.graph))
    assert len(asked) == 1
    (path,) = (native.proofs_path(native.onnxruntime_path()).parent).iterdir()  # type: ignore[union-attr, arg-type]
    assert re.fullmatch(r"([0-9a-f]{32} (yes|no)\n)+", path.read_text())
    path.write_text("nonsense\n" + path.read_text()[:40])
    with CpuBackend(model, lanes=1) as backend:
        backend.compile(sequential(backend.graph))
    assert len(asked) == 2
