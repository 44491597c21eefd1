"""Graphs for Graphviz: clusters for stages and groups, nodes for operators, edges for what they read."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from iosched.cli.pictures.dot import draw_dot
from iosched.cli.pictures.looks import Look
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

SCHEDULE = Schedule(
    (
        Block(
            0,
            (
                Stage(Strategy.CONCURRENT, (("a", "b"), ("c",)), predicted_us=120.0),
                Stage(Strategy.MERGE, (("d",), ("e",)), predicted_us=30.5),
            ),
        ),
        Block(3, (Stage(Strategy.SESSION, (("f",), ("g", "h"))),)),
    )
)
READS = {"b": ("a",), "c": (), "d": ("b", "c"), "e": ("c", "b"), "f": ("d",), "g": ("e", "outside"), "h": ("g",)}
AWKWARD = (
    *('"', "\\", "\\\\", 'a"b\\"c\\', "two\nlines", "näme→∑", "&amp;&lt;<b>", "\\N\\G\\n"),
    *("{|}<>", "n0", "", "\x00\ud800", "->"),
)

TOKEN = re.compile(r'\s+|//[^\n]*|("(?:[^"\\]|\\.)*"|[A-Za-z_]\w*|-?\d+|->|[{}\[\];=,])', re.DOTALL)


@dataclass
class Graph:
    """A graph or cluster as it is written: attributes, nodes, edges and clusters."""

    attributes: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    edges: list[tuple[str, str]] = field(default_factory=list)
    clusters: dict[str, Graph] = field(default_factory=dict)


def parsed(text: str) -> Graph:
    """Reads DOT as Graphviz's grammar has it, as far as it is used here; anything else fails."""
    tokens, place = [], 0
    while place < len(text):
        match = TOKEN.match(text, place)
        assert match, f"no token of DOT: {text[place : place + 40]!r}"
        tokens += [match[1]] if match[1] is not None else []
        place = match.end()
    stream = iter(tokens)
    assert [next(stream) for _ in range(3)] == ["digraph", "schedule", "{"]
    found = body(stream)
    assert next(stream, None) is None
    return found


def body(stream: Iterator[str]) -> Graph:
    found = Graph()
    for token in stream:
        if token == "}":
            return found
        if token == "subgraph":
            name = next(stream)
            assert next(stream) == "{"
            found.clusters[name] = body(stream)
            continue
        following = next(stream)
        if following == "->":
            found.edges.append((token, next(stream)))
            assert next(stream) == ";"
            continue
        assert following == "["
        attributes = listed(stream)
        if token == "graph":
            found.attributes = attributes
        elif token not in ("node", "edge"):
            assert token not in found.nodes
            found.nodes[token] = attributes
    raise AssertionError("a brace is not closed")


def listed(stream: Iterator[str]) -> dict[str, str]:
    found = {}
    while True:
        name, equals, value = next(stream), next(stream), next(stream)
        assert equals == "="
        found[name] = value
        end = next(stream)
        if end == "]":
            assert next(stream) == ";"
            return found
        assert end == ","


def shown(quoted: str) -> str:
    """A label as Graphviz draws it."""
    lines = {"n": "\n", "\\": "\\", '"': '"'}
    text = re.sub(r"\\(.)", lambda match: lines[match[1]], quoted[1:-1])
    assert not re.search(r"&(?!amp;)", text)
    return text.replace("&amp;", "&")


def drawn(schedule: Schedule = SCHEDULE, looks: dict[str, Look] | None = None) -> Graph:
    return parsed(draw_dot(schedule, title="net on CPU", looks=looks or {}, reads=READS))


def labels(graph: Graph) -> list[str]:
    return [shown(node["label"]) for node in graph.nodes.values()]


def test_stages_are_clusters_and_groups_are_clusters_in_them() -> None:
    graph = drawn()
    assert shown(graph.attributes["label"]) == "net on CPU"
    assert [shown(stage.attributes["label"]) for stage in graph.clusters.values()] == [
        "block 0 stage 0, 120.0 µs",
        "block 0 stage 1, merge, 30.5 µs",
        "block 3 stage 0, session",
    ]
    groups = [[labels(group) for group in stage.clusters.values()] for stage in graph.clusters.values()]
    assert groups == [[["a", "b"], ["c"]], [["d\ne"]], [["f"], ["g", "h"]]]
    merged = graph.clusters["cluster_0_1"].clusters["cluster_0_1_0"]
    assert shown(merged.attributes["label"]) == "groups 0 to 1"
    assert not graph.nodes


def test_edges_are_what_operators_read_each_once() -> None:
    graph = drawn()
    name = {
        key: shown(node["label"])
        for stage in graph.clusters.values()
        for group in stage.clusters.values()
        for key, node in group.nodes.items()
    }
    found = [(name[source], name[target]) for source, target in graph.edges]
    assert sorted(found) == [("a", "b"), ("b", "d\ne"), ("c", "d\ne"), ("d\ne", "f"), ("d\ne", "g"), ("g", "h")]


def test_operators_of_one_type_have_one_colour() -> None:
    graph = drawn(looks={name: Look("Conv" if name in "ab" else "Relu", "label") for name in "abc"})
    first = graph.clusters["cluster_0_0"].clusters
    one, two = first["cluster_0_0_0"].nodes.values()
    (three,) = first["cluster_0_0_1"].nodes.values()
    assert one["fillcolor"] == two["fillcolor"] != three["fillcolor"]
    assert shown(one["label"]) == "label a"


def test_where_reads_are_not_known_there_are_no_edges_and_it_says_so() -> None:
    text = draw_dot(SCHEDULE, title="net", looks={}, reads=None)
    assert parsed(text).edges == []
    assert "// No edges" in text


def awkward() -> str:
    stages = tuple(Stage(Strategy.CONCURRENT, ((name,),)) for name in AWKWARD)
    looks = {name: Look("Conv", "Conv", name) for name in AWKWARD}
    return draw_dot(Schedule((Block(0, stages),)), title="".join(AWKWARD), looks=looks, reads={"n0": ("->", '"')})


def test_names_may_hold_anything() -> None:
    graph = parsed(awkward())
    found = [
        shown(*[n["label"] for g in stage.clusters.values() for n in g.nodes.values()])
        for stage in graph.clusters.values()
    ]
    wanted = [name.replace("\x00", "\ufffd").replace("\ud800", "\ufffd") for name in AWKWARD]
    assert found == [f"Conv {name}" for name in wanted]
    assert len(graph.edges) == 2


def test_an_empty_schedule_is_an_empty_graph() -> None:
    assert drawn(Schedule(())).clusters == {}


def test_equal_schedules_give_equal_text() -> None:
    backwards = {name: tuple(reversed(sources)) for name, sources in reversed(READS.items())}
    texts = {draw_dot(SCHEDULE, title="net", looks={}, reads=reads) for reads in (READS, backwards)}
    assert len(texts) == 1


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz's dot (apt-get install graphviz)")
@pytest.mark.parametrize(
    "text", [awkward(), draw_dot(SCHEDULE, title="net", looks={}, reads=READS)], ids=["names", "all"]
)
def test_graphviz_takes_it(text: str) -> None:
    done = subprocess.run(["dot", "-Tsvg"], input=text.encode(), capture_output=True, check=True, timeout=60)
    assert done.stderr == b""
    assert done.stdout.count(b'class="node"') == text.count("fillcolor")
