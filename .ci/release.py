"""Makes a release: the files that are uploaded. Uploads nothing.

    python .ci/release.py bump 0.2.0       # version in pyproject.toml, and a section in CHANGELOG.md; commit them
    python .ci/release.py build [FOLDER]   # wheels, sdist and SHA256SUMS in FOLDER (by default dist/), tried

`build` takes what is committed, and refuses a tree with anything else. All is built twice, from scratch, in different
folders, and has to be equal byte by byte. It is dated by the commit, so that who builds the same commit with the same
tools (the extra `release`) gets the same files. The wheel for this machine is then installed and used. Takes some
minutes, and the network.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PLATFORMS = ("manylinux_2_17_x86_64", "manylinux_2_17_aarch64", "any")
MODEL = "zoo:squeezenet"


class RefusedError(Exception):
    """Why there is no release, in a line."""


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("bump", help="begin a version").add_argument("version")
    steps.add_parser("build", help="build and try it").add_argument(
        "folder", type=Path, nargs="?", default=TOP / "dist"
    )
    options = parser.parse_args(words)
    try:
        if options.step == "bump":
            bump(TOP, options.version, datetime.now(UTC).date().isoformat())
        else:
            build(options.folder)
    except (RefusedError, subprocess.CalledProcessError) as error:
        sys.exit(f"no release: {error}")


def bump(top: Path, new: str, today: str) -> None:
    """Writes the version where it stands, and gives what is unreleased in the changelog its number and date."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", new):
        raise RefusedError(f"{new} is no version such as 0.2.0 or 0.2.0rc1")
    project, log = top / "pyproject.toml", top / "CHANGELOG.md"
    before = version_in(top)
    log_text = log.read_text(encoding="utf-8")
    if f"## [{new}]" in log_text or "## [Unreleased]\n" not in log_text:
        raise RefusedError(f"CHANGELOG.md has a section for {new} already, or none called [Unreleased]")
    dated = log_text.replace("## [Unreleased]\n", f"## [Unreleased]\n\n## [{new}] - {today}\n", 1)
    text = project.read_text(encoding="utf-8").replace(f'\nversion = "{before}"\n', f'\nversion = "{new}"\n', 1)
    if tomllib.loads(text)["project"]["version"] != new:
        raise RefusedError(f'pyproject.toml does not say  version = "{before}"  first in [project]: write it so')
    log.write_text(dated, encoding="utf-8")
    project.write_text(text, encoding="utf-8")


