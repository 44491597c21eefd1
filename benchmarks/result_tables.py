"""Tables and charts of results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.statistics import Interval, median_interval, summarize

NAMES = {
    "squeezenet": "SqueezeNet", "googlenet": "GoogLeNet", "inception_v3": "Inception V3", "randwire": "RandWire",
    "resnet50": "ResNet-50", "densenet121": "DenseNet-121", "nasnet_a": "NASNet-A large",
    "nasnet_a@224": "NASNet-A, 224 pixels", "keras_nasnetmobile": "Keras: NASNet-Mobile",
    "keras_inceptionresnetv2": "Keras: Inception-ResNet V2", "keras_xception": "Keras: Xception",
    "keras_inceptionv3": "Keras: Inception V3", "keras_densenet121": "Keras: DenseNet-121",
    "keras_efficientnetb0": "Keras: EfficientNet-B0", "keras_mobilenetv2": "Keras: MobileNetV2",
}  # fmt: skip
"""Names of networks in tables, in their order."""
Table = tuple[Sequence[object], Sequence[Sequence[object]]]


def markdown_table(headers: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table as Markdown."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (headers, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(headers)}", *lines[1:]])


def table_of(rows: Sequence[Mapping[str, object]]) -> Table:
    """Rows whose keys are the headers."""
    return list(rows[0]), [list(row.values()) for row in rows]


def print_table(headers: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout as Markdown."""
    print(markdown_table(headers, rows), flush=True)


def compared(samples_us: Mapping[str, Sequence[float]], base: str) -> dict[str, Interval]:
    """Comparison of each alternative with `base`, if both were measured."""
    measured = {name: summarize(samples) for name, samples in samples_us.items()}
    found = {name: compare(measured[base], each) for name, each in measured.items() if name != base}
    return {name: each for name, each in found.items() if each is not None}


def within_rounds(samples_us: Mapping[str, Sequence[float]], base: str, name: str) -> Interval:
    """The median of the speedups within rounds, with its interval; for a machine whose speed changes between rounds."""
    ratios = [before / after for before, after in zip(samples_us[base], samples_us[name], strict=True)]
    return Interval(median(ratios), *median_interval(ratios))


def interval_text(value: float, low: float, high: float, form: str = ".2f") -> str:
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


def range_text(values: Sequence[float], form: str) -> str:
    """The median, and in parentheses the lowest and the highest if they differ."""
    text = interval_text(median(values), min(values), max(values), form)
    return text.split()[0] if f"{min(values):{form}}" == f"{max(values):{form}}" else text


def ratio_text(found: Interval | None, form: str = ".2f") -> str:
    """A comparison in a table; empty if there is none."""
    return "" if found is None else interval_text(found.value, found.low, found.high, form)


def speedup_text(found: Interval | None) -> str:
    """The same after a latency."""
    return "" if found is None else f", {ratio_text(found)}"


def latency_cells(samples_us: Mapping[str, Sequence[float]], base: str, *, in_rounds: bool = False) -> list[str]:
    """For each alternative its median in milliseconds, and its speedup over `base`, also as `within_rounds` has it."""
    against = compared(samples_us, base)
    if in_rounds:
        against = {name: within_rounds(samples_us, base, name) for name in against}
    return [f"{median(each) / 1e3:.2f}{speedup_text(against.get(name))}" for name, each in samples_us.items()]


@contextmanager
def chart(path: Path, *counts: int, **settings: Any) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes, written to an SVG or PNG file; the same data make the same file."""
    import matplotlib

    kind = path.suffix.removeprefix(".")
    matplotlib.use({"png": "agg"}.get(kind, kind))
    matplotlib.rcParams["svg.hashsalt"] = "iosched"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(*counts, **settings)
    yield figure, axes
    if "layout" not in settings:
        figure.tight_layout()
    settings = {"dpi": 110, "metadata": {"Software": None}} if kind == "png" else {"metadata": {"Date": None}}
    figure.savefig(path, **settings)
