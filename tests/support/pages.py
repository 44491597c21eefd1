"""Pages of small schedules, with names that would do harm where they could."""

from __future__ import annotations

from dataclasses import replace

from iosched.cli.pictures.formats import Drawing, draw_html
from iosched.cli.pictures.page_data import page_data
from iosched.cli.pictures.theme import Style
from iosched.jobs.known_stages import KnownStages
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

AWKWARD = (
    "</script><script>window.harm = 1</script>",
    '"><img src=x onerror="window.harm = 1">',
    "<!--<script>",
    "'; window.harm = 1; //",
    "&lt;b&gt;&amp;",
    "${window.harm = 1}",
    "\\u003cscript\\u003e",
    "a\u2028b\u202ec\x00\x1b[31m\ud800",
    "$title $data",
    "]]>",
)

LOOKS = {
    "a": Style("Conv", "Conv 3×3", shape="1x8x4x4", flops=2000),  # noqa: RUF001
    "b": Style("Relu", "Relu"),
    "c": Style("MaxPool", "MaxPool 2×2"),  # noqa: RUF001
    "d": Style("Conv", "Conv 1×1"),  # noqa: RUF001
    "e": Style("Conv", "Conv 1×1"),  # noqa: RUF001
    "f": Style("Concat", "Concat"),
}


def document(first: str = "a") -> ScheduleDocument:
    """A schedule of nine operators in two blocks, `first` among them, with a stage of each strategy."""
    blocks = (
        Block(
            0,
            (
                Stage(Strategy.CONCURRENT, ((first, "b"), ("c",)), predicted_us=120.0, measured_us=100.0),
                Stage(Strategy.MERGE, (("d",), ("e",))),
                Stage(Strategy.CONCURRENT, (("f",),), predicted_us=2300.0),
            ),
            optimal=True,
        ),
        Block(
            1,
            (
                Stage(Strategy.SESSION, (("g",), ("h",)), predicted_us=55.5),
                Stage(Strategy.CONCURRENT, (("i",),), predicted_us=3.5),
            ),
        ),
    )
    return ScheduleDocument(
        model=first,
        sha256="0" * 64,
        inputs={first: (1, 3, 8, 8)},
        dtype="float32",
        device={"kind": "cpu", "name": "Test CPU"},
        schedule=Schedule(blocks),
        latency_us={"predicted": 2481.0, "sequential": 3000.0, "reference": 2900.0, "greedy": None},
    )


def page(shown: ScheduleDocument, known: KnownStages = KnownStages(), *, schedule: Schedule | None = None) -> str:  # noqa: B008
    """The page of a schedule; `schedule` takes the place of its own."""
    if schedule is not None:
        shown = replace(shown, schedule=schedule)
    reads = {"b": ("a",), "d": ("b",), "e": ("b",), "f": ("d", "e", "c"), "g": ("f",), "h": ("g",), "i": ("h",)}
    drawn = Drawing(shown, LOOKS, reads=reads)
    return draw_html(drawn.title, page_data(drawn, known))
