"""Rounds of whole models in turn, kept beside latencies of stages: a later run goes on where an earlier one ended."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from iosched.models.model import Model
from iosched.profiler.measuring.deciding import Session
from iosched.profiler.measuring.disturbance import Interference
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import ComparisonRow

METHOD = 1
"""Counts the methods by which whole models were measured in turn; rounds of another one are not looked at."""


@dataclass(frozen=True, eq=False)
class ModelLatencies:
    """Rounds of several ways to run one model on one device, whose latencies were measured in turn.

    `ways` gives each way a name, and a text that says all of how the model is run; ways with the same text are one
    candidate. Ratios are taken within rounds, so rounds of several days make one set.

    Attributes:
        device: the key of the device in the database.
        resume: whether rounds that the database has are taken; if not, none is known.
    """

    model: Model
    database: ProfileDatabase
    device: str
    resume: bool = True

    def known(self, ways: Mapping[str, str]) -> tuple[Session, ...]:
        """All rounds of this model, the earliest first; what is none of `ways` has a digest for a name."""
        names: dict[str, list[str]] = {}
        for name, text in ways.items():
            names.setdefault(_digest(text), []).append(name)
        return tuple(
            Session(
                {name: row.samples_us for row in rows for name in names.get(row.candidate, [row.candidate])},
                {name: row.rested_us for row in rows for name in names.get(row.candidate, [row.candidate])},
                tuple(map(Interference, rows[0].others or _nothing(rows[0]), rows[0].stolen or _nothing(rows[0]))),
                tuple(each or None for each in rows[0].slowness or _nothing(rows[0])),
            )
            for rows in self._sessions()
        )

    def setting(self) -> str | None:
        """The setting of onnxruntime that was measured last; None where none was."""
        return next((row.setting for rows in reversed(self._sessions()) for row in rows if row.setting), None)

    def keep(self, ways: Mapping[str, str], session: Session, settings: Mapping[str, str]) -> None:
        """Keeps rounds that were measured in turn.

        Args:
            session: names that have the same text have the same samples.
            settings: the setting of onnxruntime, by the name of the way that it is.
        """
        others, stolen = ([getattr(each, name) for each in session.load] for name in ("others", "stolen"))
        slowness = [each or 0.0 for each in session.slowness]
        now = self.database.now
        once = {ways[name]: name for name in session.samples_us}
        self.database.keep_rounds(
            [
                ComparisonRow(
                    device=self.device,
                    key=self._key,
                    candidate=_digest(text),
                    measured_at=now,
                    samples_us=session.samples_us[name],
                    rested_us=session.rested_us.get(name, ()),
                    setting=settings.get(name),
                    others=tuple(others) if any(others) else (),
                    stolen=tuple(stolen) if any(stolen) else (),
                    slowness=tuple(slowness) if any(slowness) else (),
                )
                for text, name in once.items()
            ]
        )

    def _sessions(self) -> list[list[ComparisonRow]]:
        """The rows of rounds that were measured in turn together, but for those that were not kept whole."""
        rows = self.database.rounds(self._key, self.device) if self.resume else ()
        sessions = (list(each) for _, each in groupby(rows, key=lambda row: row.measured_at))
        return [each for each in sessions if len({len(row.samples_us) for row in each}) == 1]

    @property
    def _key(self) -> str:
        return _digest(f"{self.model.digest}:{sorted(self.model.bindings.items())}:{METHOD}")


def _nothing(row: ComparisonRow) -> tuple[float, ...]:
    return (0.0,) * len(row.samples_us)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
