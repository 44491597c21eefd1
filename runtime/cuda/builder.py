"""Collects the kernel calls of operators while they are lowered, with the constants and temporaries they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from iosched.models.graph import TensorSpec
from iosched.models.model import Model
from iosched.runtime.cuda.kernel import Kernel, Precision
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.target import H100, Gpu

_FLOATS = ("float32", "float64")


@dataclass(frozen=True)
class KernelCall:
    """One kernel with the tensors it reads and writes, by name; weights and temporaries are tensors too."""

    kernel: Kernel
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(eq=False)
class Builder:
    """What the lowering of an operator sees of the model, and what it adds.

    Attributes:
        model: the model.
        precision: how floats are stored: tensors of float32 are tensors of `precision.dtype` here.
        layout: how feature maps lie in memory.
        tensors: every tensor and temporary by name, as stored.
        gpu: the GPU that kernels are for.
        weights: constants on the device by name, as stored.
        calls: in order.
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
        """A builder that has lowered nothing yet."""
        tensors = {name: _stored(spec, precision) for name, spec in model.graph.tensor.items()}
        return cls(model, precision, layout, tensors, gpu)

    def copy(self) -> Builder:
        """Another builder of the same model, with the same tensors and weights so far and no calls."""
        return Builder(self.model, self.precision, self.layout, dict(self.tensors), self.gpu, dict(self.weights))

    def constant(self, name: str) -> np.ndarray | None:
        """The value of a weight of the model, in the model's own type; None where `name` is computed or fed."""
        return self.model.weights.get(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor or of a weight of the model.

        Raises:
            KeyError: the shape is known only at run time, or there is no such tensor.
        """
        found = self.tensors[name].shape if name in self.tensors else self.model.weights[name].shape
        if found is None:
            raise KeyError(name)
        return found

    def is_placed(self, name: str) -> bool:
        """Whether `name` has a place on the device: a weight, or a tensor of known size that is not empty."""
        spec = self.tensors.get(name)
        return name in self.model.weights if spec is None else spec.is_static and spec.nbytes > 0

    def is_float(self, name: str) -> bool:
        """Whether a tensor holds floats as the precision stores them, and has a place on the device."""
        return self.is_placed(name) and name in self.tensors and self.tensors[name].dtype == self.precision.dtype

    def stored_weight(self, name: str) -> str:
        """Keeps the model's weight `name` as it is; returns the name of the constant."""
        return self.weight(name, self.model.weights[name])

    def weight(self, name: str, array: np.ndarray) -> str:
        """Keeps `array` (floats as stored under the precision, C-contiguous) as a constant; returns its name."""
        stored = array.astype(self.precision.dtype) if array.dtype.name in _FLOATS else array
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
        """Keeps `array` as a constant of float32 whatever the precision: biases and scales that kernels want so."""
        unique = f"{name}:float32"
        self.weights[unique] = np.asarray(array, np.float32, order="C")
        self.tensors[unique] = TensorSpec(unique, "float32", array.shape)
        return unique

    def temporary(self, name: str, shape: Sequence[int], dtype: str | None = None) -> str:
        """A tensor that only this operator's kernels see; `name` is made unique."""
        unique, number = name, 1
        while unique in self.tensors:
            unique, number = f"{name}#{number}", number + 1
        self.tensors[unique] = TensorSpec(unique, dtype or self.precision.dtype, tuple(shape))
        return unique

    def emit(self, kernel: Kernel, reads: Sequence[str], writes: Sequence[str]) -> None:
        """Adds one call of `kernel`, behind those there are."""
        self.calls.append(KernelCall(kernel, tuple(reads), tuple(writes)))


def _stored(spec: TensorSpec, precision: Precision) -> TensorSpec:
    return replace(spec, dtype=precision.dtype) if spec.dtype == "float32" else spec
