"""GPUs are found by their short names, and the numbers in their table agree with each other."""

from __future__ import annotations

import pytest

from iosched.profiler.devices.gpus import card_of, gpu_keys, gpu_named, spec_of


def test_a_gpu_is_known_by_its_short_name() -> None:
    gpu = gpu_named("v100")

    assert gpu is not None
    assert (gpu.key, gpu.name, gpu.sms, gpu.fp32_tflops) == ("v100", "Tesla V100-SXM2-16GB", 80, 15.7)
    assert gpu.l2_nbytes == 6 * 2**20


@pytest.mark.parametrize(
    ("text", "key"),
    [("V100", "v100"), ("Tesla V100", "v100"), ("2080ti", "rtx2080ti"), ("RTX 2080 Ti", "rtx2080ti"),
     ("RTX 2080 Super", "rtx2080super"), ("rtx-4090", "rtx4090"), ("NVIDIA h100", "h100"), ("Titan XP", "titanxp")],
)  # fmt: skip
def test_case_blanks_and_the_make_do_not_matter(text: str, key: str) -> None:
    gpu = gpu_named(text)

    assert gpu is not None
    assert gpu.key == key


@pytest.mark.parametrize("text", ["", "cpu", "cuda:0", "v1000", "rtx", "auto"])
def test_a_name_outside_the_table_is_no_gpu(text: str) -> None:
    assert gpu_named(text) is None


@pytest.mark.parametrize(
    ("name", "key"),
    [("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100"), ("Tesla T4", "t4"),
     ("NVIDIA GeForce RTX 4090", "rtx4090"), ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"), ("NVIDIA L40S", "l40s"),
     ("NVIDIA GeForce RTX 2080 SUPER", "rtx2080super"), ("NVIDIA RTX A5000", "rtxa5000"),
     ("Tesla V100-PCIE-32GB", "v100pcie"), ("Tesla V100-SXM2-32GB", "v100"), ("Tesla P100-PCIE-16GB", "p100pcie"),
     ("NVIDIA A100-PCIE-40GB", "a100pcie40"), ("NVIDIA A100 80GB PCIe", "a100pcie80"),
     ("NVIDIA TITAN Xp", "titanxp"), ("NVIDIA TITAN X (Pascal)", None), ("NVIDIA L40", None),
     ("NVIDIA GeForce RTX 2080", None), ("NVIDIA H1000", None), ("", None)],
)  # fmt: skip
def test_the_drivers_name_gives_the_specification(name: str, key: str | None) -> None:
    spec = spec_of(name)
    assert (spec and spec.key) == key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100-PCIE-16GB", "v100pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100-PCIE-40GB", "a100pcie40"),
        ("NVIDIA A100 80GB PCIe", "a100pcie80"),
        ("NVIDIA A100 80GB PCIe MIG 1g.10gb", None),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("GeForce RTX 2080 Ti with Max-Q Design", None),
        ("Host 1000", None),
    ],
)
def test_a_card_with_a_similar_name_is_not_mistaken_for_another(name: str, key: str | None) -> None:
    found = card_of(name)
    assert (None if found is None else found.key) == key


@pytest.mark.parametrize("key", gpu_keys())
def test_a_specification_agrees_with_itself(key: str) -> None:
    gpu = gpu_named(key)

    assert gpu is not None
    cores_tflops = 2e-6 * gpu.sms * gpu.cores_per_sm * gpu.boost_mhz
    assert gpu.fp32_tflops == pytest.approx(cores_tflops, rel=0.02)
    assert gpu.tf32_tflops is None or gpu.tf32_tflops >= gpu.fp32_tflops
    assert gpu.fp16_tensor_tflops is None or gpu.fp16_tensor_tflops >= 1.99 * gpu.fp32_tflops


def test_the_table_holds_the_gpus_of_the_published_measurements() -> None:
    assert {"k80", "titanxp", "v100", "rtx2080ti"} <= set(gpu_keys())
