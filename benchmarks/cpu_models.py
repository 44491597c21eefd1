"""The models measured on CPUs, by name.

A name is the path of a file, `zoo:NAME`, `zoo:NAME@SIZE` for images of another size, `light_NAME` of the onnx package,
or `chain:COUNT` for COUNT elementwise operators on 16 numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iosched.models.model import Model

Names = Sequence[str]


def cpu_model(name: str, batch_size: int = 1) -> Model:
    """The model of that name, with n images at once."""
    from iosched.models.load import load_model
    from iosched.models.zoo.light import light_model  # an earlier version of the package may be measured alongside

    if name.startswith("zoo:"):
        return load_model(_of_zoo(name.removeprefix("zoo:")), name=short_name(name), batch_size=batch_size)
    if name.startswith("light_"):
        proto = light_model(name)
        for node in proto.graph.node:  # names in profiles
            node.name = node.name or node.output[0]
        return load_model(proto.SerializeToString(), name=name, batch_size=batch_size)
    if name.startswith("chain:"):
        return load_model(chain(int(name.removeprefix("chain:"))), name=name)
    return load_model(Path(name), batch_size=batch_size)


def short_name(name: str) -> str:
    """Name of a model in results, without `zoo:` and folders."""
    return Path(name.removeprefix("zoo:")).stem


def model_of(nodes: Sequence[Any], inputs: Names, outputs: Names, shape: Sequence[int], weights: Any = ()) -> bytes:
    """A model of these nodes, whose inputs and outputs are floats of one shape."""
    from onnx import TensorProto, helper

    info = helper.make_tensor_value_info
    ends = [[info(name, TensorProto.FLOAT, shape) for name in each] for each in (inputs, outputs)]
    opsets = [helper.make_opsetid(domain, version) for domain, version in (("", 17), ("com.microsoft", 1))]
    graph = helper.make_graph(nodes, "small", *ends, weights)
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def chain(count: int, kinds: Names = ("Relu", "Neg"), shape: Sequence[int] = (16,)) -> bytes:
    """A chain of n nearly empty nodes, starting with t0."""
    from onnx import helper

    nodes = [helper.make_node(kinds[i % len(kinds)], [f"t{i}"], [f"t{i + 1}"]) for i in range(count)]
    return model_of(nodes, ["t0"], [f"t{count}"], shape)


def _of_zoo(text: str) -> bytes:
    from iosched.models import zoo

    name, _, size = text.partition("@")
    proto = zoo.build(name)
    if size:
        del proto.graph.value_info[:]
        for extent in proto.graph.input[0].type.tensor_type.shape.dim[2:]:
            extent.dim_value = int(size)
    return proto.SerializeToString()
