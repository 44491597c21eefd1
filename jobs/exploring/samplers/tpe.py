"""`tpe`: candidates that are likelier among good variants than among others (Bergstra et al., 2011)."""

from __future__ import annotations

from optuna.samplers import BaseSampler, TPESampler

from iosched.jobs.exploring.samplers.kind import Kind, seeded_by_trial


def _build(seed: int) -> BaseSampler:
    return TPESampler(seed=seed)


KIND = Kind(seeded_by_trial(_build))
