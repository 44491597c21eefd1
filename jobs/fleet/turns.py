"""One whole device at a time: while a machine's GPUs are measured, its CPU is not, and the other way around.

What launches kernels needs processors, and a search on a GPU builds its plans on them: either would be measured beside
the other. GPUs of one machine work side by side, and so do workers that the user gave cores of their own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class _Node:
    side: str
    since_s: float
    holders: int = 0


class Turns:
    """Which side of each machine has it; a side is "cpu" or "gpu"."""

    def __init__(self, turn_s: float) -> None:
        self._turn_s = turn_s
        self._nodes: dict[str, _Node] = {}

    def may_begin(self, node: str, side: str, now_s: float, others_wait: bool) -> bool:
        """Whether a worker of that side may begin something.

        Args:
            others_wait: whether a worker of the other side would, too. Then a side that has had the machine for longer
                than its turn is given nothing new.
        """
        held = self._nodes.get(node)
        if held is None:
            return True
        if held.side == side:
            return not others_wait or not self._is_over(held, now_s)
        return held.holders == 0

    def begin(self, node: str, side: str, now_s: float) -> None:
        """A worker of that side begins something."""
        held = self._nodes.get(node)
        if held is None or held.side != side or self._is_over(held, now_s):
            held = self._nodes[node] = _Node(side, now_s, held.holders if held else 0)
        held.holders += 1

    def end(self, node: str) -> None:
        """A worker that began something has ended it."""
        self._nodes[node].holders -= 1

    def _is_over(self, held: _Node, now_s: float) -> bool:
        return now_s - held.since_s >= self._turn_s
