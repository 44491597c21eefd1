"""Pieces of cuDNN graphs: a new graph for a device, tensors from views, convolutions with what follows them.

Developer notes:
    * The order of what follows a convolution decides which engines cuDNN has. Precompiled ones know
      conv -> + residual -> + bias -> ReLU, with the bias in the type of the tensors. Any other order or activation, and
      a ReLU without a bias, is compiled at run time: seconds for each engine, and no tuned one in strict float32. See
      benchmarks/reports/cudnn-coverage.md.
    * The frontend promises cuDNN that every address is a multiple of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from iosched.runtime.cuda.cudnn.target import CudnnTarget, GpuDescription, load_cudnn
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.source.activation import IDENTITY, RELU, Activation
from iosched.runtime.cuda.source.loops import element_strides, shape_of
from iosched.runtime.plan import View

ALIGNMENT_NBYTES = 16


@dataclass(frozen=True)
class Shape:
    """Extents of a cuDNN tensor and the elements from one index to the next, axis by axis."""

    extents: tuple[int, ...]
    strides: tuple[int, ...]


def new_graph(precision: Precision, target: CudnnTarget) -> Any:
    """An empty `cudnn.pygraph` that computes in float32.

    Raises:
        DeviceError: cuDNN is not installed.
    """
    cudnn = load_cudnn()
    types = cudnn.data_type
    io_type = types.HALF if precision.dtype == "float16" else types.FLOAT
    common = {"io_data_type": io_type, "intermediate_data_type": types.FLOAT, "compute_data_type": types.FLOAT}
    if not isinstance(target, GpuDescription):
        return cudnn.pygraph(**common, handle=target)
    # cuDNN knows the number of processors from the description. It takes `sm_count` for a smaller number that plans are
    # to keep to, and where there is no GPU it then refuses the engines that were written for Hopper.
    properties = cudnn.create_device_properties(target.properties)
    return cudnn.pygraph(**common, device_property=properties, sm_version=target.sm_version)


def is_aligned(view: View) -> bool:
    """Whether cuDNN may be given the address of `view`; buffers begin at multiples of 16 bytes at least."""
    return view.offset % ALIGNMENT_NBYTES == 0


def add_tensor(graph: Any, view: View, uid: int, shape: Shape) -> Any:
    """A tensor of the graph that lies where `view` does, seen as `shape`.

    Raises:
        ValueError: cuDNN cannot be given its address.
    """
    _check_alignment(view)
    return graph.tensor(
        name=f"t{uid}", uid=uid, dim=list(shape.extents), stride=list(shape.strides), data_type=_data_type(view)
    )


def write_tensor(result: Any, view: View, uid: int, shape: Shape) -> None:
    """Makes `result` of the graph's last operation what is written to `view`, seen as `shape`.

    Raises:
        ValueError: cuDNN cannot be given its address.
    """
    _check_alignment(view)
    result.set_output(True).set_data_type(_data_type(view)).set_uid(uid)
    result.set_dim(list(shape.extents))
    result.set_stride(list(shape.strides))


def image_shape(view: View) -> Shape:
    """(N, C, H, W) or (N, C, D, H, W) as it lies in memory; (N, C, L) as an image of one row."""
    return _with_row(shape_of(view), element_strides(view))


def filter_shape(view: View, filters: Layout) -> Shape:
    """(O, I, *kernel) of a weight that is stored with its axes in the order of `filters`."""
    extents, strides = shape_of(view), element_strides(view)
    stored = filters.memory_order(len(extents))
    order = [stored.index(axis) for axis in range(len(stored))]
    return _with_row(tuple(extents[axis] for axis in order), tuple(strides[axis] for axis in order))


def _with_row(extents: tuple[int, ...], strides: tuple[int, ...]) -> Shape:
    """A line as an image of one row; all else as it is."""
    if len(extents) != 3:
        return Shape(extents, strides)
    return Shape((*extents[:2], 1, extents[2]), (*strides[:2], strides[1], strides[2]))


def vector_shape(view: View, rank: int = 4) -> Shape:
    """(1, C, 1, 1) of a vector (C,), with as many axes of one as make up `rank`."""
    (channels,) = shape_of(view)
    return Shape((1, channels, *(1,) * (rank - 2)), (channels, 1, *(channels,) * (rank - 2)))


@dataclass(frozen=True)
class Epilogue:
    """What is done to the result of a convolution in the same graph, in the order of the fields.

    Attributes:
        residual: a tensor of the graph that is added.
        bias: a tensor of the graph that is added to every pixel.
        activation: identity or ReLU.
    """

    residual: Any | None = None
    bias: Any | None = None
    activation: Activation = IDENTITY

    def add(self, graph: Any, result: Any) -> Any:
        """Appends it to `graph`; returns the last result.

        Raises:
            ValueError: the activation is none that cuDNN has tuned engines for: identity and ReLU.
        """
        if self.residual is not None:
            result = graph.add(a=result, b=self.residual)
        if self.bias is not None:
            result = graph.bias(input=result, bias=self.bias)
        if self.activation not in (IDENTITY, RELU):
            raise ValueError(f"cuDNN has no tuned engine for a {self.activation.type} behind a product")
        return result if self.activation.is_identity else graph.relu(input=result)


def convolve(
    graph: Any, image: Any, weight: Any, pads: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Any:
    """A convolution of two or three dimensions; `pads` are the begins of all, then the ends."""
    return graph.conv_fprop(
        image=image,
        weight=weight,
        pre_padding=list(pads[: len(strides)]),
        post_padding=list(pads[len(strides) :]),
        stride=list(strides),
        dilation=list(dilations),
    )


def _check_alignment(view: View) -> None:
    if not is_aligned(view):
        raise ValueError(
            f"{view.buffer!r} + {view.offset} bytes is no multiple of {ALIGNMENT_NBYTES}, as cuDNN needs it"
        )


def _data_type(view: View) -> Any:
    types = load_cudnn().data_type
    return types.HALF if view.dtype == "float16" else types.FLOAT
