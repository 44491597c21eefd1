"""What can be asked for: the names of the policies of batching. The command line takes its choices from here."""

from __future__ import annotations

from typing import Literal, get_args

PolicyName = Literal["auto", "dpbat", "greedy", "fcfs", "serial", "packed"]
"""How operators are chosen that become one; "serial" and "packed" batch nothing, and say how models run instead."""

RowName = Literal["serial", "packed", "batched", "mixed"]
"""Ways to run several models: one after another, side by side, what is alike as one, and all of that."""

POLICY_NAMES: tuple[PolicyName, ...] = get_args(PolicyName)
ROW_NAMES: tuple[RowName, ...] = get_args(RowName)

UNBATCHED: tuple[RowName, ...] = ("serial", "packed")
"""What people do who do not batch; policies, too."""
