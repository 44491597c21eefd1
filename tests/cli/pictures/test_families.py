"""Families of operators, and colours for them that everyone can tell apart."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from iosched.cli.pictures.theme import FAMILIES, BoxColours, family_of

GROUNDS = {"light": "#ffffff", "dark": "#141920"}
THEMES = {theme: {key: getattr(family, theme) for key, family in FAMILIES.items()} for theme in GROUNDS}

# Machado, Oliveira and Fernandes (2009), severity 1.0, of linear RGB.
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """By WCAG 2.2."""
    low, high = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(each)) for each in (one, other))
    return (high + 0.05) / (low + 0.05)


def oklab(rgb: np.ndarray) -> np.ndarray:
    """Ottosson's OKLab, in which distances are perceptual; 0.02 is just noticeable."""
    to_cones = np.array([[0.41222, 0.53633, 0.05145], [0.2119, 0.6807, 0.1074], [0.0883, 0.28172, 0.62998]])
    to_lab = np.array([[0.21045, 0.79362, -0.00407], [1.978, -2.42859, 0.45059], [0.0259, 0.78277, -0.80868]])
    return to_lab @ np.cbrt(to_cones @ np.clip(rgb, 0, 1))


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("theme", THEMES)
def test_any_two_families_can_be_told_apart(theme: str, sight: str) -> None:
    seen = {key: oklab(np.array(SIGHTS[sight]) @ linear(paint.fill)) for key, paint in THEMES[theme].items()}
    near = {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a, b in combinations(seen, 2)}
    assert min(near.values()) >= 0.09, min(near, key=lambda pair: near[pair])


@pytest.mark.parametrize("theme", THEMES)
def test_words_can_be_read_and_boxes_stand_out(theme: str) -> None:
    paint: BoxColours
    for paint in THEMES[theme].values():
        assert contrast(paint.ink, paint.fill) >= 4.5
        assert contrast(paint.edge or paint.fill, GROUNDS[theme]) >= 3


def test_no_type_belongs_to_two_families() -> None:
    assert sum(len(family.types) for family in FAMILIES.values()) == len(
        frozenset().union(*(family.types for family in FAMILIES.values()))
    )


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("Conv", "conv"),
        ("ReluSepConv", "conv"),
        ("Concat", "move"),
        ("com.microsoft::FusedConv", "conv"),
        ("com.microsoft::Gelu", "act"),
        ("Loop", "other"),
        ("", "other"),
        ("<script>", "other"),
    ],
)
def test_a_type_has_a_family(kind: str, family: str) -> None:
    assert family_of(kind) == family