def version_in(top: Path) -> str:
    """The version in pyproject.toml, which is the only place that has it."""
    return str(tomllib.loads((top / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def build(folder: Path) -> None:
    """What `release.py build` does."""
    version = check(TOP)
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise RefusedError(f"{folder} is not empty")
    with tempfile.TemporaryDirectory(prefix="iosched-release-") as name:
        room = Path(name)
        tools = tools_in(room / "tools")
        files, again = (built(tools, room / turn, version) for turn in ("once", "once-more"))
        if different := sorted(name for name in files if digest(files[name]) != digest(again[name])):
            raise RefusedError(f"two builds of the same commit differ: {', '.join(different)}")
        check_files(tools, [*files.values()])
        try_wheel(room, files[wheel_name(version, f"manylinux_2_17_{platform.machine()}")])
        folder.mkdir(parents=True, exist_ok=True)
        for file in files.values():
            shutil.copy(file, folder)
        lines = [f"{digest(files[name])}  {name}\n" for name in sorted(files)]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    print("".join(lines), end="")
    print(f"{folder} holds iosched {version}. Nothing was uploaded; what is left to do:\n")
    print(f"    git tag -s v{version} && git push origin v{version}\n    twine upload {folder}/iosched-{version}*")


def check(top: Path) -> str:
    """The version to release, where the tree is clean and the changelog tells of that version.

    Raises:
        RefusedError: it is not, or does not.
    """
    version = version_in(top)
    if changed := git(top, "status", "--porcelain"):
        raise RefusedError(f"the tree is not clean:\n{changed}")
    log = (top / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", log, re.M | re.S)
    if section is None or "- " not in section[1]:
        raise RefusedError(f"CHANGELOG.md has no dated section [{version}] that says anything: see  release.py bump")
    tagged = git(top, "tag", "--list", f"v{version}")
    if tagged and git(top, "rev-parse", f"v{version}^{{commit}}") != git(top, "rev-parse", "HEAD"):
        raise RefusedError(f"v{version} is another commit: a version is released once")
    return version


def git(top: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=top, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def tools_in(folder: Path) -> Path:
    """A Python with what the extra `release` names."""
    wanted = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    return python_with(folder, *wanted["release"])


def python_with(folder: Path, *packages: str) -> Path:
    """A Python of its own in `folder`, with these packages."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def built(tools: Path, room: Path, version: str) -> Mapping[str, Path]:
    """The files of the release, by name: an sdist of what is committed, and the wheels that are built of that sdist."""
    stamp = git(TOP, "log", "-1", "--format=%ct")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "IOSCHED_WHEEL")},
        "SOURCE_DATE_EPOCH": stamp,
        "ZIG_GLOBAL_CACHE_DIR": str(room / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(room / "zig"),
    }
    commit, out = room / "commit", room / "out"
    unpack(BytesIO(subprocess.run(["git", "archive", "HEAD"], cwd=TOP, check=True, capture_output=True).stdout), commit)
    run_quietly([tools, "-m", "build", "--no-isolation", "--sdist", "--outdir", out, commit], environment)
    sdist = out / f"iosched-{version}.tar.gz"
    normalize(sdist, int(stamp))
    for wanted in PLATFORMS:
        print(f"building for {wanted}", file=sys.stderr)
        source = room / wanted
        unpack(BytesIO(gzip.decompress(sdist.read_bytes())), source)
        words = [tools, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, source / f"iosched-{version}"]
        run_quietly(words, {**environment, "IOSCHED_WHEEL": wanted})
    found = {path.name: path for path in out.iterdir()}
    expected = {sdist.name, *(wheel_name(version, wanted) for wanted in PLATFORMS)}
    if found.keys() != expected:
        raise RefusedError(f"the build made {', '.join(sorted(found))}, not {', '.join(sorted(expected))}")
    return found


def run_quietly(words: Sequence[Path | str], environment: Mapping[str, str]) -> None:
    """Runs a tool, whose words are shown only where it fails."""
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RefusedError(f"{' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")


def unpack(tar: BytesIO, folder: Path) -> None:
    with tarfile.open(fileobj=tar) as archive:
        archive.extractall(folder, filter="data")


def normalize(sdist: Path, stamp: int) -> None:
    """Takes out of an sdist who built it and when: its files in order, dated by the commit, and of nobody."""
    packed = BytesIO()
    with tarfile.open(sdist) as before, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as after:
        for member in sorted(before.getmembers(), key=lambda each: each.name):
            content = before.extractfile(member) if member.isfile() else None
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.pax_headers = stamp, {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            after.addfile(member, content)
    sdist.write_bytes(gzip.compress(packed.getvalue(), mtime=stamp))


def wheel_name(version: str, wanted: str) -> str:
    return f"iosched-{version}-py3-none-{wanted}.whl"


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def check_files(tools: Path, files: Sequence[Path]) -> None:
    """What a package index asks for, and that compiled wheels need nothing newer than their tag says."""
    subprocess.run([tools, "-m", "twine", "check", "--strict", *files], check=True)
    for wheel in (each for each in files if "manylinux" in each.name):
        tag = wheel.stem.rpartition("-")[2]
        shown = subprocess.run([tools, "-m", "auditwheel", "show", wheel], check=True, capture_output=True, text=True)
        if f'the following platform tag: "{tag}"' not in " ".join(shown.stdout.split()):
            raise RefusedError(f"{wheel.name} is not what its tag says:\n{shown.stdout}")


def try_wheel(room: Path, wheel: Path) -> None:
    """Installs the wheel as a user would, optimizes a network, runs it, and compares its outputs with onnxruntime's."""
    python = python_with(room / "user", f"{wheel}[cpu]")
    home = room / "home"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    for words in (["--version"], ["optimize", MODEL, "--budget", "5", "-o", "m.onnx"], ["run", "m.onnx", "--check"]):
        command = [python, "-m", "iosched", *words]
        said = subprocess.run(command, cwd=home, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
        if words == ["--version"] and "compiled executor" not in said:
            raise RefusedError(f"{wheel.name} has no compiled executor that works here: {said}")


if __name__ == "__main__":
    main(sys.argv[1:])
