"""What the search asks of a device: the latency of a stage."""

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
        """Latency of `stage` in microseconds; may measure it, so it may be slow the first time it is asked.

        `math.inf` says that the device cannot run the stage this way.
        """
        ...

    def lower_bound_us(self, stage: Stage) -> float:
        """A bound that `stage_latency_us` will not undercut, known without measuring `stage` itself; 0 if none."""
        ...


@runtime_checkable
class OperatorBounds(Protocol):
    """Optional part of a `CostModel`: bounds of concurrent stages from what is known of single operators.

    A cost model that has these promises, up to the search's `bound_slack`, that a concurrent stage takes at least
        * the sum of `operator_latency_us` over the operators of any one of its groups (they run in order),
        * the sum of `operator_work_us` over all of its operators, divided by `lanes`,
        * where it has at least `lanes` groups: as long as the busiest lane when every group runs on one lane, its
          operators taking `operator_work_us`, and the groups are placed in the best way,
        * as long as any one of its groups as a stage of its own.
    The search then asks `lower_bound_us` for merge stages only, and bounds 100,000 stages without building them.
    """

    @property
    def lanes(self) -> int:
        """How many operators can run side by side at full speed: cores, say."""
        ...

    def operator_latency_us(self, name: str) -> float:
        """Latency of the operator with the whole device to itself; may measure it."""
        ...

    def operator_work_us(self, name: str) -> float:
        """Lane-microseconds that the operator takes at best: its latency on one lane; may measure it."""
        ...


@runtime_checkable
class ConcurrentBounds(Protocol):
    """Optional part of a `CostModel`: bounds all concurrent stages of a block at once.

    The search then asks `lower_bound_us` for merge stages only.
    """

    def concurrent_bounds_us(self, names: Sequence[str], lattice: Lattice) -> Latencies:
        """For each of `lattice.stages` a bound that its latency side by side will not undercut, in microseconds, (M,).

        Args:
            names: the operators of the block; operator `i` is bit `i` of the lattice's masks.
            lattice: the states and stages of the block.
        """
        ...


@runtime_checkable
class AdditiveGroups(Protocol):
    """Optional part of a `CostModel`: a stage of one group takes at least as long as its operators one after another.

    The operators then are in stages of their own. Where a cost model declares this, the best schedules of blocks that
    are cut at single operators make the best schedule of the whole graph (`scheduler/proof.py`). A formula can know it
    of itself; a device that is measured cannot: what an operator finds in the caches depends on what ran before it, and
    measurements are noisy.
    """

    @property
    def groups_are_additive(self) -> bool:
        """Whether that holds for every stage of one group, up to rounding; infinite latencies included."""
        ...


@runtime_checkable
class Remeasurable(Protocol):
    """Optional part of a `CostModel` whose latencies are noisy: what the choice hangs on can be measured again.

    The least of many noisy latencies is too low, and so is the predicted latency of a schedule that is made of such.
    Before a search ends, it therefore has the stages of its best schedule, and of those that come close, measured once
    more.
    """

    def remeasure(self, stage: Stage) -> float:
        """Latency of `stage` from fresh samples together with the known ones; the same answer when asked again.

        `stage_latency_us` goes on to answer the first value, and a cost model that keeps latencies keeps both: a later
        search then gets the same answers to the same questions.
        """
        ...


@runtime_checkable
class Suggesting(Protocol):
    """Optional part of a `CostModel`: stages of a schedule that is likely good.

    They are measured right after the single operators, so a search that ends early has that schedule.
    """

    def suggested_stages(self) -> Iterable[Stage]:
        """The stages, of all blocks; those that a search does not consider are passed over."""
        ...


@runtime_checkable
class Curtailable(Protocol):
    """Optional part of a `CostModel` that need not learn exactly what is too slow to matter.

    The search knows above what latency a stage is on no schedule better than the best one known. With noise, what
    looked too slow may matter again, once the best schedule was measured again and is slower than it looked: where such
    a stage is then on the best schedule, it is measured again in full (`Remeasurable`).
    """

    def latency_unless_worse_us(self, stage: Stage, worse_than_us: float) -> float:
        """The answer of `stage_latency_us`; or, where that is clearly above `worse_than_us`, a rough value above it."""
        ...


