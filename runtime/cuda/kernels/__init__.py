"""Kernels, one per file: what each computes, and how a GPU runs it.

`NODES` says which of them lowers nodes of an ONNX type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernels import add, copy

Lower = Callable[[Builder, onnx.NodeProto], bool]

NODES: Mapping[str, Lower] = {
    "Sum": add.lower,
    "Transpose": copy.lower,
}
"""Lowering of single nodes by ONNX type: each emits calls and answers True, or emits nothing and answers False."""
