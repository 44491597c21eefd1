"""The CPU quota of a process, read from control groups of machines and containers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.runtime import cores
from iosched.runtime.cores import cpu_quota


def machine(top: Path, cgroup: str, mountinfo: str, files: Mapping[str, str]) -> Path:
    """Creates the file tree of a simulated machine, replacing the previous one."""
    shutil.rmtree(top, ignore_errors=True)
    for name, text in {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mountinfo, **files}.items():
        path = top / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return top


def v1(quota: int, period: int = 100_000, folder: str = "/sys/fs/cgroup/cpu") -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": f"{period}\n"}


ALONE = "22 27 0:21 / /proc rw,relatime shared:7 - proc proc rw\n"
V1 = ALONE + "32 31 0:29 / /sys/fs/cgroup/cpu rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
V2 = ALONE + "41 31 0:38 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
DOCKER_V1 = ALONE + "32 31 0:29 /docker/1f /sys/fs/cgroup/cpu,cpuacct ro master:9 - cgroup cgroup rw,cpuacct,cpu\n"


@pytest.mark.parametrize(
    ("cgroup", "mountinfo", "files", "quota"),
    [
        ("0::/\n", V2, {"/sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", V2, {"/sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ("0::/\n", V2, {"/sys/fs/cgroup/cpu.max": "50000\n"}, 0.5),
        ("0::/\n", V2, {}, None),
        ("0::/a/b\n", V2, {"/sys/fs/cgroup/a/cpu.max": "3 2", "/sys/fs/cgroup/a/b/cpu.max": "max 2"}, 1.5),
        ("0::/a/b\n", V2, {"/sys/fs/cgroup/a/cpu.max": "8 2", "/sys/fs/cgroup/a/b/cpu.max": "2 2"}, 1.0),
        ("0::/a\n", V2, {"/sys/fs/cgroup/a/b/cpu.max": "2 2", "/sys/fs/cgroup/c/cpu.max": "1 2"}, None),
        ("0::/../outside\n", V2, {"/sys/fs/cgroup/cpu.max": "2 1", "/sys/fs/outside/cpu.max": "1 1"}, 2.0),
        ("7:cpu,cpuacct:/\n0::/\n", V1, v1(250_000), 2.5),
        ("7:cpu,cpuacct:/\n0::/\n", V1, v1(-1), None),
        ("7:cpu,cpuacct:/\n0::/\n", V1, v1(100, period=0), None),
        ("7:cpuacct:/\n6:cpuset:/\n", V1, v1(250_000), None),
        ("7:cpu:/\n6:cpuset:/\n", V1.replace("rw,cpu,cpuacct", "rw,cpuset"), v1(250_000), None),
        ("7:cpu:/a:b\n", V1, v1(-1) | v1(10, 20, "/sys/fs/cgroup/cpu/a:b"), 0.5),
        ("4:cpuacct,cpu:/docker/1f\n", DOCKER_V1, v1(2, 1, "/sys/fs/cgroup/cpu,cpuacct"), 2.0),
        ("4:cpuacct,cpu:/docker/other\n", DOCKER_V1, v1(2, 1, "/sys/fs/cgroup/cpu,cpuacct"), 2.0),
        ("7:cpu:/\n0::/\n", V1 + V2, v1(200, 100) | {"/sys/fs/cgroup/cpu.max": "300 100"}, 2.0),
        ("0::/\n", V2.replace("/sys/fs/cgroup", r"/a\040b\134c"), {r"/a b\c/cpu.max": "1 1"}, 1.0),
        ("", "", {}, None),
        ("0::/\n", V2, {"/sys/fs/cgroup/cpu.max": "-1 100000"}, None),
        ("0::/\n", V2, {"/sys/fs/cgroup/cpu.max": "1e5 nan"}, None),
        ("0:\n::\nx\n0::\n", "- cgroup2\n1 2 - cgroup2 a b\n1 2 3 / x - cgroup2 a b\n", {}, None),
    ],
)  # fmt: skip
def test_the_quota_of_common_cgroup_trees(
    tmp_path: Path, cgroup: str, mountinfo: str, files: Mapping[str, str], quota: float | None
) -> None:
    assert cpu_quota(machine(tmp_path, cgroup, mountinfo, files)) == quota


def test_the_quota_is_read_from_the_mount_of_the_process_group(tmp_path: Path) -> None:
    other = "50 31 0:38 /other /mnt/other rw - cgroup2 cgroup2 rw\n"
    files = {"/sys/fs/cgroup/a/cpu.max": "4 1", "/mnt/other/cpu.max": "1 1"}
    assert cpu_quota(machine(tmp_path, "0::/a\n", other + V2, files)) == 4.0


NAMES = st.text("ab.c -:\\", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
LIMITS = st.one_of(st.none(), st.tuples(st.integers(1, 999), st.integers(1, 99)))


@given(st.lists(st.tuples(NAMES, LIMITS), max_size=4), LIMITS, st.integers(0, 4), st.booleans())
def test_smallest_quota_of_nested_groups_counts(
    tmp_path_factory: pytest.TempPathFactory,
    chain: list[tuple[str, tuple[int, int] | None]],
    outermost: tuple[int, int] | None,
    mounted: int,
    is_v2: bool,
) -> None:
    """Nested groups of any names; a container sees those from some depth on."""
    chain = [("", outermost), *chain]
    mounted = min(mounted, len(chain) - 1)
    names = [name for name, _ in chain[1:]]
    root, group = ("/" + "/".join(names[:depth]) for depth in (mounted, len(names)))
    files: dict[str, str] = {}
    for depth, (_, limit) in list(enumerate(chain))[mounted:]:
        folder = "/".join(["/cg", *names[mounted:depth]])
        quota, period = limit or (("max", 5) if is_v2 else (-1, 5))
        files |= {f"{folder}/cpu.max": f"{quota} {period}\n"} if is_v2 else v1(int(quota), period, folder)
    escaped = root.replace("\\", r"\134").replace(" ", r"\040")
    kind = "cgroup2 none rw" if is_v2 else "cgroup none rw,cpu"
    found = cpu_quota(
        machine(
            tmp_path_factory.getbasetemp() / "quota",
            f"{'0:' if is_v2 else '3:cpu'}:{group}\n",
            f"9 8 0:1 {escaped} /cg rw shared:1 - {kind}\n",
            files,
        )
    )
    assert found == min((limit[0] / limit[1] for _, limit in chain[mounted:] if limit), default=None)


@given(st.text("0:/cpu,.\n- grou2max\\", max_size=60), st.text("0:/cpu,.\n- grou2max\\", max_size=60))
def test_malformed_files_mean_no_quota(tmp_path_factory: pytest.TempPathFactory, cgroup: str, mountinfo: str) -> None:
    assert cpu_quota(machine(tmp_path_factory.getbasetemp() / "text", cgroup, mountinfo, {})) is None


@pytest.mark.parametrize(
    ("allowed", "quota", "threads", "shared"),
    [
        (4, None, 4, False),
        (4, 2.0, 2, True),
        (4, 2.9, 2, True),
        (4, 0.2, 1, True),
        (4, 4.0, 4, False),
        (2, 8.0, 2, False),
    ],
)
def test_there_is_one_thread_for_each_whole_processor_of_the_quota(
    monkeypatch: pytest.MonkeyPatch, allowed: int, quota: float | None, threads: int, shared: bool
) -> None:
    monkeypatch.setattr(cores, "allowed_cpus", lambda: tuple(range(allowed)))
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert (cores.cpu_count(), cores.is_time_shared()) == (threads, shared)
