"""A schedule as a graph for Graphviz: clusters for stages and groups, nodes for operators, edges for what they read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from iosched.cli.errors import printable
from iosched.cli.pictures.drawn import Reads
from iosched.cli.pictures.families import Paint
from iosched.cli.pictures.looks import Look, latency_label, look_of
from iosched.cli.pictures.paints import paints_of
from iosched.cli.pictures.svg import GREY, INK
from iosched.scheduler.schedule import Schedule, Stage
from iosched.scheduler.strategies import STAGES

_FONT = "Helvetica,Arial,sans-serif"


def draw_dot(schedule: Schedule, *, title: str, looks: Mapping[str, Look], reads: Reads | None) -> str:
    """The graph as text in the DOT language; ends with a newline.

    Operators that are merged into one are one node. Blocks and stages are counted from 0, as in the schedule file.

    Args:
        schedule: the schedule to draw.
        title: the headline.
        looks: how operators are shown, by their names; one that it does not have is shown as its name, in grey.
        reads: what reads what; None where that is not known: then there are no edges, and a comment says so.
    """
    boxes = _boxes(schedule)
    number = {name: index for index, box in enumerate(boxes) for name in box}
    paints = paints_of(schedule, looks)
    lines = [
        "digraph schedule {",
        f"  graph [label={_quoted(title)}, labelloc=t, fontname={_quoted(_FONT)}, fontcolor={_quoted(INK)}];",
        f'  node [shape=box, style="rounded,filled", fontname={_quoted(_FONT)}, penwidth=0];',
        f"  edge [color={_quoted(GREY)}];",
    ]
    for block in schedule.blocks:
        for index, stage in enumerate(block.stages):
            lines += _stage(
                stage, f"{block.index}_{index}", f"block {block.index} stage {index}", number, looks, paints
            )
    if reads is None:
        lines.append("  // No edges: what reads what is not in the schedule file. Give its model too.")
    else:
        lines += [f"  n{source} -> n{target};" for source, target in _edges(reads, number)]
    return "\n".join([*lines, "}", ""])


def _boxes(schedule: Schedule) -> list[tuple[str, ...]]:
    """The operators of each node, in the order of the schedule."""
    return [box for stage in schedule.stages for group in _groups(stage) for box in group]


def _groups(stage: Stage) -> list[list[tuple[str, ...]]]:
    """For each group its nodes; operators that run as one are one node in one group."""
    if STAGES[stage.strategy].is_one_operator:
        return [[stage.operators]]
    return [[(name,) for name in group] for group in stage.groups]


def _stage(
    stage: Stage,
    key: str,
    name: str,
    number: Mapping[str, int],
    looks: Mapping[str, Look],
    paints: Mapping[str, Paint],
) -> Iterator[str]:
    rule = STAGES[stage.strategy]
    latency = "" if stage.latency_us is None else latency_label(stage.latency_us)
    label = ", ".join(filter(None, [name, rule.mark, latency]))
    edge = f', style="rounded,dashed", color={_quoted(rule.colour)}' if rule.colour else f", color={_quoted(GREY)}"
    yield f"  subgraph cluster_{key} {{"
    yield f"    graph [label={_quoted(label)}, fontcolor={_quoted(GREY)}{edge}];"
    for index, group in enumerate(_groups(stage)):
        yield f"    subgraph cluster_{key}_{index} {{"
        name = f"groups 0 to {len(stage.groups) - 1}" if len(group) and len(group[0]) > 1 else f"group {index}"
        yield f'      graph [label="{name}", style=rounded, color="#c9ced6"];'
        for box in group:
            yield f"      n{number[box[0]]} [{_look(box, looks, paints)}];"
        yield "    }"
    yield "  }"


def _look(box: Sequence[str], looks: Mapping[str, Look], paints: Mapping[str, Paint]) -> str:
    found = [look_of(name, looks) for name in box]
    label = "\n".join(_words(name, look) for name, look in zip(box, found, strict=True))
    paint = paints[found[0].kind]
    models = ", ".join(dict.fromkeys(look.models for look in found if look.models))
    tip = f", tooltip={_quoted(models)}" if models else ""
    return f"label={_quoted(label)}, fillcolor={_quoted(paint.fill)}, fontcolor={_quoted(paint.ink)}{tip}"


def _words(name: str, look: Look) -> str:
    return f"{look.label} {name}" if look.type else name


def _edges(reads: Reads, number: Mapping[str, int]) -> list[tuple[int, int]]:
    """Pairs of nodes, each once; what is not drawn is left out."""
    pairs: Iterable[tuple[str, str]] = ((source, name) for name, sources in reads.items() for source in sources)
    found = {(number[source], number[name]) for source, name in pairs if source in number and name in number}
    return sorted(found)


def _quoted(words: str) -> str:
    """Words as Graphviz shows them as they are: it reads backslashes, and `&` as HTML does."""
    text = printable(words).replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;").replace("\n", "\\n")
    return f'"{text}"'
