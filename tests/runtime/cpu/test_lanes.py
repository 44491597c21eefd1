"""Every group gets a lane, no lane idles while work is left, and the assignment never changes."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from iosched.runtime.cpu.calls import assign_lanes

WORK = st.lists(st.integers(1, 50).map(float), min_size=1, max_size=6)


@given(WORK, st.integers(1, 6))
def test_few_groups_share_all_lanes_and_many_get_one_each(work_us: list[float], lanes: int) -> None:
    found = assign_lanes(work_us, lanes)
    assert found == assign_lanes(list(work_us), lanes)
    assert len(found) == len(work_us)
    used = sorted(lane for group in found for lane in group)
    if len(work_us) < lanes:
        assert used == list(range(lanes))
    else:
        assert all(len(group) == 1 for group in found)
        assert set(used) == set(range(lanes))


@given(WORK, st.integers(1, 3))
def test_the_longest_lane_is_within_grahams_bound(work_us: list[float], lanes: int) -> None:
    if len(work_us) < lanes:
        return

    def makespan(chosen: tuple[int, ...]) -> float:
        return max(sum(w for w, lane in zip(work_us, chosen, strict=True) if lane == own) for own in range(lanes))

    best = min(makespan(chosen) for chosen in product(range(lanes), repeat=len(work_us)))
    found = makespan(tuple(group[0] for group in assign_lanes(work_us, lanes)))
    assert found <= best * (4 / 3 - 1 / (3 * lanes)) + 1e-9


def test_spare_lanes_go_where_most_work_is_left_for_each() -> None:
    assert assign_lanes([10.0, 100.0], 4) == ((0,), (1, 2, 3))
    assert assign_lanes([100.0, 100.0], 4) == ((0, 1), (2, 3))
    assert assign_lanes([5.0], 3) == ((0, 1, 2),)
