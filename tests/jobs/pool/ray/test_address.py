"""The forms of `--cluster`."""

from __future__ import annotations

import pytest

from iosched.jobs.pool.ray.address import Cluster, LocalCluster, RunningCluster, parse_cluster
from iosched.models.errors import UsageError


@pytest.mark.parametrize(
    ("text", "cluster"),
    [
        ("auto", RunningCluster(None)),
        (" auto ", RunningCluster(None)),
        ("local:1", LocalCluster(1)),
        ("local:1024", LocalCluster(1024)),
        ("head:6379", RunningCluster("head:6379")),
        ("10.0.0.7:6379", RunningCluster("10.0.0.7:6379")),
        ("[fe80::1%eth0]:6379", RunningCluster("[fe80::1%eth0]:6379")),
        ("ray://head.example.org:10001", RunningCluster("ray://head.example.org:10001")),
        ("gpu_box-1:65535", RunningCluster("gpu_box-1:65535")),
    ],
)
def test_a_cluster_is_named_in_four_forms(text: str, cluster: Cluster) -> None:
    assert parse_cluster(text) == cluster
    assert parse_cluster(str(cluster)) == cluster


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no such form"),
        ("local", "say how many workers, 1 to 1024, as in local:2"),
        ("local:", "say how many workers"),
        ("local:two", "say how many workers"),
        ("local:-1", "say how many workers"),
        ("local:²", "say how many workers"),
        ("local:0", "say how many workers"),
        ("local:1025", "say how many workers"),
        ("local:99999999999999999999", "say how many workers"),
        ("head", "the port is missing, as in head:6379"),
        ("ray://head", "the port is missing, as in ray://head:10001"),
        ("head:0", "ports are numbers from 1 to 65535"),
        ("head:70000", "ports are numbers from 1 to 65535"),
        ("head:٣", "no such form"),
        ("http://head:8265", "only ray:// is understood"),
        ("AUTO", "the port is missing"),
        ("head:6379/x", "no such form"),
        ("user@head:6379", "no such form"),
        ("-head:6379", "no such form"),
        ("fe80::1:6379", "no such form"),
    ],
)
def test_other_forms_are_refused_with_the_valid_ones(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_cluster(text)
    assert words in str(refused.value)
    assert "It is auto, local:N, HOST:PORT or ray://HOST:PORT" in str(refused.value)
