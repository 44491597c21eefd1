"""Interleaved rounds of whole models in the database, which later runs continue."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from iosched.models.model import Model
from iosched.profiler.measuring.deciding import SampledRounds
from iosched.profiler.measuring.disturbance import Interference
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import ComparisonRow

METHOD = 1
"""Number of the method of interleaved measurements; rounds of others are ignored."""


@dataclass(frozen=True, eq=False)
class ModelLatencies:
    """Interleaved rounds of several ways to run one model on one device.

    `ways` maps names to texts that identify how the model is run; equal texts are one candidate. Ratios are within
    rounds, so rounds of several days form one set. Without `resume`, no stored round is used.
    """

    model: Model
    database: ProfileDatabase
    device: str
    resume: bool = True

    def known(self, ways: Mapping[str, str]) -> tuple[SampledRounds, ...]:
        """All rounds of this model, earliest first; candidates not in `ways` are named by digests."""
        names: dict[str, list[str]] = {}
        for name, text in ways.items():
            names.setdefault(_digest(text), []).append(name)
        return tuple(
            SampledRounds(
                {name: row.samples_us for row in rows for name in names.get(row.candidate, [row.candidate])},
                {name: row.rested_us for row in rows for name in names.get(row.candidate, [row.candidate])},
                tuple(map(Interference, rows[0].others or _nothing(rows[0]), rows[0].stolen or _nothing(rows[0]))),
                tuple(each or None for each in rows[0].slowness or _nothing(rows[0])),
            )
            for rows in self._sessions()
        )

    def setting(self) -> str | None:
        """The last measured setting of onnxruntime, or None."""
        return next((row.setting for rows in reversed(self._sessions()) for row in rows if row.setting), None)

    def keep(self, ways: Mapping[str, str], session: SampledRounds, settings: Mapping[str, str]) -> None:
        """Stores interleaved rounds; `settings` has onnxruntime's setting by way. Names of one text have the same
        samples.
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
