# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs jobs through unmodified libraries of the Hugging Face hub, each in a thread, and prints a JSON list of their
results.

The argument is a JSON list of jobs: "do" names one of the functions below, the rest are its arguments. The hub and the
token come from the environment (HF_ENDPOINT, HF_TOKEN_PATH), as in a user's pod.
"""

from __future__ import annotations

import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub as hub


def snapshot(repo: str, dir: str | None = None, type: str = "model") -> Any:
    """Returns the SHA-256 of each file of a repository."""
    path = Path(hub.snapshot_download(repo, repo_type=type, local_dir=dir))
    return {
        str(f.relative_to(path)): hashlib.sha256(f.read_bytes()).hexdigest()
        for f in sorted(path.rglob("*"))
        if f.is_file() and ".cache" not in f.parts
    }


def file(repo: str, name: str, dir: str, revision: str | None = None) -> str:
    """Returns the SHA-256 of one file."""
    path = hub.hf_hub_download(repo, name, local_dir=dir, revision=revision)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def streamed(repo: str, name: str, start: int, end: int) -> str:
    """Returns the SHA-256 of a part of a file, read by ranges."""
    with hub.HfFileSystem().open(f"{repo}/{name}", "rb", block_size=1 << 20) as f:
        f.seek(start)
        data = f.read(end - start)
    assert isinstance(data, bytes)
    return hashlib.sha256(data).hexdigest()


def whoami() -> str:
    """Returns the name of the token's owner."""
    return str(hub.whoami()["name"])


def entries(repo: str) -> list[str]:
    """Returns the paths of a repository's tree."""
    return sorted(e.path for e in hub.HfApi().list_repo_tree(repo, recursive=True))


def config(repo: str) -> Any:
    """Returns a model's type and what its tokenizer makes of a text, by transformers."""
    from transformers import AutoConfig, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(repo)("to be or not to be")["input_ids"]
    return {"type": AutoConfig.from_pretrained(repo).model_type, "tokens": tokens}


def rows(repo: str, column: str | None = None) -> Any:
    """Returns a data set's rows, or the values of one column, whole and streamed, by datasets."""
    import datasets  # pyright: ignore[reportMissingImports] # in an environment of its own: hack/python/hub.txt

    whole = datasets.load_dataset(repo, split="train")
    stream = datasets.load_dataset(repo, split="train", streaming=True)
    return {
        "whole": [row[column] if column else row for row in whole],
        "stream": [row[column] if column else row for row in stream],
    }


def run(job: dict[str, Any]) -> Any:
    """Returns a job's result, or its error."""
    arguments = dict(job)
    try:
        return {"result": globals()[arguments.pop("do")](**arguments)}
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        return {"error": type(error).__name__, "status": status, "text": str(error)[:2000]}


def main() -> None:
    """Runs all jobs at once."""
    jobs = json.loads(sys.argv[1])
    with ThreadPoolExecutor(len(jobs)) as pool:
        print(json.dumps(list(pool.map(run, jobs))))


if __name__ == "__main__":
    main()
