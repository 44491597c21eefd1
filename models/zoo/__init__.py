"""Builders of the benchmark networks, one file each, registered by one line in this module."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

from iosched.models.errors import UsageError

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class ZooEntry:
    """Facts about a network that do not need building it.

    Attributes:
        name: NAME in `zoo:NAME`, and its module.
        title: for display.
        operators: the number of operators of its computation graph.
    """

    name: str
    title: str
    operators: int


_ENTRIES = (
    ZooEntry("inception_v3", "Inception V3", 119),
    ZooEntry("randwire", "RandWire, four random stages", 120),
    ZooEntry("nasnet_a", "NASNet-A large", 374),
    ZooEntry("squeezenet", "SqueezeNet with bypass", 50),
    ZooEntry("resnet50", "ResNet-50", 57),
    ZooEntry("googlenet", "GoogLeNet (Inception V1)", 82),
    ZooEntry("vgg16", "VGG-16", 22),
    ZooEntry("densenet121", "DenseNet-121", 248),
    ZooEntry("bert_mini", "an encoder of BERT-Mini's sizes", 120),
    ZooEntry("decoder_mini", "a decoder of BERT-Mini's sizes", 116),
)


def names() -> tuple[str, ...]:
    """The names of networks: the four of the IOS thesis, controls, and small transformers."""
    return tuple(entry.name for entry in _ENTRIES)


def describe(name: str) -> ZooEntry:
    """The entry of network `name`; raises `UsageError` if there is none."""
    for entry in _ENTRIES:
        if entry.name == name:
            return entry
    close = difflib.get_close_matches(name, names(), n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(names())}"
    raise UsageError(f"the zoo has no network {name!r}; {hint}")


def build(name: str) -> onnx.ModelProto:
    """Network `name` with seeded weights, bit-equal in every call, batch 1, for 128 words. Raises as `describe`."""
    module = import_module(f"{__name__}.{describe(name).name}")
    return cast("onnx.ModelProto", module.build())
