"""cuDNN graphs: the GPU they are for, tensors from views, convolutions with an epilogue.

Developer notes:
    * The order of an epilogue decides which engines cuDNN has. Precompiled engines support conv, + residual, + bias,
      ReLU, with the bias in the tensors' type. Any other order or activation, or a ReLU without a bias, is compiled
      at run time: seconds for each engine, and no tuned one in strict float32. See
      benchmarks/reports/cudnn-coverage.md.
    * The frontend promises cuDNN 16-byte alignment of every address.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from iosched.models.errors import DeviceError
from iosched.runtime.cuda.gpu.failures import first_line, how_to_install
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.source.activation import IDENTITY, RELU, Activation
from iosched.runtime.cuda.source.loops import element_strides, shape_of
from iosched.runtime.plan import View

_NEEDED = ("deviceName", "deviceVer", "multiProcessorCount")


@dataclass(frozen=True)
class GpuDescription:
    """GPU properties for cuDNN's heuristics: enough to build plans without the GPU.

    Attributes:
        properties: JSON of `cudnn.create_device_properties(index).serialize()`.
    """

    properties: str

    @classmethod
    def from_json(cls, text: str) -> GpuDescription:
        """Reads a description.

        Raises:
            DeviceError: the text is not a GPU description.
        """
        try:
            known = json.loads(text)
        except ValueError as error:
            raise DeviceError(f"the GPU description is not valid JSON: {error}") from error
        missing = [key for key in _NEEDED if not isinstance(known, dict) or key not in known]
        if missing:
            raise DeviceError(f"the GPU description has no {', '.join(missing)}")
        return cls(json.dumps(known))

    @property
    def name(self) -> str:
        """Such as "NVIDIA H100 80GB HBM3"."""
        return str(self._value("deviceName"))

    @property
    def sm_version(self) -> int:
        """Compute capability times ten: 90 for 9.0."""
        return int(self._value("deviceVer")) // 10

    def _value(self, key: str) -> Any:
        return json.loads(self.properties)[key]


CudnnTarget = GpuDescription | Any
"""A simulated GPU, or the cuDNN handle of an attached one (`cudnn.create_handle()`)."""


def load_cudnn() -> ModuleType:
    """Imports cuDNN's Python frontend.

    Raises:
        DeviceError: the frontend or cuDNN is not installed.
    """
    try:
        import cudnn
    except ImportError as error:
        raise DeviceError(f"cuDNN's Python frontend is not installed; {how_to_install()}") from error
    try:
        cudnn.backend_version()
    except (RuntimeError, OSError, AttributeError) as error:
        raise DeviceError(f"cuDNN is not installed ({first_line(error)}); {how_to_install()}") from error
    return cudnn  # type: ignore[no-any-return]


_LIBRARY = "libcudnn.so.9"


def cudnn_cuda() -> int | None:
    """The CUDA version that cuDNN was built for (12040 is 12.4); None if it cannot be queried.

    Raises:
        DeviceError: cuDNN is not installed.
    """
    load_cudnn()
    try:
        return int(ctypes.CDLL(_LIBRARY).cudnnGetCudartVersion())  # the frontend has loaded it
    except (OSError, AttributeError):
        return None


ALIGNMENT_NBYTES = 16


@dataclass(frozen=True)
class StridedShape:
    """Extents and element strides of a cuDNN tensor."""

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
    # No `sm_count`: it limits plans to fewer processors, and without a GPU cuDNN then rejects its engines for Hopper.
    properties = cudnn.create_device_properties(target.properties)
    return cudnn.pygraph(**common, device_property=properties, sm_version=target.sm_version)


def is_aligned(view: View) -> bool:
    """Whether the offset of `view` has cuDNN's alignment; buffers are aligned."""
    return view.offset % ALIGNMENT_NBYTES == 0


def add_tensor(graph: Any, view: View, uid: int, shape: StridedShape) -> Any:
    """Adds `view` to the graph as a tensor of `shape`.

    Raises:
        ValueError: the view is not aligned.
    """
    _check_alignment(view)
    return graph.tensor(
        name=f"t{uid}", uid=uid, dim=list(shape.extents), stride=list(shape.strides), data_type=_data_type(view)
    )


def write_tensor(result: Any, view: View, uid: int, shape: StridedShape) -> None:
    """Makes `result` an output of the graph that is stored in `view` as `shape`.

    Raises:
        ValueError: the view is not aligned.
    """
    _check_alignment(view)
    result.set_output(True).set_data_type(_data_type(view)).set_uid(uid)
    result.set_dim(list(shape.extents))
    result.set_stride(list(shape.strides))


def image_shape(view: View) -> StridedShape:
    """(N, C, H, W) or (N, C, D, H, W); (N, C, L) as an image with one row."""
    return _with_row(shape_of(view), element_strides(view))


def filter_shape(view: View, filters: Layout) -> StridedShape:
    """(O, I, *kernel) of a weight whose axes are stored in the order of `filters`."""
    extents, strides = shape_of(view), element_strides(view)
    stored = filters.memory_order(len(extents))
    order = [stored.index(axis) for axis in range(len(stored))]
    return _with_row(tuple(extents[axis] for axis in order), tuple(strides[axis] for axis in order))


def _with_row(extents: tuple[int, ...], strides: tuple[int, ...]) -> StridedShape:
    if len(extents) != 3:
        return StridedShape(extents, strides)
    return StridedShape((*extents[:2], 1, extents[2]), (*strides[:2], strides[1], strides[2]))


def vector_shape(view: View, rank: int = 4) -> StridedShape:
    """(1, C, 1, ...) of a vector (C,)."""
    (channels,) = shape_of(view)
    return StridedShape((1, channels, *(1,) * (rank - 2)), (channels, 1, *(channels,) * (rank - 2)))


@dataclass(frozen=True)
class Epilogue:
    """The operations after a convolution in the same graph, in the order of the fields; tensors are of the graph."""

    residual: Any | None = None
    bias: Any | None = None
    activation: Activation = IDENTITY

    def add(self, graph: Any, result: Any) -> Any:
        """Appends the epilogue and returns its result.

        Raises:
            ValueError: the activation is neither identity nor ReLU.
        """
        if self.residual is not None:
            result = graph.add(a=result, b=self.residual)
        if self.bias is not None:
            result = graph.bias(input=result, bias=self.bias)
        if self.activation not in (IDENTITY, RELU):
            raise ValueError(f"cuDNN has no tuned engine for {self.activation.type} after a product")
        return result if self.activation.is_identity else graph.relu(input=result)


def convolve(
    graph: Any, image: Any, weight: Any, pads: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Any:
    """A convolution of two or three dimensions; `pads` are all begins, then all ends."""
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
        raise ValueError(f"{view.buffer!r} + {view.offset} bytes: cuDNN needs a multiple of {ALIGNMENT_NBYTES} bytes")


def _data_type(view: View) -> Any:
    types = load_cudnn().data_type
    return types.HALF if view.dtype == "float16" else types.FLOAT
