# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A fake API server for the Kubeflow SDK.

It serves one runtime under two names and the pods of one cache, and records posted TrainJobs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import yaml
from kubeflow.trainer import KubernetesBackendConfig, TrainerClient
from kubernetes import client as kubernetes

RUNTIME = "torch-distributed-with-cache"
DEFAULT = "torch-distributed"  # the SDK's default runtime; it lacks one step, which the SDK does not check
REPOSITORY = Path(__file__).resolve().parents[2]

# The TrainJob "reviews" in team-a uses the DataCache "shared" in team-b, which has a head and two data nodes, and
# by the name "code" one of team-a.
_SERVICE = {"metadata": {"annotations": {"datacache.kubeflow.org/uses": "team-b/shared"}}}
_CODE_SERVICE = {"metadata": {"annotations": {"datacache.kubeflow.org/uses": "team-a/code"}}}
_CODE_PODS = [{"metadata": {"name": "code-cache-0", "labels": {"datacache.kubeflow.org/role": "head"}}}]
_PODS = [
    {"metadata": {"name": f"shared-cache-0{end}", "labels": {"datacache.kubeflow.org/role": role}}}
    for end, role in [("-2", "node"), ("", "head"), ("-1", "node")]
]


@contextlib.contextmanager
def trainer_client() -> Generator[tuple[TrainerClient, list[dict[str, Any]]]]:
    """Yields a client of the SDK, and the list of the TrainJobs that it posted."""
    bodies: list[dict[str, Any]] = []
    runtime = yaml.safe_load((REPOSITORY / "runtimes" / f"{RUNTIME}.yaml").read_text())
    handler = type("Handler", (ApiServer,), {"posted": bodies, "runtime": runtime})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        configuration = kubernetes.Configuration(host=f"http://127.0.0.1:{server.server_address[1]}")
        yield TrainerClient(KubernetesBackendConfig(namespace="team-a", client_configuration=configuration)), bodies
        server.shutdown()


class ApiServer(BaseHTTPRequestHandler):
    """Serves one runtime under two names, and records posted objects."""

    posted: list[dict[str, Any]]
    runtime: dict[str, Any]

    def do_GET(self) -> None:
        """Respond with the known object, or 404."""
        path = self.path.partition("?")[0]
        if path.endswith("/log"):
            pod = path.split("/")[-2]
            self._write(200, "text/plain", f"{pod} starts\n{pod} is ready\n".encode())
            return
        labels = self.runtime["metadata"]["labels"]
        known: dict[str, dict[str, Any]] = {
            f"/clustertrainingruntimes/{RUNTIME}": self.runtime,
            f"/clustertrainingruntimes/{DEFAULT}": {**self.runtime, "metadata": {"name": DEFAULT, "labels": labels}},
            "/team-a/services/reviews-cache-service": _SERVICE,
            "/team-b/pods": {"items": _PODS},
            "/team-a/services/reviews-cache-service-5694d08a": _CODE_SERVICE,
            "/team-a/pods": {"items": _CODE_PODS},
        }
        found = next((body for end, body in known.items() if path.endswith(end)), None)
        self._answer(404 if found is None else 200, found or {"kind": "Status", "code": 404})

    def do_POST(self) -> None:
        """Record the body."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.posted.append(body)
        self._answer(201, body)

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        self._write(code, "application/json", json.dumps(body).encode())

    def _write(self, code: int, content: str, data: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
