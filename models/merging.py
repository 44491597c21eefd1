"""Exact merge of convolutions, and its undoing (thesis, section 3.2.2).

Convolutions of one input become one: kernels zero-padded around their centres and stacked along output channels, then
the activation, then a Split whose outputs carry the original names. The model's metadata says how to undo it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from iosched.models.graph import Operator
from iosched.models.merge_record import Merge, Part, from_metadata
from iosched.models.wiring import is_standard, reads, standard_opset, use_counts

_ACTIVATIONS = frozenset(
    (
        *("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Elu", "Selu", "Celu", "Gelu", "Mish", "HardSigmoid", "HardSwish"),
        *("Softplus", "Softsign", "ThresholdedRelu", "Clip"),
    )
)
_SPLIT_INPUT_OPSET = 13  # sizes are an input since then, an attribute before


def merge_convolutions(
    proto: onnx.ModelProto, weights: dict[str, np.ndarray], operators: Sequence[Operator]
) -> tuple[Merge, list[onnx.NodeProto]]:
    """Replace the nodes of `operators` in `proto` by one convolution, its activation and a Split, all at the end.

    Args:
        proto: changed in place; its initializers are left to the caller.
        weights: every initializer by name; merged weights are added, weights that nobody reads any more are removed.
        operators: two or more operators of type "Conv" that read the same tensor, with normalised attributes.

    Returns:
        What was merged, and the new nodes (which are also in `proto`).

    Raises:
        ValueError: merging would not be exact, or is not possible; nothing was changed.
    """
    graph = proto.graph
    producer = {name: node for node in graph.node for name in node.output}
    counts = use_counts(graph)
    nodes = [_nodes_of(operator, producer, counts) for operator in operators]
    _check(operators, nodes, weights)
    kernel = tuple(int(size) for size in np.max([_ints(operator, "kernel_shape") for operator in operators], axis=0))
    pads = _merged_pads(operators, kernel)
    parts = tuple(_part(operator, pair, weights) for operator, pair in zip(operators, nodes, strict=True))
    base = _fresh(f"{parts[0].output}/merged", {*producer, *weights})
    conv, activation = nodes[0]
    merged = Merge(f"{base}/conv" if activation else base, base, parts)
    stacked = np.concatenate([_padded(weights[part.weight], kernel) for part in parts])
    weights[f"{base}/weight"] = stacked
    if any(part.bias for part in parts):
        weights[f"{base}/bias"] = np.concatenate([_bias(part, weights, stacked.dtype) for part in parts])
    new = [_merged_conv(conv, merged, base, operators[0], kernel, pads, f"{base}/bias" in weights)]
    if activation is not None:
        new.append(_renamed(activation, merged.conv, merged.activated))
    new.append(_split(merged, base, standard_opset(proto), weights))
    gone = {node.output[0] for pair in nodes for node in pair if node is not None}
    _replace(graph, gone, new)
    _drop_unread(graph, weights, parts)
    return merged, new


def unmerge(proto: onnx.ModelProto, weights: dict[str, np.ndarray]) -> None:
    """Restore what `merge_convolutions` replaced, as the model's metadata tells, bit for bit.

    `proto` (nodes, initializers' order left alone) and `weights` are changed in place. A merge that does not fit the
    graph, as another tool edited it or the metadata is not ours, is left as it is: the model computes the same.
    """
    for merge in from_metadata(proto):
        _undo(proto, weights, merge)


def _ints(operator: Operator, key: str) -> tuple[int, ...]:
    value = operator.attribute(key, ())
    return tuple(int(item) for item in value) if isinstance(value, tuple) else ()


def _nodes_of(
    operator: Operator, producer: Mapping[str, onnx.NodeProto], counts: Mapping[str, int]
) -> tuple[onnx.NodeProto, onnx.NodeProto | None]:
    """The operator's convolution and its activation."""
    found = [producer[name] for name in operator.nodes if name in producer]
    if len(found) != len(operator.nodes) or not found or found[0].op_type != "Conv" or not is_standard(found[0]):
        raise ValueError(f"{operator.name!r} is no convolution")
    if len(found) == 1:
        return found[0], None
    inner = found[0].output[0]
    if (
        len(found) > 2
        or found[1].op_type not in _ACTIVATIONS
        or not is_standard(found[1])
        or found[1].input[0] != inner
    ):
        raise ValueError(f"{operator.name!r} is more than a convolution and its activation")
    if counts[inner] != 1:
        raise ValueError(f"the convolution of {operator.name!r} is read before its activation")
    return found[0], found[1]


def _check(
    operators: Sequence[Operator],
    nodes: Sequence[tuple[onnx.NodeProto, onnx.NodeProto | None]],
    weights: Mapping[str, np.ndarray],
) -> None:
    if len({operator.name for operator in operators}) < 2:
        raise ValueError("merging takes two convolutions or more")
    for operator, (conv, _) in zip(operators, nodes, strict=True):
        if operator.attribute("group") != 1:
            raise ValueError(f"{operator.name!r} is a grouped convolution")
        if any(name not in weights for name in conv.input[1:] if name):
            raise ValueError(f"the weights of {operator.name!r} are computed")
    _check_alike("input", operators, [conv.input[0] for conv, _ in nodes])
    _check_alike("stride", operators, [_ints(operator, "strides") for operator in operators])
    _check_alike("dilation", operators, [_ints(operator, "dilations") for operator in operators])
    _check_alike("activation", operators, [_signature(activation) for _, activation in nodes])
    kinds = [(weights[conv.input[1]].dtype.name, weights[conv.input[1]].shape[1]) for conv, _ in nodes]
    _check_alike("weight type", operators, kinds)


def _check_alike(what: str, operators: Sequence[Operator], values: Sequence[object]) -> None:
    for operator, value in zip(operators, values, strict=True):
        if value != values[0]:
            raise ValueError(f"{operators[0].name!r} and {operator.name!r} differ in {what}: {values[0]} and {value}")


def _signature(activation: onnx.NodeProto | None) -> object:
    if activation is None:
        return None
    attributes = sorted((item.name, item.SerializeToString()) for item in activation.attribute)
    return activation.op_type, attributes, tuple(activation.input[1:])


def _merged_pads(operators: Sequence[Operator], kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Padding of the merged convolution, the same seen from every operator.

    Raises:
        ValueError: it is not; a zero-padded kernel would not stay centred.
    """
    wanted = [
        _centred_pads(_ints(operator, "kernel_shape"), _ints(operator, "pads"), _ints(operator, "dilations"), kernel)
        for operator in operators
    ]
    for operator, pads in zip(operators, wanted, strict=True):
        if pads is None or pads != wanted[0]:
            raise ValueError(
                f"{operators[0].name!r} and {operator.name!r} cannot be merged exactly: "
                "their kernels, padded with zeros to one size, would not stay centred"
            )
    return wanted[0] or ()


def _centred_pads(
    own: tuple[int, ...], pads: tuple[int, ...], dilations: tuple[int, ...], kernel: tuple[int, ...]
) -> tuple[int, ...] | None:
    """pad + dilation * (kernel_merged - kernel) / 2 on every side; None where kernels have no common centre."""
    rank = len(kernel)
    if len(own) != rank or len(pads) != 2 * rank or len(dilations) != rank:
        return None
    growth = [large - small for large, small in zip(kernel, own, strict=True)]
    if any(extra < 0 or extra % 2 for extra in growth):
        return None
    shift = [dilation * extra // 2 for dilation, extra in zip(dilations, growth, strict=True)]
    return tuple(pad + extra for pad, extra in zip(pads, [*shift, *shift], strict=True))


def _part(
    operator: Operator, nodes: tuple[onnx.NodeProto, onnx.NodeProto | None], weights: Mapping[str, np.ndarray]
) -> Part:
    conv = nodes[0]
    weight = weights[conv.input[1]]
    return Part(
        output=operator.name,
        conv=conv.output[0],
        weight=conv.input[1],
        bias=conv.input[2] if len(conv.input) > 2 else "",
        kernel_shape=tuple(weight.shape[2:]),
        channels=weight.shape[0],
        attributes={item.name: _plain(item) for item in conv.attribute},
    )


def _plain(attribute: onnx.AttributeProto) -> str | int | list[int]:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    return int(value) if isinstance(value, int) else [int(item) for item in value]


def _fresh(name: str, taken: set[str]) -> str:
    """`name`, or with a number behind it, such that no tensor is called so or begins so."""
    candidate, count = name, 1
    while any(other == candidate or other.startswith(f"{candidate}/") for other in taken):
        count += 1
        candidate = f"{name}{count}"
    return candidate


def _margins(own: Sequence[int], kernel: Sequence[int]) -> list[int]:
    return [(large - small) // 2 for large, small in zip(kernel, own, strict=True)]


def _padded(weight: np.ndarray, kernel: tuple[int, ...]) -> np.ndarray:
    """(K, C, *own) with zeros around every kernel, (K, C, *kernel)."""
    margins = _margins(weight.shape[2:], kernel)
    return np.pad(weight, [(0, 0), (0, 0), *((margin, margin) for margin in margins)])


def _bias(part: Part, weights: Mapping[str, np.ndarray], dtype: np.dtype) -> np.ndarray:
    return weights[part.bias] if part.bias else np.zeros(part.channels, dtype)


def _merged_conv(
    like: onnx.NodeProto,
    merge: Merge,
    base: str,
    operator: Operator,
    kernel: tuple[int, ...],
    pads: tuple[int, ...],
    has_bias: bool,
) -> onnx.NodeProto:
    constants = [f"{base}/weight", *([f"{base}/bias"] if has_bias else [])]
    node = helper.make_node("Conv", [like.input[0], *constants], [merge.conv], name=merge.conv)
    values = {"kernel_shape": kernel, "pads": pads, "group": 1}
    values |= {key: _ints(operator, key) for key in ("strides", "dilations")}
    node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(values.items()))
    return node


def _renamed(activation: onnx.NodeProto, source: str, output: str) -> onnx.NodeProto:
    """A copy of `activation` that reads `source` and writes `output`."""
    node = onnx.NodeProto()
    node.CopyFrom(activation)
    node.name = node.output[0] = output
    node.input[0] = source
    return node


def _split(merge: Merge, base: str, opset: int, weights: dict[str, np.ndarray]) -> onnx.NodeProto:
    sizes = [part.channels for part in merge.parts]
    outputs = [part.output for part in merge.parts]
    if opset < _SPLIT_INPUT_OPSET:
        return helper.make_node("Split", [merge.activated], outputs, name=outputs[0], axis=1, split=sizes)
    weights[f"{base}/split"] = np.array(sizes, np.int64)
    return helper.make_node("Split", [merge.activated, f"{base}/split"], outputs, name=outputs[0], axis=1)


def _replace(graph: onnx.GraphProto, gone: set[str], new: Sequence[onnx.NodeProto]) -> None:
    """Take away the nodes that write `gone`, put `new` where the first of them stood."""
    first = next(index for index, node in enumerate(graph.node) if node.output and node.output[0] in gone)
    kept = [node for node in graph.node if not node.output or node.output[0] not in gone]
    nodes = [*kept[:first], *new, *kept[first:]]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    written = {name for node in graph.node for name in node.output}
    infos = [info for info in graph.value_info if info.name in written]
    del graph.value_info[:]
    graph.value_info.extend(infos)


def _drop_unread(graph: onnx.GraphProto, weights: dict[str, np.ndarray], parts: Sequence[Part]) -> None:
    read = {name for node in graph.node for name in reads(node)} | {output.name for output in graph.output}
    for name in {name for part in parts for name in (part.weight, part.bias) if name}:
        if name not in read:
            weights.pop(name, None)


def _undo(proto: onnx.ModelProto, weights: dict[str, np.ndarray], merge: Merge) -> None:
    graph = proto.graph
    found = _merged_nodes(graph, merge)
    if found is None:
        return
    conv, activation, split = found
    restored = _restored_weights(conv, merge, weights)
    if restored is None or not _names_are_free(graph, merge, {*weights}):
        return
    new: list[onnx.NodeProto] = []
    for part in merge.parts:
        inputs = [conv.input[0], part.weight, *([part.bias] if part.bias else [])]
        node = helper.make_node("Conv", inputs, [part.conv], name=part.conv)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in part.attributes.items())
        new.append(node)
        if activation is not None:
            new.append(_renamed(activation, part.conv, part.output))
    constants = {name for node in (conv, split) for name in node.input[1:] if name}
    _replace(graph, {node.output[0] for node in found if node is not None}, new)
    weights.update({name: array for name, array in restored.items() if name not in weights})
    read = {name for node in graph.node for name in reads(node)} | {output.name for output in graph.output}
    for name in constants - read:
        weights.pop(name, None)


def _merged_nodes(
    graph: onnx.GraphProto, merge: Merge
) -> tuple[onnx.NodeProto, onnx.NodeProto | None, onnx.NodeProto] | None:
    """The merged convolution, its activation and the Split, if they stand as `merge_convolutions` wrote them."""
    producer = {name: node for node in graph.node for name in node.output}
    counts = use_counts(graph)
    conv, activation = producer.get(merge.conv), producer.get(merge.activated)
    split = producer.get(merge.parts[0].output)
    if conv is None or activation is None or split is None or (conv.op_type, split.op_type) != ("Conv", "Split"):
        return None
    if list(split.output) != [part.output for part in merge.parts] or split.input[0] != merge.activated:
        return None
    if any(counts[name] != 1 for name in {merge.conv, merge.activated}) or len(conv.input) < 2:
        return None
    if activation is conv:
        return conv, None, split
    fits = activation.op_type in _ACTIVATIONS and activation.input[0] == merge.conv
    return (conv, activation, split) if fits else None


def _names_are_free(graph: onnx.GraphProto, merge: Merge, constants: set[str]) -> bool:
    """Whether the inner tensors to restore have names of their own."""
    inner = [part.conv for part in merge.parts if part.conv != part.output]
    alike = all((part.conv == part.output) == (merge.conv == merge.activated) for part in merge.parts)
    taken = {name for node in graph.node for name in node.output} | {item.name for item in graph.input} | constants
    written = {name for part in merge.parts for name in (part.weight, part.bias) if name}
    computed = taken - constants
    return alike and len(set(inner)) == len(inner) and taken.isdisjoint(inner) and computed.isdisjoint(written)


def _restored_weights(
    conv: onnx.NodeProto, merge: Merge, weights: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray] | None:
    """The parts' own constants, cut out of the merged ones; None where these do not fit."""
    if any(name not in weights for name in conv.input[1:] if name):
        return None
    stacked = weights[conv.input[1]]
    bias = weights[conv.input[2]] if len(conv.input) > 2 and conv.input[2] else None
    if stacked.ndim < 3 or stacked.shape[0] != sum(part.channels for part in merge.parts):
        return None
    restored: dict[str, np.ndarray] = {}
    begin = 0
    for part in merge.parts:
        rows = slice(begin, begin + part.channels)
        begin += part.channels
        own = _cut(conv, stacked[rows], part)
        if own is None or (part.bias and bias is None):
            return None
        pairs = [(part.weight, own), *([(part.bias, bias[rows])] if part.bias and bias is not None else [])]
        if any(not np.array_equal(restored.get(name, weights.get(name, array)), array) for name, array in pairs):
            return None
        restored.update(pairs)
    return restored


def _cut(conv: onnx.NodeProto, rows: np.ndarray, part: Part) -> np.ndarray | None:
    """The part's kernels out of the middle; None if what lies around is not zero or the padding does not fit."""
    kernel = tuple(rows.shape[2:])
    if len(part.kernel_shape) != len(kernel):
        return None
    margins = _margins(part.kernel_shape, kernel)
    written = {item.name: _plain(item) for item in conv.attribute}
    if any(margin < 0 for margin in margins) or not _fits(part, written, kernel):
        return None
    middle = (slice(None), slice(None), *(slice(m, m + k) for m, k in zip(margins, part.kernel_shape, strict=True)))
    own = np.ascontiguousarray(rows[middle])
    own.flags.writeable = False
    return own if np.array_equal(_padded(own, kernel), rows) else None


def _fits(part: Part, merged: Mapping[str, object], kernel: tuple[int, ...]) -> bool:
    """Whether the part's attributes agree with those of the merged convolution."""
    ones, zeros = [1] * len(kernel), [0] * (2 * len(kernel))
    for key, default in (("strides", ones), ("dilations", ones), ("group", 1)):
        if part.attributes.get(key, default) != merged.get(key, default):
            return False
    if part.attributes.get("kernel_shape", list(part.kernel_shape)) != list(part.kernel_shape):
        return False
    if str(part.attributes.get("auto_pad", "NOTSET")).startswith("SAME"):
        return True  # depends on the input's size, which is not known here
    dilations, pads = merged.get("dilations", ones), part.attributes.get("pads", zeros)
    if not isinstance(dilations, list) or not isinstance(pads, list):
        return False
    return _centred_pads(part.kernel_shape, tuple(pads), tuple(dilations), kernel) == _tuple(merged.get("pads", zeros))


def _tuple(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list) else ()
