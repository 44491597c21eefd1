"""Along which axis the members of each group are joined, so that groups take what others compute as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iosched.models.batching.layer import Axes
from iosched.models.batching.unit import Unit


def chosen_axes(units: Sequence[Unit]) -> list[int]:
    """For each unit the axis along which what it reads is joined.

    A unit that leaves a choice follows those that it reads from, or else the first one that reads from it.

    Args:
        units: each after those that it reads from.

    Raises:
        ValueError: the operators of a unit cannot become one.
    """
    options = [unit.axes() for unit in units]
    for unit, ways in zip(units, options, strict=True):
        if not ways:
            raise ValueError(f"operators like {unit.results[0][0]!r} cannot become one")
    source = {names: index for index, unit in enumerate(units) for names in unit.results}
    readers: dict[int, list[int]] = {}
    found: dict[int, int] = {}
    for index, unit in enumerate(units):
        fed = [source[names] for names in unit.ports() if names in source]
        for feeder in fed:
            readers.setdefault(feeder, []).append(index)
        axis = _followed(options[index], [options[feeder][found[feeder]] for feeder in fed if feeder in found])
        if axis is not None:
            found[index] = axis
    for index in reversed(range(len(units))):
        if index not in found:
            found[index] = _ahead(options[index], [found[reader] for reader in readers.get(index, ())])
    return [found[index] for index in range(len(units))]


def _followed(options: Axes, before: Sequence[int]) -> int | None:
    """The axis of those that are read from, as far as there is a choice; None where they do not tell."""
    if len(options) == 1:
        return next(iter(options))
    return next((axis for axis in before if axis in options), None)


def _ahead(options: Mapping[int, int], behind: Sequence[int]) -> int:
    """The axis that gives a result as a reader wants it; the first one where none tells."""
    wanted = (own for axis in behind for own, result in options.items() if result == axis)
    return next(wanted, next(iter(options)))
