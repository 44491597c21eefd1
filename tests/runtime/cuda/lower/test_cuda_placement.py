"""Tensors placed in buffers of other tensors hold the same values as in separate buffers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.graph import TensorSpec
from iosched.runtime.cuda.builder import Cut, Join, KernelCall, Reshape
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import Layout, is_row_major
from iosched.runtime.cuda.lower.placement import place_calls
from iosched.runtime.placement import Placement
from iosched.runtime.plan import View


@dataclass(frozen=True)
class Twice:
    """y = 2 x."""

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        writes[0][...] = 2 * reads[0]


@dataclass(frozen=True)
class TwiceByCudnn(Twice):
    """The same with cuDNN, which needs aligned addresses."""

    precision: Precision = Precision("fp32")

    def build(self, graph: object, reads: Sequence[View], writes: Sequence[View]) -> None:
        raise AssertionError("is not built here")


class Program:
    """A random straight-line program of moves and doublings, starting from `x`."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.tensors: dict[str, TensorSpec] = {}
        self.calls: list[KernelCall] = []
        self.new((2, 4, 2, 3))
        for _ in range(self.draw.randint(1, 9)):
            self.draw.choice([self.double, self.join, self.cut, self.reshape])()

    def new(self, shape: tuple[int, ...]) -> str:
        name = f"t{len(self.tensors)}"
        self.tensors[name] = TensorSpec(name, "float32", shape)
        return name

    def some(self) -> str:
        return self.draw.choice(list(self.tensors))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape or ()

    def double(self) -> None:
        x = self.some()
        kernel = self.draw.choice([Twice(), TwiceByCudnn()])
        self.calls.append(KernelCall(kernel, (x,), (self.new(self.shape(x)),)))

    def join(self) -> None:
        x = self.some()
        axis = self.draw.randrange(len(self.shape(x)))
        fits = [
            name
            for name in self.tensors
            if len(self.shape(name)) == len(self.shape(x))
            and all(a == b for k, (a, b) in enumerate(zip(self.shape(name), self.shape(x), strict=True)) if k != axis)
        ]
        operands = [self.draw.choice(fits) for _ in range(self.draw.randint(1, 3))]
        shape = list(self.shape(x))
        shape[axis] = sum(self.shape(name)[axis] for name in operands)
        self.calls.append(KernelCall(Join(axis), tuple(operands), (self.new(tuple(shape)),)))

    def cut(self) -> None:
        x = self.some()
        axes = [axis for axis, extent in enumerate(self.shape(x)) if extent > 1]
        if not axes:
            return
        axis = self.draw.choice(axes)
        first = self.draw.randint(1, self.shape(x)[axis] - 1)
        parts = []
        for extent in (first, self.shape(x)[axis] - first):
            shape = list(self.shape(x))
            shape[axis] = extent
            parts.append(self.new(tuple(shape)))
        self.calls.append(KernelCall(Cut(axis), (x,), tuple(parts)))

    def reshape(self) -> None:
        x = self.some()
        size = self.tensors[x].nbytes // 4
        width = next(k for k in (self.draw.choice([1, 2, 4]), 1) if size % k == 0)
        shape = self.draw.choice([(size,), (width, size // width), (1, size // width, 1, width)])
        self.calls.append(KernelCall(Reshape(), (x,), (self.new(shape),)))

    def values(self) -> dict[str, np.ndarray]:
        found = {"t0": np.arange(48, dtype=np.float32).reshape(2, 4, 2, 3)}
        for call in self.calls:
            for name in call.writes:
                found[name] = np.empty(self.shape(name), np.float32)
            call.kernel.interpret([found[name] for name in call.reads], [found[name] for name in call.writes])
        return found


class Memory:
    """Buffers as bytes, poisoned, and arrays that see them."""

    def __init__(self, tensors: Mapping[str, TensorSpec], placement: Placement) -> None:
        self.bytes = {name: np.full(spec.nbytes, 0xFF, np.uint8) for name, spec in tensors.items()}
        self.placement = placement

    def seen(self, view: View) -> np.ndarray:
        return np.ndarray(view.shape or (), view.dtype, self.bytes[view.buffer].data, view.offset, view.strides)

    def run(self, calls: Sequence[KernelCall]) -> None:
        views = self.placement.views
        for index, call in enumerate(calls):
            if index not in self.placement.elided:
                reads, writes = ([self.seen(views[name]) for name in names] for names in (call.reads, call.writes))
                call.kernel.interpret(reads, writes)
            for operand, target in self.placement.copies.get(index, ()):
                self.seen(target)[...] = self.seen(views[operand])


@given(st.integers(0, 10**9), st.sampled_from(Layout), st.booleans())
def test_every_tensor_has_the_same_value_as_it_has_in_a_separate_buffer(
    seed: int, layout: Layout, fix_last: bool
) -> None:
    program = Program(seed)
    fixed = ["t0", *list(program.tensors)[-1:]] if fix_last else ["t0"]
    placement = place_calls(program.calls, program.tensors, layout, fixed)
    memory = Memory(program.tensors, placement)
    for name in fixed:
        assert placement.views[name].buffer == name
    values = program.values()
    memory.seen(placement.views["t0"])[...] = values["t0"]
    memory.run(program.calls)
    for call in program.calls:
        if isinstance(call.kernel, TwiceByCudnn):
            assert all(placement.views[name].offset % 16 == 0 for name in (*call.reads, *call.writes))
    for name, expected in values.items():
        np.testing.assert_array_equal(memory.seen(placement.views[name]), expected, err_msg=name)


def spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, "float32", shape)


def test_operands_of_a_concat_are_slices_of_its_channels() -> None:
    tensors = {s.name: s for s in (spec("x", 1, 8, 4, 4), spec("a", 1, 8, 4, 4), spec("b", 1, 24, 4, 4))}
    tensors["c"] = spec("c", 1, 32, 4, 4)
    calls = [
        KernelCall(Twice(), ("x",), ("a",)),
        KernelCall(Twice(), ("x",), ("b",)),
        KernelCall(Join(1), ("a", "b"), ("c",)),
    ]
    found = place_calls(calls, tensors, Layout.NHWC, ["x"])
    assert (found.elided, found.copies) == ({2}, {2: ()})
    assert (found.rows, found.pitches) == ({"c": 16}, {"c": 128})
    assert [found.views[name].buffer for name in "abc"] == ["c", "c", "c"]
    assert [found.views[name].offset for name in "abc"] == [0, 32, 0]
    assert found.views["b"].strides == (16 * 128, 4, 4 * 128, 128)


@pytest.mark.parametrize(("batch", "rows"), [(1, {}), (2, {"c": 2})])
def test_operands_of_a_concat_of_row_major_images_are_contiguous_in_each_image(
    batch: int, rows: dict[str, int]
) -> None:
    """A batch of one image is no table at all, and its slices are whole tensors."""
    tensors = {s.name: s for s in (spec("x", batch, 8, 3, 3), spec("a", batch, 8, 3, 3), spec("b", batch, 24, 3, 3))}
    tensors["c"] = spec("c", batch, 32, 3, 3)
    calls = [
        KernelCall(TwiceByCudnn(), ("x",), ("a",)),
        KernelCall(TwiceByCudnn(), ("x",), ("b",)),
        KernelCall(Join(1), ("a", "b"), ("c",)),
    ]
    found = place_calls(calls, tensors, Layout.NCHW, ["x"])
    assert (found.elided, found.copies, found.rows) == ({2}, {2: ()}, rows)
    assert [found.views[name].buffer for name in "abc"] == ["c", "c", "c"]
    assert [found.views[name].offset for name in "abc"] == [0, 8 * 9 * 4, 0]
    assert found.views["b"].strides == (None if batch == 1 else (32 * 9 * 4, 9 * 4, 3 * 4, 4))


@pytest.mark.parametrize(("channels", "fits"), [(4, True), (3, False)])
def test_a_slice_of_odd_images_moves_only_to_an_address_that_cudnn_accepts(channels: int, fits: bool) -> None:
    tensors = {"x": spec("x", 1, channels, 7, 7), "a": spec("a", 1, channels, 7, 7), "b": spec("b", 1, channels, 7, 7)}
    tensors["c"] = spec("c", 1, 2 * channels, 7, 7)
    calls = [KernelCall(TwiceByCudnn(), ("x",), (name,)) for name in "ab"]
    found = place_calls([*calls, KernelCall(Join(1), ("a", "b"), ("c",))], tensors, Layout.NCHW, ["x"])
    assert (found.views["b"].buffer, not found.copies[2]) == ("c" if fits else "b", fits)


def test_operands_that_cannot_be_placed_are_copied() -> None:
    """The same operand twice, and one that is already in another Concat."""
    tensors = {s.name: s for s in (spec("x", 1, 4, 2, 2), spec("a", 1, 4, 2, 2), spec("c", 1, 8, 2, 2))}
    tensors["d"] = spec("d", 1, 4, 2, 2)
    calls = [
        KernelCall(Twice(), ("x",), ("a",)),
        KernelCall(Join(1), ("a", "a"), ("c",)),
        KernelCall(Join(1), ("a",), ("d",)),
    ]
    found = place_calls(calls, tensors, Layout.NHWC, ["x"])
    assert [name for name, _ in found.copies[1]] == ["a"]
    assert [name for name, _ in found.copies[2]] == ["a"]


def test_parts_of_a_merged_convolution_lie_in_the_concat_that_joins_them() -> None:
    tensors = {s.name: s for s in (spec("x", 1, 4, 2, 2), spec("m", 1, 12, 2, 2), spec("p", 1, 4, 2, 2))}
    tensors |= {"q": spec("q", 1, 8, 2, 2), "r": spec("r", 1, 4, 2, 2), "c": spec("c", 1, 16, 2, 2)}
    calls = [
        KernelCall(Twice(), ("x",), ("m",)),
        KernelCall(Cut(1), ("m",), ("p", "q")),
        KernelCall(Twice(), ("x",), ("r",)),
        KernelCall(Join(1), ("r", "p", "q"), ("c",)),
    ]
    found = place_calls(calls, tensors, Layout.NHWC, ["x"])
    assert found.copies == {3: ()}
    assert (found.views["m"].buffer, found.views["m"].offset) == ("c", 16)


@pytest.mark.parametrize(
    ("layout", "shape", "rows", "pitch", "strides"),
    [
        (Layout.NHWC, (2, 3, 4, 5), 1, None, (240, 4, 60, 12)),
        (Layout.NHWC, (2, 3, 4, 5), 40, 64, (1280, 4, 320, 64)),
        (Layout.NHWC, (2, 3, 4, 5), 2, 1000, (1000, 4, 60, 12)),
        (Layout.NHWC, (2, 3, 5), 1, None, (60, 20, 4)),
        (Layout.NHWC, (2, 3, 5), 6, 40, (120, 40, 4)),
        (Layout.NCHW, (2, 3, 4, 5), 1, None, (240, 80, 20, 4)),
        (Layout.NCHW, (2, 3, 4, 5), 2, 1000, (1000, 80, 20, 4)),
        (Layout.NCHW, (2, 3, 5), 6, 40, (120, 40, 4)),
    ],
)
def test_strides(
    layout: Layout, shape: tuple[int, ...], rows: int, pitch: int | None, strides: tuple[int, ...]
) -> None:
    assert layout.strides_of(shape, 4, rows, pitch) == strides


def test_pixels_of_one_channel_or_single_pixels_are_row_major_too() -> None:
    assert is_row_major((2, 1, 4, 5), Layout.NHWC.strides_of((2, 1, 4, 5), 4), 4)
    assert is_row_major((2, 7, 1, 1), Layout.NHWC.strides_of((2, 7, 1, 1), 4), 4)
    assert not is_row_major((1, 2, 1, 2), Layout.NHWC.strides_of((1, 2, 1, 2), 4), 4)


def test_row_counts_that_do_not_fit_the_axes_are_refused() -> None:
    with pytest.raises(ValueError, match="does not divide into 7 rows"):
        Layout.NHWC.strides_of((2, 3, 4, 5), 4, 7, 64)
