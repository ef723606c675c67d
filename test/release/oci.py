# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A client of registries that shares no code with what pushes images."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
IMAGES = ["cacheserver", "objectcache", "manager", "trainer-manager"]  # of a release

_ACCEPT = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class Registry:
    """A client of a registry that believes nothing but digests (OCI distribution spec 1.1)."""

    host: str
    path: str

    def get(self, kind: str, name: str, what: str) -> bytes:
        """The manifest, blob or referrers of what, a digest or a tag. Raises if the content has another digest."""
        request = urllib.request.Request(
            f"http://{self.host}/v2/{self.path}/{name}/{kind}/{what}", headers={"Accept": _ACCEPT}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
        if kind != "referrers" and what.startswith("sha256:") and digest(content) != what:
            raise ValueError(f"{name}: {what} has the content of {digest(content)}")
        return content

    def manifest(self, name: str, what: str) -> dict[str, Any]:
        """A manifest or an index."""
        return json.loads(self.get("manifests", name, what))

    def referrers(self, name: str, what: str, kind: str) -> list[dict[str, Any]]:
        """The manifests that refer to a manifest and whose artifactType begins with kind."""
        listed = json.loads(self.get("referrers", name, what))["manifests"]
        found = [self.manifest(name, one["digest"]) for one in listed]
        assert all(one["subject"]["digest"] == what for one in found)
        return [one for one in found if one.get("artifactType", "").startswith(kind)]

    def unpack(self, name: str, what: str, to: Path) -> dict[str, Any]:
        """Unpacks an image and returns its config."""
        manifest = self.manifest(name, what)
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=io.BytesIO(self.get("blobs", name, layer["digest"]))) as archive:
                archive.extractall(to, filter="tar")
        return json.loads(self.get("blobs", name, manifest["config"]["digest"]))


def digest(content: bytes) -> str:
    """The digest by which a registry knows content."""
    return "sha256:" + hashlib.sha256(content).hexdigest()
