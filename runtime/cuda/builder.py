"""Collects the kernel calls, constants and temporaries of operators while they are lowered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from iosched.models.graph import TensorSpec
from iosched.models.model import Model
from iosched.runtime.cuda.kernel import H100, Gpu, Kernel, Precision
from iosched.runtime.cuda.layout import Layout

_FLOATS = ("float32", "float64")


@dataclass(frozen=True)
class KernelCall:
    """A kernel with the names of the tensors it reads and writes, weights and temporaries included."""

    kernel: Kernel
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(eq=False)
class Builder:
    """State of a lowering: the model, and the calls, constants and temporaries added so far.

    Attributes:
        precision: float32 tensors of the model are stored as `precision.dtype`.
        layout: of feature maps.
        tensors: tensors and temporaries by name, as stored.
        gpu: the target GPU.
        weights: constants by name, as stored.
    """

    model: Model
    precision: Precision
    layout: Layout
    tensors: dict[str, TensorSpec]
    gpu: Gpu
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    calls: list[KernelCall] = field(default_factory=list)

    @classmethod
    def of(cls, model: Model, precision: Precision, layout: Layout = Layout.NHWC, gpu: Gpu = H100) -> Builder:
        """A builder with no calls."""
        tensors = {name: _stored(spec, precision) for name, spec in model.graph.tensor.items()}
        return cls(model, precision, layout, tensors, gpu)

    def copy(self) -> Builder:
        """A builder with the same tensors and weights and no calls."""
        return Builder(self.model, self.precision, self.layout, dict(self.tensors), self.gpu, dict(self.weights))

    def constant(self, name: str) -> np.ndarray | None:
        """The value of a weight in the model's own type; None if `name` is computed or an input."""
        return self.model.weights.get(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor or weight.

        Raises:
            KeyError: the shape is dynamic, or the tensor is unknown.
        """
        found = self.tensors[name].shape if name in self.tensors else self.model.weights[name].shape
        if found is None:
            raise KeyError(name)
        return found

    def is_placed(self, name: str) -> bool:
        """Whether `name` is a weight, or a non-empty tensor of static size."""
        spec = self.tensors.get(name)
        return name in self.model.weights if spec is None else spec.is_static and spec.nbytes > 0

    def is_float(self, name: str) -> bool:
        """Whether a tensor of static size has the stored float type."""
        return self.is_placed(name) and name in self.tensors and self.tensors[name].dtype == self.precision.dtype

    def stored_weight(self, name: str) -> str:
        """Adds the weight `name` as a constant and returns the constant's name."""
        return self.weight(name, self.model.weights[name])

    def weight(self, name: str, array: np.ndarray) -> str:
        """Adds a C-contiguous constant in the stored float type and returns its unique name."""
        return self.add_constant(name, array.astype(self.precision.dtype) if array.dtype.name in _FLOATS else array)

    def add_constant(self, name: str, stored: np.ndarray) -> str:
        """Adds a C-contiguous constant as it is and returns its unique name."""
        known = self.weights.get(name)
        unique = name
        number = 1
        while known is not None and not (known.dtype == stored.dtype and np.array_equal(known, stored)):
            unique = f"{name}#{number}"
            known, number = self.weights.get(unique), number + 1
        if known is None:
            self.weights[unique] = np.asarray(stored, order="C")
            self.tensors[unique] = TensorSpec(unique, stored.dtype.name, stored.shape)
        return unique

    def float32_weight(self, name: str, array: np.ndarray) -> str:
        """Adds a float32 constant at any precision (biases, scales) and returns its name."""
        unique = f"{name}:float32"
        self.weights[unique] = np.asarray(array, np.float32, order="C")
        self.tensors[unique] = TensorSpec(unique, "float32", array.shape)
        return unique

    def temporary(self, name: str, shape: Sequence[int], dtype: str | None = None) -> str:
        """Adds a tensor private to this operator and returns its unique name."""
        unique, number = name, 1
        while unique in self.tensors:
            unique, number = f"{name}#{number}", number + 1
        self.tensors[unique] = TensorSpec(unique, dtype or self.precision.dtype, tuple(shape))
        return unique

    def emit(self, kernel: Kernel, reads: Sequence[str], writes: Sequence[str]) -> None:
        """Appends a call of `kernel`."""
        self.calls.append(KernelCall(kernel, tuple(reads), tuple(writes)))


def _stored(spec: TensorSpec, precision: Precision) -> TensorSpec:
    return replace(spec, dtype=precision.dtype) if spec.dtype == "float32" else spec


@dataclass(frozen=True)
class Join:
    """Concatenates its reads along `axis`. Placement replaces it by views and copies."""

    axis: int

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        np.concatenate(reads, self.axis, out=writes[0])


@dataclass(frozen=True, repr=False)
class Cut:
    """Splits its read along `axis` into its writes. Placement replaces it by views or copies."""

    axis: int

    def __repr__(self) -> str:
        """The name in the keys of stored latencies, from before the class was renamed."""
        return f"Part(axis={self.axis})"

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        ends = np.cumsum([array.shape[self.axis] for array in writes])[:-1]
        for target, source in zip(writes, np.split(reads[0], ends, self.axis), strict=True):
            target[...] = source


@dataclass(frozen=True)
class Reshape:
    """Row-major elements in another shape (Flatten, Squeeze, ...). Placement replaces it by a view or a copy."""

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        writes[0][...] = reads[0].reshape(writes[0].shape)
