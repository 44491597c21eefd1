"""Says how far the analytic model's parts lie from measurements, and how many measurements lie in its intervals.

Run as `python benchmarks/intervals.py --data FOLDER [-o FILE.json]`; it takes some minutes and measures nothing. The
spreads that it prints are to be copied to `profiler/devices/analytic/uncertainty.py`, from where intervals are made.

What kernels tell is in `intervals_kernels.py`, what networks tell in `intervals_networks.py`. Where few series of
measurements tell how far kernels of a kind lie off together, and few networks how far stages do, standard deviations
are widened by Student's t. Coverage is counted where it was not fitted to: a series of kernels in intervals made from
the other series, a network in intervals made from the other networks, and everything else by the packaged spreads.

Options:
    --data: folder with the measurements
    --analytic: what analytic.py wrote
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from intervals_kernels import SEED, half_precision, kernel_spreads, seen, series, series_covered, short, specified
from intervals_networks import elsewhere_covered, left_out, network_spreads, networks_covered
from measured import read
from testbed import read_options, write_results

from iosched.profiler.devices.analytic.interval import LEVEL, Spread
from iosched.profiler.devices.analytic.uncertainty import SPREADS, Spreads

RESULTS = Path(__file__).parent / "results"


def rounded(spreads: Spreads) -> dict[str, object]:
    """To three digits, as they are packaged."""
    return {name: _rounded(value) for name, value in vars(spreads).items()}


def _rounded(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, Spread):
        return _rounded(vars(value))
    return round(float(value), 3)  # type: ignore[arg-type]


def mean_covered(groups: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Coverage by the mean of all series, each of which counts once."""
    found = [series for group in groups for series in group.values()]
    return {name: round(fmean(series[name] for series in found), 2) for name in ("single", "sums")}


def main() -> None:
    """Prints the spreads and the coverage."""
    arguments = read_options(
        __file__, data={"type": Path, "required": True}, analytic=RESULTS / "analytic-v100.json", output=Path
    )
    rows, networks = read(arguments.data), left_out(json.loads(arguments.analytic.read_text())["leave_one_out"])
    known = {"short": short(rows), "seen": seen(rows), "specified": specified(rows)}
    parts = {name: series(found) for name, found in known.items()}
    found = replace(
        SPREADS, tensor_cores=half_precision(rows), **{name: kernel_spreads(each) for name, each in parts.items()}
    )
    found = network_spreads(found, networks)
    covered = {name: series_covered(each) for name, each in parts.items()}
    record = {
        "level": LEVEL,
        "spreads": rounded(found),
        "kernels, mean of all series": mean_covered(covered.values()),
        "kernels": covered,
        "networks": networks_covered(found, networks),
        "elsewhere": elsewhere_covered(found),
    }
    sys.stdout.write(json.dumps(record, indent=1) + "\n")
    write_results(arguments, record, seeds={"sums": SEED})


if __name__ == "__main__":
    main()
