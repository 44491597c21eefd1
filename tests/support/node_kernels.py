"""Lowers one ONNX node to kernels and compares what they compute with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import gpu_kernels
import numpy as np
import onnx
from host_cuda import Placed, blank, check, put, weight
from small_models import loaded, proto_of

from iosched.runtime.cuda.builder import Builder, KernelCall
from iosched.runtime.cuda.kernel import H100, Gpu, Precision, SourceKernel
from iosched.runtime.cuda.kernels import NODES
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.reference import Reference

FP32, FP16 = Precision("fp32"), Precision("fp16")


@dataclass(frozen=True, eq=False)
class Lowered:
    """A model of one node with the kernel calls that it becomes; none where it is left to onnxruntime."""

    proto: onnx.ModelProto
    builder: Builder
    inputs: Mapping[str, np.ndarray]

    @property
    def calls(self) -> Sequence[KernelCall]:
        return self.builder.calls

    def expected(self) -> dict[str, np.ndarray]:
        """The outputs of onnxruntime."""
        with Reference(self.proto.SerializeToString()) as reference:
            return reference.run(self.inputs)

    def compare(
        self, *, on_host: bool = False, before: int = 0, layout: Layout = Layout.NHWC, tolerance: float | None = None
    ) -> None:
        """Equal outputs; with `on_host`, each kernel's source gives what its meaning in numpy does as well.

        Args:
            before: channels that lie in front of those of each tensor, in memory.
            layout: of images.
        """
        assert self.calls, "left to onnxruntime"
        known = {
            name: put(self._as_stored(name, array), before=before, layout=layout) for name, array in self.inputs.items()
        }
        known |= {name: weight(array) for name, array in self.builder.weights.items()}
        for call in self.calls:
            reads = [known[name] for name in call.reads]
            writes = [self._blank(name, before, layout) for name in call.writes]
            if (on_host or gpu_kernels.ON_GPU) and isinstance(call.kernel, SourceKernel):
                check(call.kernel, reads, writes)
            call.kernel.interpret([read.array for read in reads], [write.array for write in writes])
            known |= dict(zip(call.writes, writes, strict=True))
        scale = tolerance or (2e-5 if self.builder.precision.dtype == "float32" else 1e-2)
        for name, wanted in self.expected().items():
            np.testing.assert_allclose(known[name].array.astype(wanted.dtype), wanted, rtol=scale, atol=scale)

    def _as_stored(self, name: str, array: np.ndarray) -> np.ndarray:
        return array.astype(self.builder.tensors[name].dtype)

    def _blank(self, name: str, before: int, layout: Layout) -> Placed:
        spec = self.builder.tensors[name]
        return blank(spec.shape or (), spec.dtype, before=before, after=1 if before else 0, layout=layout)


def lowered(
    node: onnx.NodeProto,
    inputs: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    precision: Precision = FP32,
    output_dtypes: Sequence[str] = ("float32",),
    gpu: Gpu = H100,
) -> Lowered:
    """The lowering of `node` to what `NODES` says, with its own `inputs` and constants."""
    kinds = {name: (onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in inputs.items()}
    types = [onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for dtype in output_dtypes]
    outputs = dict(zip(node.output, types, strict=True))
    proto = proto_of([node], kinds, outputs, weights, opset=opset)
    model = loaded(proto)
    builder = Builder.of(model, precision, gpu=gpu)
    found = next(each for each in model.proto.graph.node if each.op_type == node.op_type)
    answer = NODES[node.op_type](builder, found)
    assert answer == bool(builder.calls), "emits calls without saying so, or says so without"
    return Lowered(proto, builder, inputs)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """float32 of a standard normal distribution, the same each time."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)
