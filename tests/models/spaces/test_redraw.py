"""A variant is the network of its plan, and the parts that the plan does not change are those of the base."""

from __future__ import annotations

from itertools import product

import onnx
import pytest
from mutations import by_name, check
from small_models import data

from iosched.models.load import load_model
from iosched.models.mutation.variant import variant_of
from iosched.models.spaces.redraw import Choose, Redraw
from iosched.models.zoo.network import Network

Plan = tuple[int, str, str, int]
CHANNELS, POOLS, ENDS, DEPTHS = (4, 6), ("max3", "max5", "average3"), ("sum", "concat", "first"), (0, 1, 2)


def chosen(choose: Choose) -> Plan:
    pool = choose(POOLS, "pool")
    return choose(CHANNELS, "channels"), pool, choose(ENDS, "end"), choose(DEPTHS, "depth")


def draw(net: Network, plan: Plan, pixels: int) -> onnx.ModelProto:
    """One node each that changes its weights, its attributes, its type, and its inputs, and some that come and go."""
    channels, pool, end, depth = plan
    x = net.conv(net.input(3, pixels), channels, 3, "stem", padding=1)
    left = (net.average_pool if pool == "average3" else net.max_pool)(
        x, int(pool[-1]), "pool", padding=int(pool[-1]) // 2
    )
    for number in range(depth):
        x = net.conv(x, channels, 1, f"right{number}")
    pair = {"sum": [x, left], "concat": [left, x], "first": [left, left]}[end]
    joined = net.concat(pair, "joined") if end == "concat" else net.sum(pair, "joined")
    return net.finish(net.conv(joined, 5, 1, "output", relu=False))


MUTATOR = Redraw("small", plan=chosen, draw=draw, base=(4, "max3", "sum", 1))
SPACE = MUTATOR.space()
BASE = load_model(data(MUTATOR.base_proto(32)))
ALL = list(product(CHANNELS, POOLS, ENDS, DEPTHS))


def answers(plan: Plan) -> dict[str, int | str]:
    return dict(zip(("channels", "pool", "end", "depth"), plan, strict=True))


@pytest.mark.slow
def test_every_variant_is_the_network_of_its_plan() -> None:
    assert len(ALL) == SPACE.size == 54
    for plan in ALL:
        variant = variant_of(BASE, SPACE.mutators, by_name(answers(plan)))
        alone = load_model(data(draw(Network("alone"), plan, 32)))
        assert variant.model.structure.digest == alone.structure.digest, plan


@pytest.mark.parametrize("plan", [ALL[0], ALL[-1], (4, "max5", "sum", 1)])
def test_a_variant_runs_and_is_reproduced(plan: Plan) -> None:
    check(variant_of(BASE, SPACE.mutators, by_name(answers(plan))))


@pytest.mark.parametrize(
    ("plan", "changed"),
    [
        ((4, "max3", "sum", 1), set()),
        ((4, "max5", "sum", 1), {"pool"}),
        ((4, "average3", "sum", 1), {"pool"}),
        ((4, "max3", "first", 1), {"joined"}),
        ((4, "max3", "sum", 2), {"right1/conv", "right1", "joined"}),
        ((4, "max3", "concat", 1), {"joined", "output"}),
    ],
)
def test_only_the_plans_changes_differ_from_the_base(plan: Plan, changed: set[str]) -> None:
    variant = variant_of(BASE, SPACE.mutators, by_name(answers(plan)))
    assert {node.name for node in variant.model.proto.graph.node} - variant.unmodified == changed
