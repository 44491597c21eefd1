"""The worker of a cluster, with all kinds of tasks that jobs submit."""

from __future__ import annotations

from functools import partial

from iosched.jobs.exploring.score import SCORE
from iosched.jobs.matrix_cells import PRICE, SEARCH
from iosched.jobs.optimize_task import OPTIMIZE
from iosched.jobs.pool import worker
from iosched.jobs.ranking.rank_task import COST, SIMULATION

KINDS = {kind.name: kind for kind in (OPTIMIZE, COST, SIMULATION, SCORE, SEARCH, PRICE)}

Worker = partial(worker.Worker, kinds=KINDS)
