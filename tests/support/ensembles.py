"""Made-up ensembles: members of a few operators each, some of which several members share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from hypothesis import strategies as st

from iosched.models.batching.ensemble import Ensemble, Group, Likeness
from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.scheduler.batching.plan import Plan

Layer = tuple[str, tuple[int, ...], bool]
"""An operator of a member: its type, which earlier operators of the member it reads (-1 is the member's input), and
whether it has the same weights in every member."""


def ensemble_of(members: Sequence[Sequence[Layer]], *, shared_input: bool = False) -> Ensemble:
    """The members' union: operators of equal weights that read the same are one; unread results are returned.

    Operators whose type begins with "s" take one tensor for all as it is; those that begin with "n" never batch.
    """
    operators: dict[str, Operator] = {}
    known: dict[tuple[str, tuple[str, ...]], str] = {}
    owners: dict[str, int] = {}
    returned: dict[str, None] = {}
    inputs: dict[str, None] = {}
    for bit, member in enumerate(members):
        source = "x" if shared_input else f"x{bit}"
        inputs.setdefault(source)
        own: list[str] = []
        for index, (kind, reads, is_frozen) in enumerate(member):
            tensors = tuple(dict.fromkeys(source if place < 0 else own[place] for place in reads))
            name = known.setdefault((kind, tensors), f"{bit}{kind}{index}") if is_frozen else f"{bit}{kind}{index}"
            operators.setdefault(name, Operator(name, kind, (name,), tensors, (name,)))
            owners[name] = owners.get(name, 0) | 1 << bit
            own.append(name)
        read = {name for mine in own for name in operators[mine].inputs}
        returned.update(dict.fromkeys(name for name in own if name not in read))
    specs = tuple(TensorSpec(name, "float32", (1,)) for name in operators)
    fed = tuple(TensorSpec(name, "float32", (1,)) for name in inputs)
    graph = ComputationGraph("made up", fed, tuple(returned), tuple(operators.values()), specs)
    likeness = {
        name: Likeness(f"{each.type} {len(each.inputs)}", not each.type.startswith("n"), each.type.startswith("s"))
        for name, each in operators.items()
    }
    return Ensemble(graph, tuple(operators), owners, likeness, {name: each.inputs for name, each in operators.items()})


@st.composite
def members(draw: st.DrawFn, most: int = 5, types: str = "abn", frozen: bool = False) -> tuple[Layer, ...]:
    """A member of one to `most` operators that reads at least its input."""
    layers: list[Layer] = []
    for index in range(draw(st.integers(1, most))):
        reads = draw(st.lists(st.integers(-1, index - 1), min_size=1, max_size=2)) if index else [-1]
        layers.append((draw(st.sampled_from(types)), tuple(reads), frozen and draw(st.booleans())))
    return tuple(layers)


def chain(types: Iterable[str]) -> tuple[Layer, ...]:
    """A member whose operators read one another in order."""
    return tuple((kind, (index - 1,), False) for index, kind in enumerate(types))


@dataclass(frozen=True)
class Prices:
    """Gains by type for every operator beyond the first; prices for a concatenation as such, and for each tensor."""

    gain: Mapping[str, float]
    join: float = 1.0
    part: float = 1.0
    each: float = 0.0

    def gain_us(self, operators: Sequence[Operator], count: int) -> float:
        return self.gain[operators[0].type] * (count - 1)

    def join_us(self, tensor: TensorSpec, count: int) -> float:
        return self.join + self.each * count

    def part_us(self, tensor: TensorSpec, count: int) -> float:
        return self.part + self.each * count


@st.composite
def prices(draw: st.DrawFn, types: str = "abn") -> Prices:
    """Whole numbers, so that sums are exact."""
    number = st.integers(0, 6).map(float)
    gains = {kind: float(draw(st.integers(-2, 9))) for kind in types}
    return Prices(gains, draw(number), draw(number), draw(st.sampled_from([0.0, 1.0])))


def has_cycle(ensemble: Ensemble, groups: Iterable[Group]) -> bool:
    """Whether operators would wait for each other if each group were one operator."""
    head = {name: group[0] for group in groups for name in group}
    waits: dict[str, set[str]] = {}
    for name, before in ensemble.graph.predecessors.items():
        waits.setdefault(head.get(name, name), set()).update(head.get(other, other) for other in before)
    try:
        TopologicalSorter(waits).prepare()
    except CycleError:
        return True
    return False


def assert_groups_are_sound(plan: Plan) -> None:
    """Groups hold alike operators, no operator twice, and make no cycle."""
    groups = plan.all_groups()
    names = [name for group in groups for name in group]
    assert len(set(names)) == len(names)
    for group in groups:
        assert len(group) > 1
        assert len({plan.ensemble.likeness[name].key for name in group}) == 1
        assert all(plan.ensemble.likeness[name].batches for name in group)
    assert not has_cycle(plan.ensemble, groups)
