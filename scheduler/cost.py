"""The interface between the search and a device: latencies of stages, and optional capabilities."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from iosched.scheduler.lattice import Latencies, Lattice
from iosched.scheduler.schedule import Schedule, Stage, Strategy


class CostModel(Protocol):
    """Latency of stages of one computation graph on one device."""

    def stage_latency_us(self, stage: Stage) -> float:
        """Latency of `stage` in microseconds, which may measure it; `math.inf` if the device cannot run the stage."""
        ...

    def lower_bound_us(self, stage: Stage) -> float:
        """A lower bound of `stage_latency_us`, known without measuring `stage`; 0 if none."""
        ...


@runtime_checkable
class OperatorBounds(Protocol):
    """Optional part of a `CostModel`: bounds of concurrent stages from single operators.

    Up to the search's `bound_slack`, such a cost model promises that a concurrent stage takes at least
        * the sum of `operator_latency_us` over any one group, since a group runs in order,
        * the sum of `operator_work_us` over all operators, divided by `lanes`,
        * with at least `lanes` groups: the makespan of the best placement of whole groups on lanes, by
              `operator_work_us`,
        * the latency of any one group as a separate stage.
    The search then requests `lower_bound_us` for merge stages only, and bounds 100,000 stages without building them.
    """

    @property
    def lanes(self) -> int:
        """Number of operators that can run concurrently at full speed, such as the number of cores."""
        ...

    def operator_latency_us(self, name: str) -> float:
        """Latency of the operator on the whole device; may measure it."""
        ...

    def operator_work_us(self, name: str) -> float:
        """Minimum lane-microseconds of the operator, its latency on one lane; may measure it."""
        ...


@runtime_checkable
class ConcurrentBounds(Protocol):
    """Optional part of a `CostModel`: bounds all concurrent stages of a block at once.

    The search then requests `lower_bound_us` for merge stages only.
    """

    def concurrent_bounds_us(self, names: Sequence[str], lattice: Lattice) -> Latencies:
        """Lower bounds of the concurrent latency of `lattice.stages` in microseconds, (M,).

        Args:
            names: the operators of the block; operator `i` is bit `i` of the masks.
        """
        ...


@runtime_checkable
class AdditiveGroups(Protocol):
    """Optional part of a `CostModel`: a stage of one group takes at least as long as its operators in separate stages.

    Then the best schedules of blocks cut at single operators form the best schedule of the graph
    (`scheduler/proof.py`). A formula can promise this; a measured device cannot, because of caches and noise.
    """

    @property
    def groups_are_additive(self) -> bool:
        """Whether that holds for every stage of one group, up to rounding; infinite latencies included."""
        ...


@runtime_checkable
class Remeasurable(Protocol):
    """Optional part of a `CostModel` with noisy latencies: stages that the result depends on can be measured again.

    The minimum of many noisy latencies is too low. Before a search ends, it therefore measures the stages of its best
    schedule, and of close ones, a second time.
    """

    def remeasure(self, stage: Stage) -> float:
        """Latency of `stage` including fresh samples; later calls return the same value.

        `stage_latency_us` keeps its first value, and both are stored, so that a later search sees the same answers.
        """
        ...


@runtime_checkable
class Suggesting(Protocol):
    """Optional part of a `CostModel`: stages of a schedule that is likely good.

    They are measured right after the single operators, so that an early end of the search still has that schedule.
    """

    def suggested_stages(self) -> Iterable[Stage]:
        """The stages of all blocks; unsuitable ones are ignored."""
        ...


@runtime_checkable
class Curtailable(Protocol):
    """Optional part of a `CostModel` that may stop measuring stages that are clearly too slow.

    With noise, such a stage may matter again after the best schedule was measured again; it is then measured in full
    (`Remeasurable`).
    """

    def latency_unless_worse_us(self, stage: Stage, worse_than_us: float) -> float:
        """Like `stage_latency_us`, but only a rough value if the latency is clearly above `worse_than_us`."""
        ...


@runtime_checkable
class Dividing(Protocol):
    """Optional part of a `CostModel` that tries several divisions of lanes among groups and uses the fastest."""

    def divided(self, stage: Stage) -> Stage:
        """The stage with the fastest known division; measures nothing. An existing division is kept."""
        ...


@runtime_checkable
class Disturbable(Protocol):
    """Optional part of a `CostModel` that detects interference with measurements.

    Such a latency has a wide interval. At the end of a block, the search continues with the low ends of these
    intervals, and measures a stage again only if it may be on the best schedule.
    """

    def disturbed_low_us(self, stage: Stage) -> float | None:
        """Lower bound of a stage whose last measurement had interference; None if it is not to be measured again."""
        ...

    def try_again(self) -> None:
        """Measures disturbed stages again, once each, when they are next requested."""
        ...


@runtime_checkable
class OperatorKeys(Protocol):
    """Optional part of a `CostModel`: which operators are equal.

    Stages with equal operator keys, edges, shared inputs and outputs (`signature.stage_signature`) have one latency:
    one of them is measured, and equal blocks are searched once.
    """

    def operator_key(self, name: str) -> str:
        """Everything that affects the operator's latency, such as type, shapes and attributes; no names."""
        ...


