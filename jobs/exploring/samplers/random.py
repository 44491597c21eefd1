"""`random`: every candidate of every question is as likely as the others, whatever was found before."""

from __future__ import annotations

from optuna.samplers import RandomSampler

from iosched.jobs.exploring.samplers.kind import Kind, seeded_by_trial

KIND = Kind(seeded_by_trial(RandomSampler))
