"""Names of batching policies. Commands take their choices from here."""

from __future__ import annotations

from typing import Literal, get_args

PolicyName = Literal["auto", "dpbat", "greedy", "fcfs", "serial", "packed"]
"""The policy for choosing batched operators; "serial" and "packed" batch nothing, and name how models run instead."""

RowName = Literal["serial", "packed", "batched", "mixed"]
"""Ways to run several models: one after another, concurrently, batched, or all of these."""

POLICY_NAMES: tuple[PolicyName, ...] = get_args(PolicyName)
ROW_NAMES: tuple[RowName, ...] = get_args(RowName)

UNBATCHED: tuple[RowName, ...] = ("serial", "packed")
"""Policies without batching."""
