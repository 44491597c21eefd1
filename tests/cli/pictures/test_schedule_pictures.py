"""Pictures of a schedule."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from iosched.cli.pictures.schedule_svg import draw_svg
from iosched.cli.pictures.schedule_text import draw_text
from iosched.cli.pictures.theme import Style, latency_label
from iosched.scheduler.proof import proof_text
from iosched.scheduler.schedule import Block, Division, Schedule, Scope, Stage, Strategy, total_us

SCHEDULE = Schedule(
    (
        Block(
            0,
            (
                Stage(Strategy.CONCURRENT, (("a", "b"), ("c",)), predicted_us=120.0, measured_us=100.0),
                Stage(Strategy.MERGE, (("d",), ("e",), ("f",)), predicted_us=2300.0),
            ),
            optimal=True,
        ),
        Block(1, (Stage(Strategy.CONCURRENT, (("g",),), predicted_us=1.0),), optimal=False),
    )
)
LOOKS = {"a": Style("Conv", "Conv 3×3"), "b": Style("Relu", "Relu")}  # noqa: RUF001
SVG = "{http://www.w3.org/2000/svg}"


def test_the_text_shows_groups_side_by_side_and_operators_in_order() -> None:
    assert draw_text(SCHEDULE, title="net on CPU", styles=LOOKS).splitlines() == [
        "net on CPU",
        "2 blocks, 3 stages, 2.40 ms",
        "",
        "block 0: 6 operators in 2 stages, 2.40 ms",
        "    1   100.0 µs        ┬─ Conv 3×3 a → Relu b",  # noqa: RUF001
        "                        └─ c",
        "    2    2.30 ms merge  ┬─ d",
        "                        ├─ e",
        "                        └─ f",
        "",
        "block 1: 1 operator in 1 stage, 1.0 µs, not proven optimal",
        "    1     1.0 µs  ── g",
    ]


def test_a_long_session_shows_its_first_and_last_operator() -> None:
    long = tuple(f"s{number}" for number in range(40))
    stage = Stage(Strategy.SESSION, (long, ("t", "u")), 500.0)
    schedule = Schedule((Block(0, (stage,)),))
    lines = draw_text(schedule, title="net", styles={}).splitlines()[-2:]
    assert lines[0].endswith(" session  ┬─ s0 → 38 more → s39")
    assert lines[1].endswith(" └─ t → u")
    root = ET.fromstring(draw_svg(schedule, title="net", styles={}))
    found = "".join(root.itertext())
    assert "38 more" in found
    assert "s20" not in found
    assert "dashed: one onnxruntime session on all cores" in found


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (((0,), (1,), (2,)), ("", "", "")),
        (((0,), (1,), (1,)), ("  (lane 0)", "  (lane 1)", "  (lane 1)")),
        (((0, 1, 2), (3,), (4, 6)), ("  (lanes 0-2)", "  (lane 3)", "  (lanes 4, 6)")),
    ],
)
def test_lanes_are_named_unless_each_group_has_its_own_lane(
    groups: tuple[tuple[int, ...], ...], words: tuple[str, ...]
) -> None:
    stage = Stage(Strategy.CONCURRENT, (("a", "b"), ("c",), ("d",)), 1.0, division=Division(8, groups))
    shown = draw_text(Schedule((Block(0, (stage,)),)), title="net", styles={}).splitlines()[-3:]
    chains = [line.partition("─ ")[2] for line in shown]
    assert chains == [chain + word for chain, word in zip(("a → b", "c", "d"), words, strict=True)]


@pytest.mark.parametrize(
    ("proven", "words"), [("whole", "optimal"), ("blocks", "each block optimal, the whole graph not proven")]
)
def test_the_headline_states_what_is_proven(proven: Scope, words: str) -> None:
    said = proof_text(proven)
    text = draw_text(SCHEDULE, title="net", styles=LOOKS, proven=said)
    assert text.splitlines()[1] == f"2 blocks, 3 stages, 2.40 ms, {words}"
    assert f"2.40 ms · {words}" in draw_svg(SCHEDULE, title="net", styles=LOOKS, proven=said)


def test_the_text_can_be_plain_ascii() -> None:
    draw_text(SCHEDULE, title="net", styles=LOOKS, unicode=False).encode("ascii")


def _boxes(svg: str) -> dict[str, dict[str, float]]:
    """The rectangle of every operator by its tooltip's name."""
    root = ET.fromstring(svg)
    found = {}
    for group in root.iter(f"{SVG}g"):
        title, box = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None
        assert title.text is not None
        assert box is not None
        found[title.text.split(" ")[0]] = {key: float(box.get(key, "")) for key in ("x", "y", "width", "height")}
    return found


