"""The models that are measured on CPUs, by name.

A name is the path of a file, `zoo:NAME`, `zoo:NAME@SIZE` for images of another size, `light_NAME` of the onnx package,
or `chain:COUNT` for COUNT elementwise operators on 16 numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iosched.models.model import Model


def cpu_model(name: str, batch_size: int = 1) -> Model:
    """The model of that name, with so many images at once."""
    from iosched.models.load import load_model
    from iosched.models.zoo.light import light_model  # an earlier version of the package may be measured beside

    if name.startswith("zoo:"):
        return load_model(_of_zoo(name.removeprefix("zoo:")), name=short_name(name), batch_size=batch_size)
    if name.startswith("light_"):
        proto = light_model(name)
        for node in proto.graph.node:  # by which profiles call them
            node.name = node.name or node.output[0]
        return load_model(proto.SerializeToString(), name=name, batch_size=batch_size)
    if name.startswith("chain:"):
        return load_model(_chain(int(name.removeprefix("chain:"))), name=name)
    return load_model(Path(name), batch_size=batch_size)


def short_name(name: str) -> str:
    """What a model is called in results: `zoo:` and folders left out."""
    return Path(name.removeprefix("zoo:")).stem


def _chain(count: int) -> bytes:
    from onnx import TensorProto, helper

    nodes = [helper.make_node(("Relu", "Neg")[i % 2], [f"t{i}"], [f"t{i + 1}"]) for i in range(count)]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [16])] for name in ("t0", f"t{count}")]
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "chain", *ends), opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())


def _of_zoo(text: str) -> bytes:
    from iosched.models import zoo

    name, _, size = text.partition("@")
    proto = zoo.build(name)
    if size:
        del proto.graph.value_info[:]
        for extent in proto.graph.input[0].type.tensor_type.shape.dim[2:]:
            extent.dim_value = int(size)
    return proto.SerializeToString()
