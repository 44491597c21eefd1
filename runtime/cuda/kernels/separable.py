"""Depthwise and pointwise convolution in one kernel, with an optional leading ReLU and activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import H100, CudaCall, Gpu, Pointer, Precision
from iosched.runtime.cuda.kernels.conv import Convolution
from iosched.runtime.cuda.kernels.depthwise import Depthwise, depthwise_weight
from iosched.runtime.cuda.source.activation import IDENTITY, Activation
from iosched.runtime.cuda.source.elements import C_TYPES, LOAD, MAX_ACCESS_NBYTES, STRIDED, item_nbytes, preamble
from iosched.runtime.cuda.source.loops import shape_of
from iosched.runtime.cuda.source.separable import (
    MMA_OF_HALVES,
    MMA_OF_TF32,
    MULTIPLY_BY_FMA,
    MULTIPLY_BY_TENSOR_CORES,
    body,
)
from iosched.runtime.cuda.source.windows import Image, Window, channel_width, constants
from iosched.runtime.plan import View

MAX_TAPS = 49
_THREADS = 256
_TILES = ((64, 64, 128), (32, 128, 128), (32, 64, 128), (32, 32, 256), (16, 64, 256), (16, 32, 256))
_GROUPS = (4, 2, 1)
_MULTIPLE = 128  # of input and output channels: slabs and tiles stay within the padded weight
_MAX_KEPT = 48  # floats of an input row in a thread's registers
_MAX_LOADED = 40  # floats of several rows that a thread loads at once


@dataclass(frozen=True)
class Separable:
    """y = activation(pointwise(depthwise(relu?(x), taps), weight) + bias + added), of two dimensions.

    Reads `terms` images (N, C, H, W), whose sum is x, the taps of `depthwise_weight`, the weight of `pointwise_weight`,
    a float32 bias (O,) that includes the depthwise one, and images of y's shape that are added. Tensor-core inputs are
    rounded to their type; sums are float32.

    A block computes BM pixels of BN output channels. For each slab of input channels, it computes the depthwise part in
    shared memory and multiplies it on tensor cores, or by FMA (fp32, and fp16 without suitable tensor cores). Where
    there are few outputs, parts of the block sum over parts of a slab. Blocks with other output channels of the same
    pixels recompute the depthwise part.

    Attributes:
        window: its pads are not negative.
        relu: whether x passes a ReLU.
        precision: decides how products are computed and how the weight is stored.
        variant: rank of the form: 0 is the best by `_work`, 1 the best of another tile, and so on; modulo their number.
        gpu: decides the form, and how fp16 is multiplied.
    """

    window: Window
    relu: bool = False
    activation: Activation = IDENTITY
    precision: Precision = Precision("fp32")
    variant: int = 0
    gpu: Gpu = H100
    terms: int = 1

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        x, (weight, bias, *added) = reads[0], reads[self.terms + 1 :]
        channels, wide = x.shape[1], writes[0].shape[1]
        multiplied = np.float32 if self.by_fma else x.dtype
        inner = np.zeros((x.shape[0], channels, *writes[0].shape[2:]), multiplied)
        Depthwise(self.window, self.relu, terms=self.terms).interpret(reads[: self.terms + 1], [inner])
        matrix = weight[:channels, :wide] if self.by_fma else weight[:wide, :channels].T
        product = np.einsum("nchw,co->nohw", inner.astype(np.float32), matrix.astype(np.float32), optimize=True)
        writes[0][...] = self.activation(sum(added, product + bias.reshape(1, -1, 1, 1)))

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        images = [Image.of(view) for view in (*reads[: self.terms], *reads[self.terms + 3 :])]
        y = Image.of(writes[0])
        form = self._form(images[0], y, images[1 : self.terms], images[self.terms :])
        if form.planar:
            images, y = [image.transposed for image in images], y.transposed
        x, *_ = images
        batch, wide, height, width = y.shape
        per_row = -(-width // form.group)
        groups = batch * height * per_row
        tiles = -(-wide // form.tile[1])
        blocks = -(-groups * form.group // form.tile[0]) * tiles
        pitch = shape_of(reads[self.terms + 1])[1]
        counts = (groups, per_row, height, width, x.shape[2], x.shape[3], x.shape[1], wide, tiles, pitch)
        pointers = map(Pointer, range(len(reads) + 1))
        steps = (step for image in (y, *images) for step in image.steps(1))
        arguments = (*pointers, *map(np.int32, counts), *steps)
        source = self._source(form, len(images) - self.terms)
        return CudaCall(source, "separable", (blocks, 1, 1), (_THREADS, 1, 1), arguments)

    @property
    def by_fma(self) -> bool:
        """Whether products are computed in float32."""
        return self.precision.name == "fp32" or (self.precision.name == "fp16" and not self.gpu.multiplies_halves)

    def _form(self, x: Image, y: Image, terms: Sequence[Image] = (), added: Sequence[Image] = ()) -> _Form:
        dtype = x.operand.dtype
        out_pack = channel_width(y.shape[1], y, *added)
        pack = _planar_pack(x) if y.is_planar else channel_width(x.shape[1], x, *terms)
        multiplied = item_nbytes("float32" if self.by_fma else dtype)
        forms = [
            _Form(dtype, y.is_planar, pack, out_pack, group, (rows, wide), slab_nbytes // multiplied)
            for rows, wide, slab_nbytes in _TILES
            for group in _GROUPS
        ]
        made = y.transposed if y.is_planar else y
        fitting = [form for form in forms if form.group == 1 or self._fits(form, made.shape[3])]
        ranked = sorted(fitting, key=lambda form: self._work(form, made))
        best = {form.tile: form for form in reversed(ranked)}
        return sorted(ranked, key=lambda form: form != best[form.tile])[self.variant % len(ranked)]

    def _window(self, planar: bool) -> Window:
        return self.window.transposed if planar else self.window

    def _fits(self, form: _Form, width: int) -> bool:
        """Half of the threads have windows, and their neighbours fit into registers."""
        kept = self._columns(form) * form.pack
        return form.busy >= 0.5 and form.group <= width and kept <= _MAX_KEPT

    def _work(self, form: _Form, y: Image) -> float:
        """Estimated issue slots of the busiest processor for each input channel; reasoned, not measured.

        A 16-byte load costs 16 instructions of a warp, a 4-byte load 4, more if scattered; one block leaves a processor
        half idle.
        """
        (rows, width), columns = self._window(form.planar).kernel, self._columns(form)
        taps = rows * width
        loads = rows * (self._load(form, y) * columns + 4 * width) / (form.group * form.pack)
        sums = (taps + rows * columns / form.group) / min(form.busy, 1)
        product = form.tile[1] * (1.75 if self.by_fma else 0.25)
        groups = y.shape[0] * y.shape[2] * -(-y.shape[3] // form.group)
        blocks = -(-groups * form.group // form.tile[0]) * -(-y.shape[1] // form.tile[1])
        return max(2, -(-blocks // self.gpu.processors)) * form.tile[0] * (loads + sums + product)

    def _load(self, form: _Form, y: Image) -> float:
        if not form.planar:
            return 16
        neighbours = min(form.tile[0] // form.group, y.shape[2])
        return 4 * form.pack * (self._window(form.planar).strides[0] + 7 / neighbours)

    def _columns(self, form: _Form) -> int:
        window = self._window(form.planar)
        return (form.group - 1) * window.strides[1] + (window.kernel[1] - 1) * window.dilations[1] + 1

    def _source(self, form: _Form, added: int) -> str:
        rows, wide = form.tile
        sizes = {
            "V": form.pack, "W": form.out_pack, "G": form.group, "COLUMNS": self._columns(form), "BM": rows,
            "BN": wide, "BK": form.slab, "THREADS": _THREADS, "E": MAX_ACCESS_NBYTES // item_nbytes(form.dtype),
            "PARTS": self._parts(form), "UNROLLED": max(_MAX_LOADED // (self._columns(form) * form.pack), 1),
            "TERMS": self.terms, "ADDED": added,
        }  # fmt: skip
        head = [
            preamble([form.dtype]),
            constants(self._window(form.planar)),
            "constexpr int " + ", ".join(f"{name} = {value}" for name, value in sizes.items()) + ";",
            f"constexpr bool RELU = {_boolean(self.relu)}, PLANAR = {_boolean(form.planar)};",
            f"typedef {C_TYPES[form.dtype]} T;",
            f"__device__ __forceinline__ float activate(float x) {{ return {self.activation.expression('x')}; }}",
        ]
        return "\n".join([*head, LOAD + STRIDED, *self._multiplication(form.dtype), body(self.terms, added)])

    def _parts(self, form: _Form) -> int:
        """See `TM` and `WM` in the source."""
        rows, wide = form.tile
        per_part = rows * wide // 16 if self.by_fma else rows * wide // (min(rows, 32) * 16) * 32
        return _THREADS // per_part

    def _multiplication(self, dtype: str) -> tuple[str, ...]:
        if self.by_fma:
            return (MULTIPLY_BY_FMA,)
        return MMA_OF_HALVES if dtype == "float16" else MMA_OF_TF32, MULTIPLY_BY_TENSOR_CORES


def _planar_pack(x: Image) -> int:
    """Channels of a planar pixel for each thread: up to 16 bytes."""
    most = MAX_ACCESS_NBYTES // x.operand.item_nbytes
    return next(pack for pack in (8, 4, 2, 1) if pack <= most and x.shape[1] % pack == 0)


def _boolean(value: bool) -> str:
    return "true" if value else "false"


@dataclass(frozen=True)
class _Form:
    """A source's parameters.

    Attributes:
        planar: whether neighbouring threads take pixels instead of channels; images are transposed then.
        pack, out_pack: channels read and written together.
        group: neighbours of a row that a thread computes together in the depthwise part.
        tile: pixels and output channels of a block.
        slab: input channels between two barriers.
    """

    dtype: str
    planar: bool
    pack: int
    out_pack: int
    group: int
    tile: tuple[int, int]
    slab: int

    @property
    def busy(self) -> float:
        return self.tile[0] * self.slab / (self.group * self.pack * _THREADS)


def lower_separable(
    builder: Builder, depthwise: Convolution, pointwise: Convolution, y: str, terms: Sequence[str] = (), *, variant: int
) -> bool:
    """Emits the call of y = pointwise(depthwise(relu?(x))), where x is what `depthwise` reads and `terms` added.

    Returns:
        False, with nothing emitted, unless there is one filter for each channel, at most 49 taps, no activation between
        the convolutions, and no residual.
    """
    channels = builder.shape(depthwise.x)[1]
    plain = depthwise.residual is None and depthwise.activation.is_identity and pointwise.residual is None
    single = depthwise.groups == channels == len(depthwise.weight) and pointwise.groups == 1
    taps = prod(depthwise.kernel_shape)
    still = (*pointwise.kernel_shape, *pointwise.strides) == (1, 1, 1, 1) and not any(pointwise.pads)
    if not (plain and single and still) or taps > MAX_TAPS or min(depthwise.pads) < 0:
        return False
    relu, count = depthwise.leading_relu, 1 + len(terms)
    kernel = Separable(depthwise.window, relu, pointwise.activation, builder.precision, variant, builder.gpu, count)
    matrix = pointwise.weight
    reads = (
        depthwise.x,
        *terms,
        builder.weight(f"{y}/depthwise/weight", depthwise_weight(depthwise.weight)),
        builder.weight(f"{y}/pointwise/weight", pointwise_weight(matrix, by_fma=kernel.by_fma)),
        builder.float32_weight(f"{y}/both/bias", pointwise.bias + matrix[:, :, 0, 0] @ depthwise.bias),
    )
    builder.emit(kernel, reads, (y,))
    return True


def pointwise_weight(weight: np.ndarray, *, by_fma: bool) -> np.ndarray:
    """The ONNX weight (O, I, 1, 1), zero-padded, as (I, O) for FMA or (O, I) for tensor cores."""
    matrix = weight[:, :, 0, 0]
    return in_whole_tiles(matrix.T if by_fma else matrix)


def in_whole_tiles(matrix: np.ndarray) -> np.ndarray:
    """A matrix for `Separable`, zero-padded."""
    return np.ascontiguousarray(np.pad(matrix, [(0, -extent % _MULTIPLE) for extent in matrix.shape]))