def test_a_long_headline_of_the_svg_is_wrapped_above_the_picture() -> None:
    words = (
        "net on Tesla V100-SXM2-16GB (analytic: computed from the GPU's specification for one CUDA graph, not measured)"
    )
    short, long = (draw_svg(SCHEDULE, title=title, styles=LOOKS) for title in ("net", words))
    lines = [line for line in ET.fromstring(long).iter(f"{SVG}text") if line.get("font-size") == "19"]
    assert len(lines) == 2
    assert " ".join(line.text or "" for line in lines) == words
    moved = float(lines[1].get("y", "")) - float(lines[0].get("y", ""))
    assert _boxes(long) == {name: {**box, "y": box["y"] + moved} for name, box in _boxes(short).items()}


def test_the_svg_puts_groups_in_lanes_and_time_to_the_right() -> None:
    boxes = _boxes(draw_svg(SCHEDULE, title="net", styles=LOOKS))
    assert set(boxes) == set("abcdefg")
    assert boxes["a"]["y"] == boxes["b"]["y"] < boxes["c"]["y"]
    assert boxes["a"]["x"] + boxes["a"]["width"] < boxes["b"]["x"]
    assert boxes["b"]["x"] + boxes["b"]["width"] < boxes["d"]["x"]
    assert boxes["d"]["width"] > boxes["c"]["width"] > boxes["g"]["width"]


def test_boxes_of_a_large_svg_do_not_overlap_and_stay_inside() -> None:
    blocks = tuple(
        Block(
            index,
            tuple(Stage(Strategy.CONCURRENT, ((f"{index}_{k}_0",), (f"{index}_{k}_1",)), 10.0 * k) for k in range(9)),
        )
        for index in range(9)
    )
    svg = draw_svg(Schedule(blocks), title="large", styles={})
    boxes = list(_boxes(svg).values())
    height = float(ET.fromstring(svg).get("height", ""))
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 1200 for box in boxes)
    assert all(box["y"] + box["height"] <= height for box in boxes)
    for index, one in enumerate(boxes):
        for other in boxes[:index]:
            apart_x = one["x"] >= other["x"] + other["width"] or other["x"] >= one["x"] + one["width"]
            apart_y = one["y"] >= other["y"] + other["height"] or other["y"] >= one["y"] + one["height"]
            assert apart_x or apart_y


def test_every_block_of_a_large_svg_has_its_latency_and_room_for_it() -> None:
    blocks = tuple(
        Block(
            index,
            tuple(Stage(Strategy.CONCURRENT, ((f"{index}_{k}",),), 100.0 + index) for k in range(1 + index % 4 * 8)),
            optimal=index % 3 > 0,
        )
        for index in range(100)
    )
    root = ET.fromstring(draw_svg(Schedule(blocks), title="large", styles={}))
    heads = [each for each in root.iter(f"{SVG}text") if each.get("font-size") == "11.5"]
    named = {(each.text or "").removeprefix("… ").replace(" *", "") for each in heads}
    assert named == {f"block {each.index} · {latency_label(total_us(each.stages))}" for each in blocks}
    ends: dict[str | None, float] = {}
    for head in heads:
        row, x = head.get("y"), float(head.get("x", ""))
        assert x >= ends.get(row, 0)
        ends[row] = x + 6.4 * len(head.text or "")
    assert max(ends.values()) <= 1200


def test_names_cannot_break_the_svg() -> None:
    evil = '</title><script>&"\x00\x1b'
    schedule = Schedule((Block(0, (Stage(Strategy.CONCURRENT, ((evil,),)),)),))
    svg = draw_svg(schedule, title=evil, styles={})
    assert not list(ET.fromstring(svg).iter(f"{SVG}script"))


def test_a_schedule_without_latencies_is_drawn_too() -> None:
    schedule = Schedule((Block(0, (Stage(Strategy.CONCURRENT, (("a",),)),)),))
    assert "latency unknown" in draw_text(schedule, title="net", styles={})
    assert set(_boxes(draw_svg(schedule, title="net", styles={}))) == {"a"}
