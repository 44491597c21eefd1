"""Evolution as published for EA-NAS, and as documented here where the paper is silent."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_study import asked, card, choices, evaluated, go_on, strategy_of

from iosched.jobs.exploring.evolution import P_CROSSOVER, P_MUTATION, Genome, Parent, fitness, next_generation
from iosched.jobs.exploring.explore_result import Feedback
from iosched.jobs.exploring.pareto_front import Point
from iosched.jobs.exploring.study import begun_study

GENES = [f"gene{number}" for number in range(6)]
CANDIDATES = dict.fromkeys(GENES, (0, 1, 2, 3))
GENOMES = st.fixed_dictionaries({name: st.integers(0, 3) for name in GENES})


def _differing(a: Genome, b: Genome) -> int:
    return sum(a[name] != b[name] for name in GENES)


@given(st.lists(GENOMES, min_size=1, max_size=8), st.integers(0, 1000))
def test_every_gene_of_a_child_is_from_a_parent_except_one_mutation(parents: list[Genome], seed: int) -> None:
    children = next_generation([Parent(each, 1.0) for each in parents], CANDIDATES, 7, random.Random(seed))
    assert len(children) == 7
    for child in children:
        assert set(child) == set(GENES)
        foreign = [name for name in GENES if child[name] not in {parent[name] for parent in parents}]
        assert len(foreign) <= 1


def test_mutation_and_crossover_happen_at_their_published_rates() -> None:
    zeros, ones = (dict.fromkeys(GENES, value) for value in (0, 1))
    alone = next_generation([Parent(zeros, 1.0)], CANDIDATES, 20_000, random.Random(0))
    mutated = sum(_differing(zeros, each) == 1 for each in alone)
    assert mutated / 20_000 == pytest.approx(P_MUTATION * 3 / 4, abs=0.01)  # of four candidates, one is the gene's own
    assert all(_differing(zeros, each) <= 1 for each in alone)

    kept = dict.fromkeys(GENES, (9,))  # what a mutation makes
    both = next_generation([Parent(zeros, 1.0), Parent(ones, 1.0)], kept, 20_000, random.Random(0))
    mixed = sum({0, 1} <= set(each.values()) for each in both)
    assert mixed / 20_000 == pytest.approx(P_CROSSOVER / 2, rel=0.1)  # of half the pairs, both parents are one


def test_the_fittest_genome_survives_unchanged() -> None:
    parents = [Parent({"gene": value}, fit) for value, fit in ((0, 1.0), (1, 3.0), (2, 0.0))]
    assert next_generation(parents, {"gene": (7,)}, 5, random.Random(0))[0] == {"gene": 1}


def test_parents_are_chosen_by_fitness_or_at_random_if_all_are_unfit() -> None:
    parents = [Parent({"gene": value}, fit) for value, fit in ((0, 3.0), (1, 1.0), (2, 0.0))]
    children = next_generation(parents, {"gene": (9,)}, 10_000, random.Random(0))
    counts = Counter(child["gene"] for child in children)  # 9 is what a mutation makes
    assert counts[0] / counts[1] == pytest.approx(3, rel=0.1)
    assert counts[2] == 0
    unfit = [Parent(each.genome, 0.0) for each in parents]
    assert {child["gene"] for child in next_generation(unfit, {"gene": (9,)}, 100, random.Random(0))} == {0, 1, 2, 9}


def test_genes_that_only_one_parent_has_are_exchanged_with_the_others() -> None:
    short, long = {"paths": 1, "way1": "conv"}, {"paths": 2, "way1": "pool", "way2": "dconv"}
    candidates = {"paths": ("new",), "way1": ("new",), "way2": ("new",)}
    for child in next_generation([Parent(short, 1.0), Parent(long, 1.0)], candidates, 200, random.Random(0)):
        assert "new" in child.values() or dict(child) in (
            *(short, long),
            {"paths": 1, "way1": "pool", "way2": "dconv"},
            {"paths": 1, "way1": "conv", "way2": "dconv"},
            {"paths": 2, "way1": "conv"},
            {"paths": 2, "way1": "pool"},
        )


def test_fitness_is_the_accuracy_if_that_is_the_only_objective() -> None:
    assert fitness([Point((-0.9,)), Point((-0.5,))], is_maximised=True) == [0.9, 0.5]


def test_fitness_is_otherwise_the_number_of_fronts_from_the_worst() -> None:
    points = [Point((1.0, 2.0)), Point((2.0, 1.0)), Point((2.0, 2.0)), Point((0.0, 0.0), violation=0.1)]
    assert fitness(points, is_maximised=False) == [3.0, 3.0, 2.0, 1.0]
    assert fitness([Point((-0.9,)), Point((0.1,))], is_maximised=True) == [2.0, 1.0]


@pytest.mark.slow
def test_a_generation_begins_when_the_one_before_has_ended(tmp_path: Path) -> None:
    strategy = strategy_of(begun_study(tmp_path / "study.db", card()), "evolution", 8, population=4)
    graphs = [strategy.ask_graph() for _ in range(5)]
    assert graphs == [0, 1, 2, 3, None]
    assert not strategy.has_ended
    for graph in reversed(graphs[:4]):  # in any order
        assert graph is not None
        kinds = asked(strategy, graph)
        assert strategy.ask_graph() is None
        strategy.receive_feedback(graph, evaluated(kinds))
    assert strategy.ask_graph() == 4


@pytest.mark.slow
def test_the_order_in_which_a_generation_is_evaluated_changes_nothing(tmp_path: Path) -> None:
    in_turn = go_on(tmp_path / "in-turn.db", "evolution", 12)
    strategy = strategy_of(begun_study(tmp_path / "mixed.db", card()), "evolution", 12, population=4)
    opened = begun_study(tmp_path / "mixed.db", card())
    while not strategy.has_ended:
        generation = [graph for _ in range(4) if (graph := strategy.ask_graph()) is not None]
        for graph in reversed(generation):
            strategy.receive_feedback(graph, evaluated(asked(strategy, graph)))
    assert choices(opened) == choices(in_turn)


@pytest.mark.slow
def test_a_study_continues_after_a_generation_that_failed_entirely(tmp_path: Path) -> None:
    strategy = strategy_of(begun_study(tmp_path / "study.db", card()), "evolution", 5, population=4)
    for _ in range(5):
        graph = strategy.ask_graph()
        assert graph is not None
        assert asked(strategy, graph)
        strategy.receive_feedback(graph, Feedback(reason="no such weights"))


def test_mean_fitness_rises_over_generations() -> None:
    """Slowly: if fitness differs little, a roulette wheel chooses nearly at random."""
    first, last = 0, 0
    for seed in range(10):
        rng = random.Random(seed)
        population: Sequence[Genome] = [{name: rng.randrange(4) for name in GENES} for _ in range(20)]
        first += sum(sum(each.values()) for each in population)
        for _ in range(12):
            parents = [Parent(each, float(sum(each.values()))) for each in population]
            population = next_generation(parents, CANDIDATES, 20, rng)
        last += sum(sum(each.values()) for each in population)
    assert last > 1.15 * first
