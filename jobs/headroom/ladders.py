"""What is tried in a stage: wider operators, larger kernels and one more branch, each in steps from little to much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from iosched.jobs.headroom.result import ChangeKind
from iosched.models.enlarging.branch import with_branch
from iosched.models.enlarging.kernel import kernel_of, larger, with_kernel
from iosched.models.enlarging.part import Part
from iosched.models.enlarging.width import widened, width_of, widths
from iosched.models.graph import ComputationGraph
from iosched.scheduler.schedule import Stage, Strategy

MOST_OPERATORS = 2
"""Of so many operators of a stage more channels and larger kernels are tried: of those with least to do beside others,
since where others take longer there is most to gain."""
MOST_WIDTHS = 5
MOST_KERNELS = 2
MOST_WEIGHTS_NBYTES = 16 << 20
"""Operators with more weights than this are left alone where stages are measured: copies of them fill the memory."""

NOW = "now"


@dataclass(frozen=True, eq=False)
class Ladder:
    """One kind of change in one place, from little to much.

    Attributes:
        kind, operator, now, readers: see `Change`.
        rungs: for each name of a changed part what the change leads to.
    """

    kind: ChangeKind
    operator: str
    now: tuple[int, ...]
    rungs: Mapping[str, tuple[int, ...]]
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Ladders:
    """All that is tried in a stage.

    Attributes:
        parts: the stage's operators as they are, as `NOW`, and changed.
        ladders: the changes.
    """

    parts: Mapping[str, Part]
    ladders: Sequence[Ladder]


def ladders_of(graph: ComputationGraph, stage: Stage, part: Part, block: int, *, is_run: bool) -> Ladders:
    """What is tried in a stage.

    Args:
        graph: of the model.
        stage: of operators of the model.
        part: these operators.
        block: how many channels kernels compute at once.
        is_run: whether the parts will be run, with all their weights.
    """
    parts = {NOW: part}
    found: list[Ladder] = []
    for number, operator in enumerate(_operators(graph, stage, part, MOST_WEIGHTS_NBYTES if is_run else None)):
        found += _widths(graph, parts, part, operator, block, f"w{number}")
        found += _kernels(parts, part, operator, f"k{number}")
    if stage.strategy is Strategy.CONCURRENT and (group := _smallest(graph, part)) is not None:
        parts["b0.0"] = with_branch(part, group)
        count = len(part.groups)
        found.append(Ladder("branch", part.groups[group][0], (count,), {"b0.0": (count + 1,)}))
    return Ladders(parts, found)


def can_grow(part: Part, operator: str) -> bool:
    """Whether an operator has channels or a kernel of which there could be more."""
    return width_of(part, operator) is not None or kernel_of(part, operator) is not None


def _operators(graph: ComputationGraph, stage: Stage, part: Part, most_nbytes: int | None) -> list[str]:
    """The operators whose channels or kernels are tried: those of the smallest groups, and of a group the last ones."""
    groups = sorted(stage.groups, key=lambda group: _flops(graph, group))
    return [
        name
        for group in groups
        for name in reversed(group)
        if can_grow(part, name)
        and (most_nbytes is None or sum(each.nbytes for each in graph.by_name[name].weights) <= most_nbytes)
    ][:MOST_OPERATORS]


def _widths(
    graph: ComputationGraph, parts: dict[str, Part], part: Part, operator: str, block: int, name: str
) -> Iterator[Ladder]:
    width = width_of(part, operator)
    if width is None:
        return
    made = {each: widened(part, operator, each) for each in widths(width, block, MOST_WIDTHS)}
    wider = {f"{name}.{rung}": (each, found) for rung, (each, found) in enumerate(made.items()) if found is not None}
    parts.update({rung: found for rung, (_, found) in wider.items()})
    if wider:
        readers = _readers(graph, part, next(found for _, found in wider.values()))
        yield Ladder("width", operator, (width,), {rung: (each,) for rung, (each, _) in wider.items()}, readers)


def _readers(graph: ComputationGraph, part: Part, wider: Part) -> tuple[str, ...]:
    """The operators outside of a part that read what has more channels in `wider`."""
    grown = {spec.name for spec in part.outputs if wider.shape(spec.name) != spec.shape}
    return tuple(each.name for each in graph.operators if each.name not in part.members and grown & set(each.inputs))


def _kernels(parts: dict[str, Part], part: Part, operator: str, name: str) -> Iterator[Ladder]:
    kernel = kernel_of(part, operator)
    if kernel is None:
        return
    sizes = [larger(kernel, steps) for steps in range(1, MOST_KERNELS + 1)]
    made = {f"{name}.{rung}": (size, with_kernel(part, operator, size)) for rung, size in enumerate(sizes)}
    grown = {rung: (size, found) for rung, (size, found) in made.items() if found is not None}
    parts.update({rung: found for rung, (_, found) in grown.items()})
    if grown:
        yield Ladder("kernel", operator, kernel, {rung: size for rung, (size, _) in grown.items()})


def _smallest(graph: ComputationGraph, part: Part) -> int | None:
    """The place of the group with least to do of those with a convolution or a product; None where there is none."""
    places = [
        place for place, group in enumerate(part.groups) if any(width_of(part, name) is not None for name in group)
    ]
    return min(places, key=lambda place: _flops(graph, part.groups[place]), default=None)


def _flops(graph: ComputationGraph, group: Sequence[str]) -> int:
    return sum(graph.by_name[name].flops for name in group)
