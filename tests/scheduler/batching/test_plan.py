"""A plan's description of its groups agrees with the edges of all their operators."""

from __future__ import annotations

from ensembles import Layer, ensemble_of, members
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.batching.ensemble import Ensemble, Group
from iosched.scheduler.batching.costs import EqualGains
from iosched.scheduler.batching.plan import Plan
from iosched.scheduler.batching.planner import folded, layered

several = st.lists(members(most=6, types="ab", frozen=True), min_size=2, max_size=4)


def plans(ensemble: Ensemble) -> list[Plan]:
    return [layered(ensemble, EqualGains()), folded(ensemble, EqualGains())]


def is_parted(plan: Plan, group: Group, index: int) -> bool:
    """By definition: some reader of some result has it not in place, or it is returned."""
    results = [plan.ensemble.graph.by_name[name].outputs[index] for name in group]
    for tensor in results:
        for name, port in plan.ensemble.readers.get(tensor, ()):
            if [plan.ensemble.reads[other][port] for other in plan.group(name)] != results:
                return True
    return any(tensor in plan.ensemble.graph.outputs for tensor in results)


@given(several, st.booleans(), st.data())
def test_results_are_split_unless_all_readers_have_them_in_place(
    models: list[tuple[Layer, ...]], shares: bool, data: st.DataObject
) -> None:
    for plan in plans(ensemble_of(models, shared_input=shares)):
        gone = [group for group in plan.all_groups() if data.draw(st.booleans())]
        left = plan.without(gone)
        for group in left.all_groups():
            assert left.is_parted(group, 0) == is_parted(left, group, 0)


@given(several, st.booleans())
def test_groups_are_in_the_order_of_their_members(models: list[tuple[Layer, ...]], shares: bool) -> None:
    ensemble = ensemble_of(models, shared_input=shares)
    for plan in plans(ensemble):
        for group in plan.all_groups():
            assert list(group) == sorted(group, key=ensemble.place.__getitem__)