@runtime_checkable
class Dividing(Protocol):
    """Optional part of a `CostModel` that tries several divisions of its lanes among the groups of a stage.

    Its latency of a stage without a division is that of the division that it found fastest.
    """

    def divided(self, stage: Stage) -> Stage:
        """The stage with the division that its latency is of, as far as is known by now; measures nothing.

        A stage that has a division keeps it, and one whose groups have no choice gets none.
        """
        ...


@runtime_checkable
class Disturbable(Protocol):
    """Optional part of a `CostModel` that measures, and notices when something else disturbed a measurement.

    Such a latency has a wide interval. At the end of a block the search goes on with the low ends of such intervals in
    place of the latencies, and asks again for a stage only if it may be on the best schedule then.
    """

    def disturbed_low_us(self, stage: Stage) -> float | None:
        """The least that a stage may take whose last answer was disturbed; None if it is not to be asked again."""
        ...

    def try_again(self) -> None:
        """From now on, what was disturbed is measured again when it is asked for, each once."""
        ...


@runtime_checkable
class OperatorKeys(Protocol):
    """Optional part of a `CostModel`: which operators are alike.

    Stages that agree in the keys of their operators, in the edges between these, and in what they read together and
    hand on (`signature.stage_signature`) have one latency: the search asks for one of them, and blocks that repeat
    are searched once.
    """

    def operator_key(self, name: str) -> str:
        """All of an operator that changes its latency: type, shapes, types; no names."""
        ...


@runtime_checkable
class Prefetchable(Protocol):
    """Optional part of a `CostModel` that answers many questions side by side: several machines may share them.

    The search hands over a whole round of questions, then asks them one by one, as it would have without. So answers
    have to be kept until then, and to be the same as without.
    """

    def prefetch(self, questions: Sequence[Question]) -> None:
        """These are asked next, in any order; returns when what can be answered ahead is.

        Each is surely asked, but for those that the answer to another of the same list rules out: once a stage is known
        to be fast merged, say, it need not be known side by side (of the networks in benchmarks/reports/search.md that
        was up to 18 % of what was handed over for a V100, and up to 6 % for CPUs). `worse_than_us` may be lower by
        then, for the same reason, and never higher, so that an answer given ahead serves. Blocks do not know of each
        other: a list may have questions about stages that are alike.

        Whoever answers nothing changes nothing. What this raises ends the search.
        """
        ...


Kind = Literal["latency", "again", "operator", "work"]
"""What is asked of the cost model.

    latency     `stage_latency_us`; or `latency_unless_worse_us`, where `worse_than_us` is finite
    again       `remeasure`
    operator    `operator_latency_us`
    work        `operator_work_us`
"""


@dataclass(frozen=True)
class Question:
    """One question to a cost model; `asking.ask` asks it.

    Attributes:
        stage: what is asked about; for "operator" and "work" a stage of one operator.
        kind: what is asked.
        worse_than_us: a latency above which it does not matter what the stage takes; for "latency" alone.
    """

    stage: Stage
    kind: Kind = "latency"
    worse_than_us: float = math.inf


def of_operator(name: str, kind: Literal["operator", "work"]) -> Question:
    """The question for what is known of one operator (`OperatorBounds`)."""
    return Question(Stage(Strategy.CONCURRENT, ((name,),)), kind)


def ask(cost: CostModel, question: Question) -> float:
    """The answer in microseconds, asked for just as the search does.

    A cost model that is not `Curtailable` is asked for the whole latency.

    Raises:
        TypeError: the cost model has no part that answers questions of this kind.
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
    raise TypeError(f"{type(cost).__name__} does not answer questions of the kind {question.kind!r}")


def who_answers(cost: object, ahead: Prefetchable | None) -> Prefetchable | None:
    """Whom to hand questions over to: whoever is named, else the cost model if it is `Prefetchable`."""
    return cost if ahead is None and isinstance(cost, Prefetchable) else ahead


def ask_ahead(cost: object, questions: Sequence[Question]) -> None:
    """Hands over questions that will be asked next, where the cost model is `Prefetchable`; else does nothing."""
    if questions and isinstance(cost, Prefetchable):
        cost.prefetch(questions)


def divided(schedule: Schedule, cost: CostModel) -> Schedule:
    """The schedule with the division of each stage that its latency is of, if the cost model chooses among several."""
    if not isinstance(cost, Dividing):
        return schedule
    blocks = (replace(block, stages=tuple(map(cost.divided, block.stages))) for block in schedule.blocks)
    return Schedule(tuple(blocks))
