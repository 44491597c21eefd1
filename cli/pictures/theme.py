"""What all pictures of a schedule have in common: how operators and latencies are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iosched.cli.pictures.families import FAMILIES, family_of
from iosched.cli.text import latency_text, shape_text
from iosched.models.graph import ComputationGraph
from iosched.models.structure import OperatorForm, Structure
from iosched.scheduler.schedule import Stage
from iosched.scheduler.strategies import STAGE_RULES


@dataclass(frozen=True)
class Look:
    """How an operator is shown: `label` is the text in its box, and `kind` decides the colour.

    Attributes:
        type: the operator's type.
        label: says it in short.
        models: the models that it works for, where the file has several.
        shape: of its first output, as `1x64x56x56`; empty where it is not known.
        flops: what it computes; None where that is not known.
    """

    type: str
    label: str
    models: str = ""
    shape: str = ""
    flops: int | None = None

    @property
    def family(self) -> str:
        """The short name of its family of operators."""
        return family_of(self.type)

    @property
    def kind(self) -> str:
        """What operators of one colour have in common: the models, or where there is one model, the family."""
        return self.models or FAMILIES[self.family].name


def looks_of(graph: ComputationGraph, models: Mapping[str, str] = {}) -> dict[str, Look]:
    """How each operator of the graph is shown, by its name.

    Args:
        models: the models that operators work for, in words, where the file has several.
    """
    shape_of = {spec.name: spec.shape for spec in graph.tensors}
    return {
        each.name: Look(
            each.type,
            _label(each.type, each.integers("kernel_shape")),
            models.get(each.name, ""),
            "" if (shape := shape_of.get(each.name)) is None else shape_text(shape),
            each.flops,
        )
        for each in graph.operators
    }


def looks_by_structure(structure: Structure | None) -> dict[str, Look]:
    """The same by what a schedule file says of its model; nothing where it says nothing."""
    if structure is None:
        return {}
    by_form = list(map(_look_of_form, structure.forms))
    return {
        each.name: by_form[number] for each, number in zip(structure.operators, structure.form_numbers, strict=True)
    }


def _look_of_form(form: OperatorForm) -> Look:
    kernels = (dict(node.attributes).get("kernel_shape") for node in form.nodes)
    kernel = next((found for found in kernels if found), "")
    shape = form.outputs[0].rpartition(" ")[2] if form.outputs else ""
    return Look(form.type, _label(form.type, tuple(map(int, re.findall(r"[0-9]{1,9}", kernel)))), shape=shape)


def shown(stage: Stage, group: Sequence[str]) -> Sequence[str]:
    """The boxes of a group: its operators, or of a long session the first, how many more, and the last."""
    if not STAGE_RULES[stage.strategy].is_in_order or len(group) <= _MOST_OF_A_SESSION:
        return group
    return (group[0], f"{len(group) - 2} more", group[-1])


_MOST_OF_A_SESSION = 4
_SHORT = {"AveragePool": "AvgPool", "GlobalAveragePool": "GlobalAvgPool"}


def _label(kind: str, kernel: Sequence[int]) -> str:
    kind = _SHORT.get(kind, kind)
    if kernel:
        return f"{kind} {'×'.join(map(str, kernel))}"  # noqa: RUF001 - a multiplication sign is meant
    return kind


def look_of(name: str, looks: Mapping[str, Look]) -> Look:
    """How the operator `name` is shown: as `looks` says, or else by the last part of its name."""
    return looks.get(name) or Look("", name.rsplit("/", 1)[-1])


def latency_label(latency_us: float | None) -> str:
    """A latency as pictures show it: there is room for two decimals of a millisecond."""
    return latency_text(latency_us, unknown="latency not known", digits=2)
