"""How hard the search tries on each kind of device, by how well latencies are known there and what that costs."""

from __future__ import annotations

from iosched.scheduler.effort import Effort

CPU_EFFORT = Effort(bound_slack=0.95, tolerance=0.03, max_measurements=80)
"""Operators one after another in one session keep their data in the cache, and timings are noisy: bounds give way.
With 80 stages of a block the gap to its bound has closed to a few percent, see benchmarks/search.py; each takes about
0.1 s, and its latency is not known better than to 3 %."""

GPU_EFFORT = Effort(bound_slack=0.95, tolerance=0.02, max_measurements=60)
"""Latencies are steadier than on a CPU. Little bounds them from below, since nothing tells how much of the GPU an
operator leaves idle, so that most searches end at the limit, which is a guess until searches were run on a GPU."""
