"""Plan files: a written plan computes the bits of its model, and no other bytes are opened as a plan."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import plan_files
import pytest
from plan_files import LANES, START, Seed, plan_of, seeds, small_models
from small_models import branches, feeds_for, loaded, proto_of

from iosched.models.errors import ExecutionError
from iosched.models.graph import TensorSpec
from iosched.runtime import arena
from iosched.runtime.cpu import library
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.kernels import Copy, InvokedNode, Kernel, Program
from iosched.runtime.cpu.native import NativeExecutor, NativeRuntime
from iosched.runtime.cpu.native_kernels import inferred
from iosched.runtime.cpu.opened_plan import OpenedPlan, OpenedProgram
from iosched.runtime.cpu.optimized import _channel_block
from iosched.runtime.cpu.plan_file import PlanAbout, PlanProgram, write_plan
from iosched.runtime.hazards import CheckedPlan
from iosched.runtime.plan import Buffer, ExecutionPlan, MemorySpace, PlanTask, View
from iosched.scheduler.baselines import greedy

pytestmark = pytest.mark.skipif(not library.available(), reason=f"no compiled executor: {library.missing()}")
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def opened(content: bytes, folder: Path) -> OpenedPlan:
    path = folder / "model.plan"
    path.write_bytes(content)
    return OpenedPlan(path)


def check_refused(content: bytes, folder: Path, match: str = ".") -> None:
    with pytest.raises(ExecutionError, match=match):
        opened(content, folder)


@pytest.mark.parametrize("name", small_models())
def test_a_plan_computes_the_bits_of_its_model(name: str, tmp_path: Path) -> None:
    models = small_models()[name]
    plan = opened(plan_of(models), tmp_path)
    assert plan.lanes == LANES
    assert len(plan.programs) == len(models)
    for model in models:
        program = OpenedProgram(plan, plan.number_of(model.bindings) or 0)
        feeds = feeds_for(model)
        with CpuBackend(model, lanes=LANES) as backend:
            wanted = backend.compile(greedy(backend.graph)).run(feeds)
        for _ in range(2):
            found = program.run(feeds)
            assert list(found) == list(model.graph.outputs)
            for output, array in found.items():
                assert array.dtype == wanted[output].dtype
                assert np.array_equal(array, wanted[output]), output


def parts(content: bytes) -> dict[str, tuple[int, int]]:
    """First byte and end of each part of a plan file with one region of weights."""
    offset = START.unpack_from(content)[3]
    seed = Seed.of(content, [])
    nbytes = struct.unpack_from("<q", seed.head, seed.regions[0] * 8 + 8)[0]
    return {
        **{name: (8 * place, 8 * place + 8) for place, name in enumerate(("magic", "version", "size", "place"))},
        "length": (32, 40),
        "checksum": (40, 48),
        "behind the start": (48, 4096),
        "weights": (4096, 4096 + nbytes),
        "behind the weights": (4096 + nbytes, offset),
        "head": (offset, len(content)),
    }


def test_a_changed_byte_is_an_error(tmp_path: Path) -> None:
    content = plan_of([loaded(branches())])
    for begin, end in parts(content).values():
        for at in sorted({begin, (begin + end) // 2, end - 1}):
            damaged = bytearray(content)
            damaged[at] ^= 64
            check_refused(bytes(damaged), tmp_path)


@pytest.mark.parametrize("left", [0, 7, 47, 48, 4096, -8, -1])
def test_a_truncated_file_is_an_error(left: int, tmp_path: Path) -> None:
    check_refused(plan_of([loaded(branches())])[:left], tmp_path, "not a plan file|incomplete")


def test_a_folder_or_a_missing_file_is_an_error(tmp_path: Path) -> None:
    for path, text in ((tmp_path, "not a plan file"), (tmp_path / "none", "No such file")):
        with pytest.raises(ExecutionError, match=text):
            OpenedPlan(path)


def test_a_plan_for_another_version_of_onnxruntime_is_refused(tmp_path: Path) -> None:
    check_refused(plan_of([loaded(branches())], version="1.2.3"), tmp_path, r"for onnxruntime 1\.2\.3, not ")


def test_a_plan_for_more_cores_than_available_is_refused(tmp_path: Path) -> None:
    check_refused(plan_of([loaded(branches())], lanes=1000), tmp_path, "needs 1000 cores, but may use ")


def test_a_plan_for_other_processor_instructions_is_refused(tmp_path: Path) -> None:
    seed = seeds()["branches"]
    library_of_ours = library.compiled()
    assert library_of_ours is not None
    architecture = library_of_ours.iosched_processor().split(b"\n")[0]
    head = bytes(seed.head).replace(architecture, bytes(reversed(architecture)), 1)
    check_refused(seed.file(head), tmp_path, "other instructions")


def test_names_may_be_any_bytes(tmp_path: Path) -> None:
    """Names that Python cannot decode stay distinct."""
    seed = seeds()["dynamic"]
    plan = opened(seed.file(bytes(seed.head).replace(b"unused\0\0", b"unus\xffd\0\0")), tmp_path)
    assert [spec.name for spec in plan.programs[0].inputs] == ["x", "unus\udcffd"]


def test_two_outputs_of_one_name_are_an_error(tmp_path: Path) -> None:
    """Python would give both the same memory."""
    seed = seeds()["dynamic"]
    head = bytes(seed.head).replace(struct.pack("<q8s", 4, b"same"), struct.pack("<q8sq", 1, b"y", 0)[:16])
    check_refused(seed.file(head), tmp_path, "of one name")


def test_a_text_with_a_nul_is_an_error(tmp_path: Path) -> None:
    """onnxruntime would infer shapes with all of it, and run with the part before the NUL."""
    seed = seeds()["shaped"]
    good, bad = struct.pack("<q8s", 6, b"linear"), struct.pack("<q8s", 7, b"linear")
    assert seed.head.count(good) == 1
    check_refused(seed.file(bytes(seed.head).replace(good, bad)), tmp_path, "a name in the plan is broken")


Change = Callable[[onnx.ModelProto], object]


def _use_the_name(proto: onnx.ModelProto) -> None:
    weight = proto.graph.initializer.pop()
    text = onnx.numpy_helper.from_array(np.array([b"a"], object))
    proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], [weight.name], value=text))


def _put_inside(proto: onnx.ModelProto) -> None:
    attribute = proto.graph.node[0].attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    attribute.t.CopyFrom(proto.graph.initializer[0])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda proto: proto.functions.add(name="f", domain="f"), "functions"),
        (lambda proto: proto.metadata_props.add(key="a"), "functions, metadata"),
        (lambda proto: setattr(proto.graph.node[0], "domain", "com.example"), "operators of an unknown domain"),
        (lambda proto: setattr(proto.graph.initializer[0].external_data[0], "value", "/etc/passwd"), "in other files"),
        (lambda proto: proto.graph.initializer[0].external_data.add(key="offset", value="8"), "in other files"),
        (lambda proto: setattr(proto.graph.initializer[0], "name", "other"), "a weight of another type or shape"),
        (lambda proto: setattr(proto.graph.initializer[0], "data_type", INT64), "a weight of another type or shape"),
        (lambda proto: setattr(proto.graph.initializer[0], "data_type", 8), "a weight of another type or shape"),
        (lambda proto: proto.graph.initializer[0].dims.append(2), "a weight of another type or shape"),
        (lambda proto: proto.graph.sparse_initializer.add(), "sparse"),
        (_put_inside, "a weight of another type or shape"),
        (_use_the_name, "a weight that it computes"),
    ],
)
def test_models_of_kernels_are_checked(change: Change, match: str, tmp_path: Path) -> None:
    seed = seeds()["matmul"]
    (at, length), *_ = seed.models
    proto = onnx.ModelProto.FromString(bytes(seed.head[at : at + length]))
    change(proto)
    check_refused(seed.with_model(0, proto.SerializeToString()), tmp_path, match)


def test_oversized_field_numbers_are_refused(tmp_path: Path) -> None:
    """Protobuf drops the upper bits of a field number: this field would be read as a node."""
    seed = seeds()["matmul"]
    (at, length), *_ = seed.models
    node = onnx.helper.make_node("Run", [], [], domain="com.example").SerializeToString()
    graph = onnx.ModelProto.FromString(bytes(seed.head[at : at + length])).graph.SerializeToString()
    graph += b"\x8a\x80\x80\x80\x10" + bytes([len(node)]) + node
    model = b"\x3a" + bytes([len(graph) & 127 | 128, len(graph) >> 7]) + graph
    check_refused(seed.with_model(0, model), tmp_path, "a model in the plan is broken")


def test_a_model_that_begins_like_the_ort_format_is_opened_as_onnx(tmp_path: Path) -> None:
    """onnxruntime takes a model with ORTM at this place for one of its own format, which is not checked."""
    seed = seeds()["matmul"]
    (at, length), *_ = seed.models
    producer = b"\x12\x84\x80\x00ORTM"
    opened(seed.with_model(0, producer + bytes(seed.head[at : at + length])), tmp_path)


def slots_of(seed: Seed, kind: int) -> list[int]:
    """Places in the head of the slots of a float matrix in the arena."""
    size = len(seed.head) // 8
    words = struct.unpack(f"<{size}q", seed.head)
    return [
        at for at in range(size - 8)
        if words[at : at + 2] == (0, 0) and words[at + 4] == kind and words[at + 5] in (2, 3)
        and words[at + 3] == 4 * int(np.prod(words[at + 6 : at + 6 + words[at + 5]])) > 0
    ]  # fmt: skip


@pytest.mark.parametrize(("place", "word", "match"), [(2, 2, "outside its memory"), (3, 8, "outside its memory")])
def test_views_are_checked(place: int, word: int, match: str, tmp_path: Path) -> None:
    """A view begins where an element does, and is as large as its type and shape."""
    seed = seeds()["matmul"]
    at = slots_of(seed, FLOAT)[0]
    head = bytearray(seed.head)
    struct.pack_into("<q", head, (at + place) * 8, word)
    check_refused(seed.file(head), tmp_path, match)


def seen(*shape: int, dtype: str = "float32") -> View:
    return View("v", dtype, shape, nbytes=int(np.prod(shape)) * np.dtype(dtype).itemsize)


def called(
    op_type: str, reads: list[View], write: View, domain: str = "", version: int = 13, **given: object
) -> InvokedNode:
    attributes = tuple(onnx.helper.make_attribute(name, value) for name, value in given.items())
    sources = tuple(range(len(reads)))
    return InvokedNode(op_type, domain, attributes, version, {"T": 1}, sources, (), tuple(reads), (write,))


POOL = {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [1, 1]}
SLOPE = called("PRelu", [seen(4, 5), seen(5)], seen(4, 5), version=9)


def grouped(reads: int, writes: int) -> InvokedNode:
    """A convolution of two groups in blocked layout, with as many blocks of channels: 16 with AVX-512, 8 with AVX2."""
    block = _channel_block()
    weights = seen(writes * block, reads * block // 2, 1, 1)
    sources, target = [seen(1, reads * block, 5, 5), weights], seen(1, writes * block, 5, 5)
    return called("Conv", sources, target, "com.microsoft.nchwc", 1, group=2, kernel_shape=[1, 1])


@pytest.mark.parametrize(
    ("node", "good"),
    [
        (SLOPE, True),
        (called("PRelu", [seen(5), seen(4, 5)], seen(5), version=9), False),
        (replace(SLOPE, constraints={}), False),
        (replace(SLOPE, constraints={"T": 11}), False),
        (replace(SLOPE, sources=(0, 2)), False),
        (replace(SLOPE, sources=(0, -2)), False),
        (called("Relu", [seen(0, 5)], seen(0, 5)), False),
        (called("Relu", [seen(4)], seen(5)), False),
        (called("Identity", [seen(4)], seen(4)), False),
        (called("MaxPool", [seen(1, 1, 7, 7)], seen(1, 1, 3, 3), version=12, ceil_mode=0, **POOL), True),
        (called("MaxPool", [seen(1, 1, 7, 7)], seen(1, 1, 3, 3), version=12, ceil_mode=1, **POOL), False),
        (called("MaxPool", [seen(1, 1, 7, 7)], seen(1, 1, 3, 3), version=12, auto_pad="VALID", **POOL), False),
        (grouped(reads=3, writes=4), False),
        (grouped(reads=4, writes=4), True),
        (grouped(reads=4, writes=3), False),
    ],
)
def test_only_operators_that_onnxruntime_checks_are_called_without_a_session(node: InvokedNode, good: bool) -> None:
    """Their kernels would compute other shapes than onnxruntime infers, or read beyond their inputs."""
    assert inferred(NativeRuntime().opened(), [node]) == [good]


def test_an_attribute_may_not_be_given_twice() -> None:
    node = called("Transpose", [seen(2, 3)], seen(3, 2), perm=[1, 0])
    assert inferred(NativeRuntime().opened(), [node]) == [True]
    assert inferred(NativeRuntime().opened(), [replace(node, attributes=node.attributes * 2)]) == [False]


def test_a_resize_that_keeps_ratios_needs_a_session() -> None:
    """onnxruntime infers a width of 4, and computes one of 2."""
    for policy, width in (("stretch", 2), ("not_smaller", 4)):
        view, attributes = seen(1, 2, 7, width), {"axes": [-2, 3], "keep_aspect_ratio_policy": policy}
        node = called("Resize", [seen(1, 2, 5, 3)], view, version=18, mode="linear", **attributes)
        node = replace(node, sources=(0, -1, -1, -2), constants=(np.array([7, 2]),), constraints={"T1": 1})
        assert inferred(NativeRuntime().opened(), [node]) == [policy == "stretch"]


def test_a_resize_of_opset_10_needs_a_session() -> None:
    """Without one, onnxruntime reads inputs that do not exist."""
    node = called("Resize", [seen(1, 1, 2, 2)], seen(1, 1, 4, 4), version=10, mode="nearest")
    node = replace(node, sources=(0, -2), constants=(np.float32([1, 1, 2, 2]),))
    assert inferred(NativeRuntime().opened(), [node]) == [False]


def test_a_split_with_a_wrong_number_of_outputs_is_refused() -> None:
    """Otherwise inferring their shapes ends the process."""
    node = called("Split", [seen(2, 7)], seen(2, 7), version=18, axis=1, num_outputs=1)
    assert inferred(NativeRuntime().opened(), [node, replace(node, writes=(seen(2, 7),) * 3)]) == [True, False]


def planned(lanes: list[list[PlanTask]], kernels: list[Kernel], dtype: str) -> bytes:
    """The file of a plan from x to y, 16 numbers each."""
    nbytes = 16 * np.dtype(dtype).itemsize
    spaces = {"x": MemorySpace.INPUT, "y": MemorySpace.OUTPUT, "v": MemorySpace.ARENA}
    frozen = tuple(map(tuple, lanes))
    plan = ExecutionPlan(frozen, *arena.place(frozen, [Buffer(name, space, nbytes) for name, space in spaces.items()]))
    specs = [(TensorSpec(name, dtype, (16,)),) for name in "xy"]
    compiled: Any = SimpleNamespace(constant_outputs={}, forwarded_outputs=())
    file = io.BytesIO()
    with NativeRuntime() as runtime, NativeExecutor(CheckedPlan(plan), kernels, runtime=runtime) as ready:
        program = PlanProgram(specs[0], specs[1], compiled, ready.encoded())
        about = PlanAbout(onnxruntime.__version__, len(lanes), (), "", has_dynamic_batch=False)
        write_plan(file, about, [program], runtime)
    return file.getvalue()


@pytest.mark.parametrize(("dtype", "good"), [("float32", True), ("int64", False)])
def test_only_floats_are_added_in_place(dtype: str, good: bool, tmp_path: Path) -> None:
    """A kernel that writes over its indices, such as Gather, has checked them before."""
    x, y, v = (View(name, dtype, (16,), nbytes=16 * np.dtype(dtype).itemsize) for name in "xyv")
    inputs = {name: (onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [16]) for name in "ab"}
    model = proto_of([onnx.helper.make_node("Add", ["a", "b"], ["c"])], inputs, {"c": inputs["a"][0]})
    tasks = [
        PlanTask("in", 1, (x,), (v,)),
        PlanTask("add", 0, (v, x), (v,), in_place=(v,)),
        PlanTask("out", 1, (v,), (y,)),
    ]
    content = planned([tasks], [Program(model.SerializeToString, ("a", "b"), ("c",)), Copy()], dtype)
    if good:
        program = OpenedProgram(opened(content, tmp_path), 0)
        assert program is not None
        given = np.arange(16, dtype=dtype)
        np.testing.assert_array_equal(program.run({"x": given})["y"], given * 2)
    else:
        check_refused(content, tmp_path, "share bytes, but not in a fixed order")


@pytest.mark.slow  # half a minute to compile with sanitizers
@pytest.mark.skipif(bool(plan_files.why_not()), reason=plan_files.why_not())
def test_no_fuzzed_file_causes_a_fault(tmp_path: Path) -> None:
    """The first files of benchmarks/fuzz_plans.py."""
    found = list(plan_files.outcomes(plan_files.build_driver(tmp_path), range(400)))
    assert [each for each in found if each.is_fault] == []
    assert sum(each.text == "opened " for each in found) > 40
    assert len({each.text for each in found}) > 20
