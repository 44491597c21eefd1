"""The devices of a cluster, from Ray's description of its nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

from iosched.jobs.pool.ray.places import ClusterNode, gpu_key, named, nodes_of, places_on, request
from iosched.jobs.pool.transport import Place
from iosched.profiler.devices.gpus import known_gpus


def node(host: str, number: str = "a1b2c3d4", alive: bool = True, **resources: float) -> dict[str, Any]:
    """As `ray.nodes()` returns it; `accelerator_V100` is `accelerator_type:V100`, which is no keyword."""
    told = {name.replace("accelerator_", "accelerator_type:"): amount for name, amount in resources.items()}
    address = {"NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": host}
    return {"NodeID": number, "Alive": alive, **address, "Resources": {"node:10.0.0.1": 1.0, **told}}


def found(*nodes: dict[str, Any]) -> dict[Place, ClusterNode]:
    living = nodes_of(nodes)
    return places_on(living, named(living, {}))


def places(*nodes: dict[str, Any]) -> tuple[Place, ...]:
    return tuple(found(*nodes))


def test_a_node_has_a_place_for_its_gpus_and_one_for_its_cpu() -> None:
    assert places(node("box", CPU=32, GPU=4, accelerator_V100=1, iosched_cpu=1)) == (
        Place("box", "10.0.0.1", "v100", 4, 32),
        Place("box", "10.0.0.1", "cpu", 1, 32),
    )


def test_a_machine_that_does_not_offer_its_cpu_has_no_cpu_worker() -> None:
    assert places(node("head", CPU=8)) == (Place("head", "10.0.0.1", "cpu", 0, 8),)
    assert [place.device for place in places(node("box", CPU=8, GPU=1, accelerator_T4=1))] == ["t4"]


def test_gpus_hidden_from_ray_have_no_place() -> None:
    assert [place.device for place in places(node("box", CPU=8, GPU=0, accelerator_T4=1, iosched_cpu=1))] == ["cpu"]


def test_dead_nodes_have_no_places() -> None:
    assert places(node("box", CPU=8, iosched_cpu=1, alive=False)) == ()


def test_machines_with_the_same_name_get_unique_names() -> None:
    both = places(
        node("box", "aaaaaa1f", iosched_cpu=1), node("box", "aaaaaa2f", iosched_cpu=1), node("c", "bb", iosched_cpu=1)
    )
    assert [place.node for place in both] == ["box", "box-aaaaaa", "c"]


def test_a_node_keeps_its_name_when_others_join_or_leave() -> None:
    """Workers are identified by it: with another name, their place would seem to be gone."""
    one, other = nodes_of([node("box", "bbbbbbbb"), node("box", "aaaaaaaa")])
    first = named([one], {})
    both = named([one, other], first)
    assert (first, both) == ({"bbbbbbbb": "box"}, {"bbbbbbbb": "box", "aaaaaaaa": "box-aaaaaa"})
    assert named([other], both) == {"aaaaaaaa": "box-aaaaaa"}
    assert named([other, one], named([other], both)) == {"aaaaaaaa": "box-aaaaaa", "bbbbbbbb": "box"}


def test_a_whole_gpu_is_requested() -> None:
    """The type alone requests a thousandth of it, which excludes no other task."""
    ((place, there),) = found(node("box", GPU=2, accelerator_V100=1)).items()
    assert request(place, there) == {"num_cpus": 0, "num_gpus": 1, "accelerator_type": "V100"}


def test_a_cpu_is_requested_by_its_custom_resource() -> None:
    ((place, there),) = found(node("box", iosched_cpu=1)).items()
    assert request(place, there) == {"num_cpus": 0, "resources": {"iosched_cpu": 1}}


DRIVERS = {
    "Tesla V100-SXM2-16GB": "v100",
    "Tesla V100-PCIE-32GB": "v100",
    "Tesla T4": "t4",
    "Tesla K80": "k80",
    "Tesla P100-PCIE-16GB": "p100",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA A100 80GB PCIe": "a100",
    "NVIDIA A10": "a10",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
    "NVIDIA TITAN Xp": "titanxp",
    "TITAN Xp": "titanxp",
    "NVIDIA GeForce RTX 2080 Ti": "rtx2080ti",
    "NVIDIA GeForce RTX 2080 SUPER": "rtx2080super",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "NVIDIA RTX A5000": "rtxa5000",
}


@pytest.mark.parametrize(("driver", "key"), DRIVERS.items())
def test_gpus_are_identified_by_rays_accelerator_type(driver: str, key: str) -> None:
    assert gpu_key(NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(driver)) == key


def test_an_ambiguous_accelerator_type_matches_no_known_gpu() -> None:
    """Ray shortens the names of older drivers: "RTX-2080" may be the 2080, the 2080 Ti or the 2080 SUPER."""
    assert NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type("GeForce RTX 2080 Ti") == "RTX-2080"
    assert gpu_key("RTX-2080") == "rtx-2080"


def test_these_tests_cover_all_known_gpus_that_ray_distinguishes() -> None:
    cards = {"p100pcie", "v100pcie", "a100pcie40", "a100pcie80"}
    assert {gpu.key for gpu in known_gpus()} - {*DRIVERS.values()} == cards


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("GTX-1080", "gtx-1080"),
        ("GeForce-GTX-1080", "geforce-gtx-1080"),
        ("AMD-Instinct-MI250X", "amd-instinct-mi250x"),
    ],
)
def test_other_gpus_keep_rays_accelerator_type(word: str, key: str) -> None:
    assert gpu_key(word) == key


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "NodeID": st.text("ab", min_size=8, max_size=12),
                "NodeManagerAddress": st.just("x"),
                "Alive": st.booleans(),
            },
            optional={
                "NodeManagerHostname": st.sampled_from(["", "one", "two"]),
                "Resources": st.dictionaries(
                    st.sampled_from(["CPU", "GPU", "iosched_cpu", "accelerator_type:T4"]), st.floats(0, 4)
                ),
            },
        ),
        unique_by=lambda entry: entry["NodeID"],
    )
)
def test_places_are_unique_and_belong_to_living_nodes(told: list[dict[str, Any]]) -> None:
    there = found(*told)
    alive = {entry["NodeID"] for entry in told if entry["Alive"]}
    assert {node.id for node in there.values()} == alive
    assert len({(place.node, place.device) for place in there}) == len(there)
    assert len({place.node for place in there}) == len(alive)
