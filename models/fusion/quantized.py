"""An operator of a model in whole numbers: what computes, DequantizeLinear nodes before it, and QuantizeLinear behind.

Quantizers write such pairs around the operators of a model in floats. Runtimes make one kernel of them, so they are no
operators of their own. The DequantizeLinear behind the QuantizeLinear counts to the operator too, where all readers of
the result read it there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from iosched.models.fusion.view import GraphView, Unit
from iosched.models.wiring import reads


def match(view: GraphView, index: int, units: Mapping[int, Unit]) -> Unit | None:
    """The unit whose anchor is node `index`, with the nodes around it that quantize and dequantize."""
    unit = units.get(index) or Unit(view.nodes[index].op_type, (index,), index)
    if unit.anchor != index or view.constant_from(index, 0):
        return None
    before, behind = _before(view, unit, units), _behind(view, unit.nodes[-1])
    if not before and not behind:
        return None
    nodes = tuple(sorted({*before, *unit.nodes, *behind}))
    quantizes = next((number for number in (*behind, index) if view.is_quantize(number)), None)
    return replace(unit, nodes=nodes, quantizes=quantizes, merges=False)


def _behind(view: GraphView, last: int) -> tuple[int, ...]:
    """The QuantizeLinear that alone reads node `last`, and the DequantizeLinear that alone reads that."""
    if view.is_quantize(last):
        return _next(view, last, view.is_dequantize)
    found = _next(view, last, view.is_quantize)
    return (*found, *_next(view, found[0], view.is_dequantize)) if found else ()


def _next(view: GraphView, index: int, is_wanted: Callable[[int], bool]) -> tuple[int, ...]:
    reader = view.only_reader(index)
    fits = reader is not None and is_wanted(reader) and view.constant_from(reader, 1)
    return (reader,) if reader is not None and fits else ()


def _before(view: GraphView, unit: Unit, units: Mapping[int, Unit]) -> list[int]:
    """The DequantizeLinear nodes that nothing but the unit reads, and what makes weights whole numbers before them."""
    found: list[int] = []
    waiting = list(unit.nodes)
    while waiting:
        for name in reads(view.nodes[waiting.pop()]):
            index = view.producer.get(name)
            if index is not None and _belongs(view, index, units, {*unit.nodes, *found}):
                found.append(index)
                waiting.append(index)
    return found


def _belongs(view: GraphView, index: int, units: Mapping[int, Unit], members: set[int]) -> bool:
    if index in members or index in units or view.only_reader(index) not in members:
        return False
    if not view.constant_from(index, 1):
        return False
    return view.is_dequantize(index) or (view.is_quantize(index) and view.constant_from(index, 0))