@runtime_checkable
class Prefetchable(Protocol):
    """Optional part of a `CostModel` that answers many questions at once, for example on several machines.

    The search announces a round of questions, then asks them one by one. Answers must be kept until then and must not
    depend on the announcement.
    """

    def prefetch(self, questions: Sequence[CostQuestion]) -> None:
        """Announces the next questions, in any order; returns when the answers that can be prepared are ready.

        Each will be asked unless the answer to another rules it out: in the networks of benchmarks/reports/search.md up
        to 18 % were not asked for a V100, and up to 6 % for CPUs. `worse_than_us` may be lower by then, never higher. A
        list may contain equivalent stages of different blocks. An exception ends the search.
        """
        ...


QuestionKind = Literal["latency", "again", "operator", "work"]
"""The method that a question calls.

    latency     `stage_latency_us`; `latency_unless_worse_us` if `worse_than_us` is finite
    again       `remeasure`
    operator    `operator_latency_us`
    work        `operator_work_us`
"""


@dataclass(frozen=True)
class CostQuestion:
    """A question to a cost model as a value; see `ask`.

    Attributes:
        worse_than_us: a latency above which the exact value does not matter; for "latency" only.
    """

    stage: Stage
    kind: QuestionKind = "latency"
    worse_than_us: float = math.inf


def operator_question(name: str, kind: Literal["operator", "work"]) -> CostQuestion:
    """A question about one operator (`OperatorBounds`)."""
    return CostQuestion(Stage(Strategy.CONCURRENT, ((name,),)), kind)


def ask(cost: CostModel, question: CostQuestion) -> float:
    """The answer in microseconds; raises a TypeError if the cost model does not support questions of this kind.

    A cost model that is not `Curtailable` returns the full latency.
    """
    stage = question.stage
    if question.kind == "latency":
        if question.worse_than_us < math.inf and isinstance(cost, Curtailable):
            return cost.latency_unless_worse_us(stage, question.worse_than_us)
        return cost.stage_latency_us(stage)
    if question.kind == "again" and isinstance(cost, Remeasurable):
        return cost.remeasure(stage)
    if question.kind == "operator" and isinstance(cost, OperatorBounds):
        return cost.operator_latency_us(stage.operators[0])
    if question.kind == "work" and isinstance(cost, OperatorBounds):
        return cost.operator_work_us(stage.operators[0])
    raise TypeError(f"{type(cost).__name__} does not support questions of kind {question.kind!r}")


def prefetcher_of(cost: object, prefetcher: Prefetchable | None) -> Prefetchable | None:
    """The given prefetcher, else the cost model if it is `Prefetchable`."""
    return cost if prefetcher is None and isinstance(cost, Prefetchable) else prefetcher


def announce(cost: object, questions: Sequence[CostQuestion]) -> None:
    """Announces the next questions if the cost model is `Prefetchable`."""
    if questions and isinstance(cost, Prefetchable):
        cost.prefetch(questions)


def divided(schedule: Schedule, cost: CostModel) -> Schedule:
    """The schedule with the divisions of lanes that its latencies were measured with."""
    if not isinstance(cost, Dividing):
        return schedule
    blocks = (replace(block, stages=tuple(map(cost.divided, block.stages))) for block in schedule.blocks)
    return Schedule(tuple(blocks))
