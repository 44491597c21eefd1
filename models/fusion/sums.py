"""Folds a sum into the only unit that reads it: a unit that takes sums, a Concat (as in the thesis), or a sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from iosched.models.fusion.view import GraphView, Unit

_SUMS = ("Add", "Sum")


def match(view: GraphView, index: int, units: Mapping[int, Unit]) -> Unit | None:
    """The unit of node `index`, together with the sums that it alone reads (and the sums that those alone read)."""
    alone = Unit(view.nodes[index].op_type, (index,), index, takes_sums=_takes_sums(view, index))
    unit = units.get(index, alone)
    if unit.nodes[0] != index or not unit.takes_sums:
        return None
    sums = _foldable(view, index, units)
    if not sums:
        return None
    return replace(unit, nodes=(*sorted(sums), *unit.nodes), sums=tuple(sorted(sums)))


def _foldable(view: GraphView, index: int, units: Mapping[int, Unit]) -> list[int]:
    """The sums whose values node `index` alone reads, each with the sums that it has folded into itself."""
    found: list[int] = []
    for name in view.nodes[index].input:
        producer = view.producer.get(name)
        if producer is None or not _is_sum(view, producer) or view.only_reader(producer) != index:
            continue
        unit = units.get(producer)
        # A sum that is part of a convolution's unit, as its residual, stays there.
        if unit is None or unit.anchor == producer:
            found.extend(unit.nodes if unit else (producer,))
    return found


def _takes_sums(view: GraphView, index: int) -> bool:
    return view.is_op(index, ("Concat",)) or _is_sum(view, index)


def _is_sum(view: GraphView, index: int) -> bool:
    names = view.nodes[index].input
    if not view.is_op(index, _SUMS) or len(names) < 2 or any(name in view.weights for name in names):
        return False
    return view.same_shape((*names, *view.nodes[index].output))
