"""The usual layers that mutators put into a graph, each by a name: "conv3", "dconv5_relu", "max_pool3", "identity"."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from iosched.models.errors import UsageError
from iosched.models.graph import AttributeValue
from iosched.models.mutation.edit import Edit

Shape = tuple[int, ...]
_NAME = re.compile(r"(conv|dconv|max_pool|average_pool)([1-9]\d?)(_relu)?|identity|relu")


class Layer(Protocol):
    """Computes a tensor of one shape from a tensor of another."""

    def __call__(self, edit: Edit, source: str, shape: Shape, name: str) -> str:
        """Add nodes that compute a tensor of `shape` from `source`, and return what that is called.

        Args:
            edit: to add them with.
            source: (batch, channels, sizes); the batch is that of `shape`.
            shape: of the result.
            name: begins the names of the nodes.

        Raises:
            UsageError: there is no such layer between these shapes.
        """


def layer_of(name: str) -> Layer:
    """The layer of this name.

    | name | layer |
    |---|---|
    | `conv3` | convolution with a 3x3 kernel (or 3, or 3x3x3, by the tensor's rank) and a bias |
    | `dconv3` | depthwise convolution with that kernel, and a pointwise one |
    | `max_pool3`, `average_pool3` | pool; behind it a 1x1 convolution where the number of channels changes |
    | `identity` | nothing; a 1x1 convolution where the shape changes |
    | `relu` | Relu of a tensor of the same shape |

    With "_relu" behind it, a Relu follows.

    Raises:
        UsageError: there is none.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        known = "conv3, dconv3, max_pool3, average_pool3 (or another size), each also with _relu, identity and relu"
        raise UsageError(f"no layer is called {name!r}; there are {known}")
    if found[1] is None:
        return _relu if name == "relu" else _identity
    kinds = {"conv": _conv, "dconv": _depthwise}
    pools = {"max_pool": "MaxPool", "average_pool": "AveragePool"}
    layer = kinds[found[1]] if found[1] in kinds else partial(_pool, pools[found[1]])
    made = partial(layer, int(found[2]))
    return partial(_with_relu, made) if found[3] else made


def layers_of(layers: Sequence[str] | Mapping[str, Layer]) -> dict[str, Layer]:
    """Layers by name: those given, or those that the names are of."""
    return dict(layers) if isinstance(layers, Mapping) else {name: layer_of(name) for name in layers}


def _depthwise(kernel: int, edit: Edit, source: str, shape: Shape, name: str) -> str:
    have = _shape(edit, source, shape)
    spread = _conv(kernel, edit, source, (*have[:2], *shape[2:]), f"{name}/depthwise", groups=have[1])
    return _conv(1, edit, spread, shape, name)


def _pool(kind: str, kernel: int, edit: Edit, source: str, shape: Shape, name: str) -> str:
    have = _shape(edit, source, shape)
    attributes = _windows(have[2:], shape[2:], kernel)
    called = name if have[1] == shape[1] else f"{name}/pool"
    pool = edit.create(kind, [source], name=called, attributes=attributes).name
    return pool if have[1] == shape[1] else _conv(1, edit, pool, shape, name)


def _identity(edit: Edit, source: str, shape: Shape, name: str) -> str:
    return source if edit.graph.shape(source) == shape else _conv(1, edit, source, shape, name)


def _relu(edit: Edit, source: str, shape: Shape, name: str) -> str:
    if edit.graph.shape(source) != shape:
        raise UsageError(f"a Relu of {source!r} is of shape {edit.graph.shape(source)}, not {shape}")
    return edit.create("Relu", [source], name=name).name


def _with_relu(layer: Layer, edit: Edit, source: str, shape: Shape, name: str) -> str:
    return edit.create("Relu", [layer(edit, source, shape, f"{name}/linear")], name=name).name


def window(size: int, wanted: int, kernel: int) -> tuple[int, int, int] | None:
    """A stride and paddings before and behind by which a window makes `wanted` values of `size`.

    The least stride of those that are possible with a padding smaller than the kernel; None where none is.
    """
    for stride in range(1, size + 1):
        padding = max((wanted - 1) * stride + kernel - size, 0)
        whole = size + padding
        if padding <= 2 * (kernel - 1) and whole >= kernel and (whole - kernel) // stride + 1 == wanted:
            return stride, padding // 2, padding - padding // 2
    return None


def _windows(sizes: Shape, wanted: Shape, kernel: int) -> dict[str, AttributeValue]:
    found = [window(size, result, kernel) for size, result in zip(sizes, wanted, strict=True)]
    known = [item for item in found if item is not None]
    if len(known) < len(found):
        raise UsageError(f"no window of {kernel} makes {wanted} of {sizes}")
    strides, begins, ends = zip(*known, strict=True)
    return {"kernel_shape": (kernel,) * len(sizes), "strides": strides, "pads": (*begins, *ends)}


def _conv(kernel: int, edit: Edit, source: str, shape: Shape, name: str, *, groups: int = 1) -> str:
    have = _shape(edit, source, shape)
    weights = {1: (shape[1], have[1] // groups, *(kernel,) * (len(shape) - 2)), 2: (shape[1],)}
    attributes = {**_windows(have[2:], shape[2:], kernel), "group": groups}
    return edit.create("Conv", [source], name=name, attributes=attributes, weights=weights).name


def _shape(edit: Edit, source: str, wanted: Shape) -> Shape:
    """The shape of `source`, after it was looked whether layers can make `wanted` of it."""
    have = edit.graph.shape(source)
    if len(have) < 3 or len(have) != len(wanted) or have[0] != wanted[0]:
        raise UsageError(f"no layer makes {wanted} of {source!r}, which is {have}: (batch, channels, sizes) are needed")
    return have
