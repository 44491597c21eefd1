"""One group of a part a second time, beside all others."""

from __future__ import annotations

from dataclasses import replace

from iosched.models.composition.renaming import renamed
from iosched.models.enlarging.part import Part
from iosched.models.wiring import reads, writes

MORE = "more"
"""What comes before the names of a copy, and a slash."""


def with_branch(part: Part, group: int) -> Part:
    """The part with a copy of one of its groups as a group more, with inputs, weights and results of its own.

    Args:
        group: its place among the groups of the part; it reads nothing that another group computes.

    Complexity: O(nodes and edges of the part).
    """
    own = {name for operator in part.groups[group] for name in part.members[operator]}
    nodes = [node for node in part.nodes if node.name in own]
    touched = {name for node in nodes for name in (*reads(node), *writes(node))}
    copies = []
    for node in nodes:
        copied = renamed(node, _called)
        copied.name = _called(node.name)
        copies.append(copied)
    members = {_called(each): tuple(map(_called, part.members[each])) for each in part.groups[group]}
    return replace(
        part,
        groups=(*part.groups, tuple(members)),
        members={**part.members, **members},
        nodes=(*part.nodes, *copies),
        weights={**part.weights, **{_called(name): array for name, array in part.weights.items() if name in touched}},
        inputs=(
            *part.inputs,
            *(replace(spec, name=_called(spec.name)) for spec in part.inputs if spec.name in touched),
        ),
        outputs=(
            *part.outputs,
            *(replace(each, name=_called(each.name)) for each in part.outputs if each.name in touched),
        ),
        tensors={
            **part.tensors,
            **{
                _called(name): replace(spec, name=_called(name))
                for name, spec in part.tensors.items()
                if name in touched
            },
        },
    )


def _called(name: str) -> str:
    return f"{MORE}/{name}"
