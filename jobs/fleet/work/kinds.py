"""All that a worker can be asked to do, by the names that calls have for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iosched.jobs.fleet.work import cost, matrix, optimize, questions, score, simulation
from iosched.jobs.fleet.work.kind import Kind

_ALL = (optimize.KIND, cost.KIND, simulation.KIND, questions.KIND, score.KIND, matrix.SEARCH, matrix.PRICE)

KINDS: Mapping[str, Kind[Any, Any]] = {kind.name: kind for kind in _ALL}
