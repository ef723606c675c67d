# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake import Lake
from oci import IMAGES, REPOSITORY, Registry, digest

SPDX = "application/spdx+json"
BUNDLE = "application/vnd.dev.sigstore.bundle"


def run(*command: str | Path, **more: Any) -> str:
    """The standard output of a program that must succeed."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, timeout=120, **more
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def here() -> str:
    """Go's name of this machine's processor."""
    return {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_is_there_for_both_processors_and_latest_is_the_version(
    registry: Registry, digests: dict[str, str], name: str
) -> None:
    index = registry.manifest(name, digests[name])
    assert {entry["platform"]["architecture"] for entry in index["manifests"]} == {"amd64", "arm64"}
    assert registry.manifest(name, "latest") == index


def test_cacheserver_starts_on_both_processors(programs: dict[str, Path], version: str) -> None:
    for arch in ("amd64", "arm64"):
        emulator = [] if arch == here() else [{"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"}[arch]]
        assert run(*emulator, programs[f"cacheserver/{arch}"], "version").startswith(f"cacheserver {version}, ")


def test_images_hold_a_program_and_the_authorities(programs: dict[str, Path]) -> None:
    for program in programs.values():
        root = program.parent
        files = sorted(str(file.relative_to(root)) for file in root.rglob("*") if file.is_file())
        assert files == sorted([program.name, "etc/ssl/certs/ca-certificates.crt"])
        assert (root / "etc/ssl/certs/ca-certificates.crt").read_text().count("BEGIN CERTIFICATE") > 100


@pytest.mark.parametrize("name", [*IMAGES, "charts/datacache"])
def test_all_is_signed_by_the_key_and_by_no_other(
    registry: Registry, option: Any, digests: dict[str, str], version: str, tmp_path: Path, name: str
) -> None:
    signed = digests.get(name) or _digest_of_chart(registry, version)
    reference = f"{registry.host}/{registry.path}/{name}@{signed}"
    verify = [option("--cosign"), "verify", "--insecure-ignore-tlog", "--private-infrastructure"]
    run(*verify, "--key", option("--key"), reference)
    run(option("--cosign"), "generate-key-pair", cwd=tmp_path, env={**os.environ, "COSIGN_PASSWORD": ""})
    other = subprocess.run([*verify, "--key", tmp_path / "cosign.pub", reference], capture_output=True, check=False)
    assert other.returncode != 0
    assert len(registry.referrers(name, signed, BUNDLE)) == 1, "publishing once more signs nothing again"


def _digest_of_chart(registry: Registry, version: str) -> str:
    return digest(registry.get("manifests", "charts/datacache", version.removeprefix("v")))


@pytest.mark.parametrize("name", IMAGES)
def test_the_sbom_of_an_image_names_program_and_modules(
    registry: Registry, programs: dict[str, Path], digests: dict[str, str], option: Any, name: str
) -> None:
    (found,) = registry.referrers(name, digests[name], SPDX)
    (layer,) = found["layers"]
    content = registry.get("blobs", name, layer["digest"])
    assert content == (Path(option("--published")) / f"{name}.spdx.json").read_bytes()
    packages = {package["SPDXID"]: package for package in json.loads(content)["packages"]}
    for key, program in programs.items():
        if key.startswith(f"{name}/"):
            (package,) = [one for one in packages.values() if one["name"] == key.replace("/", "-linux-")]
            (checksum,) = package["checksums"]
            assert checksum["checksumValue"] == hashlib.sha256(program.read_bytes()).hexdigest()
    recorded = run("go", "version", "-m", programs[f"{name}/{here()}"])
    modules = dict(re.findall(r"^\tdep\t(\S+)\t(\S+)", recorded, flags=re.MULTILINE))
    assert len(modules) > 20
    assert modules.items() <= {(package["name"], package["versionInfo"]) for package in packages.values()}


def test_the_chart_names_the_digests(
    registry: Registry, option: Any, digests: dict[str, str], version: str, tmp_path: Path
) -> None:
    helm = [option("--helm")]
    env = {**os.environ, **{f"HELM_{name}_HOME": str(tmp_path / name) for name in ("CACHE", "CONFIG", "DATA")}}
    chart = f"oci://{registry.host}/{registry.path}/charts/datacache"
    where = ["--plain-http", "--version", version.removeprefix("v")]
    run(*helm, "pull", chart, *where, "--destination", tmp_path, env=env)
    packed = f"datacache-{version.removeprefix('v')}.tgz"
    assert (tmp_path / packed).read_bytes() == (Path(option("--published")) / packed).read_bytes()
    text = run(
        *helm, "template", "datacache", chart, *where, "--namespace=datacache-system", "--kube-version=1.34.0",
        "--api-versions=trainer.kubeflow.org/v1alpha1", f"--set=image.registry={registry.host}/{registry.path}",
        env=env,
    )  # fmt: skip
    ours = set(re.findall(rf"image: ({re.escape(registry.host)}/\S+)", text))
    assert ours == {f"{registry.host}/{registry.path}/{name}@{digests[name]}" for name in ("manager", "cacheserver")}
    assert "ghcr.io/kubeflow/datacache" not in re.sub(r"#.*", "", text)


def test_the_plugin_runs_from_its_archive(option: Any, version: str, tmp_path: Path) -> None:
    published = Path(option("--published"))
    with tarfile.open(published / f"kubectl-datacache-linux-{here()}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert version in run(tmp_path / "kubectl-datacache", "--version")
    assert (tmp_path / "LICENSE").read_text() == (REPOSITORY / "LICENSE").read_text()


def test_checksums_hold_and_are_signed(option: Any) -> None:
    published = Path(option("--published"))
    lines = (published / "checksums.txt").read_text().splitlines()
    listed = {name: checksum for checksum, name in (line.split("  ") for line in lines)}
    there = {file.name for file in published.iterdir()} - {"checksums.txt", "checksums.txt.sigstore.json"}
    assert listed.keys() == there
    for name, checksum in listed.items():
        assert hashlib.sha256((published / name).read_bytes()).hexdigest() == checksum, name
    run(
        option("--cosign"), "verify-blob", "--insecure-ignore-tlog", "--private-infrastructure",
        "--key", option("--key"), "--bundle", published / "checksums.txt.sigstore.json", published / "checksums.txt",
    )  # fmt: skip


def _table(folder: Path) -> str:
    (folder / "lake").mkdir()
    table = Lake(folder / "lake").create("released", pa.schema([("id", pa.int64())]), pa.table({"id": range(1000)}))
    return table.metadata_location


@contextlib.contextmanager
def _served(program: Path, metadata: str, folder: Path) -> Iterator[str]:
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [program, "local", "--metadata", metadata, "--nodes=2", "--listen=127.0.0.1:0", "--http=127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        assert server.stdout is not None
        words = server.stdout.readline().split()  # ready grpc://HOST:PORT http://HOST:PORT, or nothing if it ends
        assert words[:1] == ["ready"], (folder / "log").read_text()
        yield words[1]
    finally:
        server.terminate()
        server.wait(30)


def _installed(option: Any, folder: Path, *wheels: str) -> Path:
    """A Python of its own, with released wheels and, if the loader's is one, this Python's packages, which it needs."""
    found = [next(Path(option("--wheels")).glob(wheel)) for wheel in wheels]
    clean = folder / "clean"
    venv.create(clean, with_pip=False, symlinks=True)
    python = clean / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", *found)
    if LOADER in wheels:
        site = Path(run(python, "-c", SITE).strip())
        (site / "requirements.pth").write_text(run(sys.executable, "-c", SITE))
        loader = run(python, "-c", "import kubeflow_datacache; print(kubeflow_datacache.__file__)")
        assert site in Path(loader.strip()).parents
    return python


LOADER = "kubeflow_datacache-*.whl"
SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"
READ = """
import sys
from kubeflow_datacache import DataCache, __version__
connect = DataCache if sys.argv[1].startswith("grpc://") else DataCache.local
loader = connect(sys.argv[1]).loader(global_batch_size=100, seed=1)
ids = sorted(i for batch in loader for i in batch.arrow().column("id").to_pylist())
print(__version__, ids == list(range(1000)))
"""


def test_the_wheel_reads_from_the_released_cacheserver(
    option: Any, programs: dict[str, Path], version: str, tmp_path: Path
) -> None:
    python = _installed(option, tmp_path, LOADER)
    metadata = _table(tmp_path)
    with _served(programs[f"cacheserver/{here()}"], metadata, tmp_path) as endpoint:
        assert run(python, "-c", READ, endpoint, cwd=tmp_path).split() == [
            version.removeprefix("v").replace("-rc.", "rc"),
            "True",
        ]


def test_the_wheel_of_the_server_has_the_released_program(
    option: Any, programs: dict[str, Path], version: str, tmp_path: Path
) -> None:
    processor = {"amd64": "x86_64", "arm64": "aarch64"}
    (other,) = processor.keys() - {here()}
    python = _installed(option, tmp_path, LOADER, f"kubeflow_datacache_server-*{processor[here()]}*.whl")
    program = Path(run(python, "-c", "import kubeflow_datacache_server as s; print(s.CACHESERVER)").strip())
    assert program.read_bytes() == programs[f"cacheserver/{here()}"].read_bytes()
    assert version in run(python.with_name("cacheserver"), "version")
    assert run(python, "-c", READ, _table(tmp_path), cwd=tmp_path).split()[1] == "True", "DataCache.local starts it"
    (wheel,) = Path(option("--wheels")).glob(f"kubeflow_datacache_server-*{processor[other]}*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("kubeflow_datacache_server/cacheserver") == programs[f"cacheserver/{other}"].read_bytes()
