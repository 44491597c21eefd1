"""`import iosched` is a thin façade: every name is there, and none costs anything before it is used."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import iosched


@pytest.mark.parametrize("name", iosched.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(iosched, name)
    assert name in dir(iosched)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = iosched.no_such_name


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(iosched.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported | {"__version__"} == set(iosched.__all__)
