# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each loader in its own words: a mixture and a filter, one rank of several, and its state.

A loader is a class made from a Run, with batches(), which yields lists of ids, and state(). Its libraries are imported
when it is used: they are in the peers' environment alone.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq

from elastic.data import BATCH, FILES, ROWS, WEIGHTS, Run, table

SEED = 7


class Loader(Protocol):
    """One rank's reader."""

    def batches(self) -> Iterator[list[int]]:
        """The ids of each batch from the state on."""
        ...

    def state(self) -> bytes:
        """The state after the last batch that was read."""
        ...


class DataCache:
    """Ours: mix(...), and filter= of a loader."""

    def __init__(self, run: Run) -> None:
        import kubeflow_datacache as dc

        caches = {name: dc.DataCache(endpoint) for name, endpoint in run.endpoints.items()}
        own: dict[str, Any] = {"global_batch_size": BATCH, "seed": SEED, "world": dc.World(run.rank, run.world)}
        if run.kind == "mix":
            self._loader = dc.mix({name: (caches[name], WEIGHTS[name]) for name in ROWS}, exact="step", **own)
        else:
            self._loader = caches["a"].loader(filter="label = 1", **own)
        if run.state:
            self._loader.load_state_dict(json.loads(run.state))

    def batches(self) -> Iterator[list[int]]:
        for batch in self._loader:
            yield batch.numpy()["id"].tolist()

    def state(self) -> bytes:
        return json.dumps(self._loader.state_dict()).encode()


class HuggingFace:
    """datasets, streaming: interleave_datasets and .filter, split_dataset_by_node, the dataset's own state."""

    def __init__(self, run: Run) -> None:
        import datasets  # pyright: ignore[reportMissingImports] - in the peers' environment alone
        from datasets.distributed import split_dataset_by_node  # pyright: ignore[reportMissingImports] - in the peers' environment alone

        def rows(name: str) -> Any:
            files = sorted(map(str, (run.data / "parquet" / name).iterdir()))
            return datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)

        if run.kind == "mix":
            parts = [rows(name) for name in ROWS]
            whole = datasets.interleave_datasets(parts, list(WEIGHTS.values()), seed=SEED)
        else:
            whole = rows("a").filter(_wanted)
        whole = split_dataset_by_node(whole.shuffle(seed=SEED, buffer_size=1000), run.rank, run.world)
        self._rows = whole.batch(BATCH // run.world, drop_last_batch=True)
        if run.state:
            self._rows.load_state_dict(pickle.loads(run.state))

    def batches(self) -> Iterator[list[int]]:
        for batch in self._rows:
            yield batch["id"]

    def state(self) -> bytes:
        return pickle.dumps(self._rows.state_dict())


class Mosaic:
    """streaming: Stream(proportion=), and a filter that skips rows as they come; the StreamingDataLoader's state."""

    def __init__(self, run: Run) -> None:
        from streaming import Stream, StreamingDataLoader, StreamingDataset  # pyright: ignore[reportMissingImports] - in the peers' environment alone

        self._filters = run.kind == "filter"
        own: dict[str, Any] = {"shuffle": True, "shuffle_seed": SEED, "batch_size": BATCH // run.world}
        places = {name: str(run.data / "mds" / name) for name in ROWS}
        if self._filters:
            rows = StreamingDataset(local=places["a"], **own)
        else:
            rows = StreamingDataset(streams=[Stream(local=places[n], proportion=WEIGHTS[n]) for n in ROWS], **own)
        self._loader = StreamingDataLoader(rows, batch_size=BATCH // run.world, drop_last=True)
        if run.state:
            self._loader.load_state_dict(pickle.loads(run.state))

    def batches(self) -> Iterator[list[int]]:
        for batch in self._loader:
            pairs = zip(batch["id"].tolist(), batch["label"].tolist(), strict=True)
            yield [id for id, label in pairs if not self._filters or label == 1]

    def state(self) -> bytes:
        return pickle.dumps(self._loader.state_dict())


class LitData:
    """litdata: CombinedStreamingDataset, the StreamingDataLoader's state. It has no filter."""

    def __init__(self, run: Run) -> None:
        from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset  # pyright: ignore[reportMissingImports] - in the peers' environment alone

        parts = [StreamingDataset(str(run.data / "lit" / name), shuffle=True, seed=SEED) for name in ROWS]
        mixed = CombinedStreamingDataset(parts, weights=list(WEIGHTS.values()), seed=SEED, iterate_over_all=False)
        self._loader = StreamingDataLoader(mixed, batch_size=BATCH // run.world, drop_last=True)
        if run.state:
            self._loader.load_state_dict(pickle.loads(run.state))

    def batches(self) -> Iterator[list[int]]:
        for batch in self._loader:
            yield batch["id"].tolist()

    def state(self) -> bytes:
        return pickle.dumps(self._loader.state_dict())


class Lance:
    """lancedb: StreamingDataset(filter=), 12 splits, which both numbers of ranks divide; states of all ranks merged."""

    def __init__(self, run: Run) -> None:
        import lancedb  # pyright: ignore[reportMissingImports] - in the peers' environment alone
        from lancedb.streaming import StreamingDataset  # pyright: ignore[reportMissingImports] - in the peers' environment alone

        rows = lancedb.connect(str(run.data / "lance")).open_table("a")
        own: dict[str, Any] = {"num_splits": 12, "rank": run.rank, "world_size": run.world}
        self._rows = StreamingDataset(rows, filter="label = 1", shuffle=True, shuffle_seed=SEED, **own)
        self._size = BATCH // run.world
        if run.states:
            states = [pickle.loads(state) for state in run.states]
            self._rows.load_state_dict(StreamingDataset.merge_state_dicts(states))

    def batches(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for row in self._rows:
            batch.append(int(row["id"]))
            if len(batch) == self._size:
                yield batch
                batch = []

    def state(self) -> bytes:
        return pickle.dumps(self._rows.state_dict())


LOADERS: dict[str, type[DataCache | HuggingFace | Mosaic | LitData | Lance]] = {
    "datacache": DataCache,
    "huggingface": HuggingFace,
    "mosaicml": Mosaic,
    "litdata": LitData,
    "lancedb": Lance,
}
KINDS = {
    "mix": ("datacache", "huggingface", "mosaicml", "litdata"),
    "filter": ("datacache", "huggingface", "mosaicml", "lancedb"),
}


def _wanted(row: dict[str, Any]) -> bool:
    return row["label"] == 1


def prepare(data: Path) -> None:
    """Writes the tables in the formats of the others."""
    import lancedb  # pyright: ignore[reportMissingImports] - in the peers' environment alone
    from litdata import optimize  # pyright: ignore[reportMissingImports] - in the peers' environment alone
    from streaming import MDSWriter  # pyright: ignore[reportMissingImports] - in the peers' environment alone

    for name in ROWS:
        (data / "parquet" / name).mkdir(parents=True)
        for file in range(FILES):
            pq.write_table(table(name, file), data / "parquet" / name / f"{file}.parquet")
        with MDSWriter(
            out=str(data / "mds" / name), columns={"id": "int64", "label": "int64"}, compression=None
        ) as out:
            for row in table(name).to_pylist():
                out.write(row)
        rows = table(name).to_pylist()
        optimize(
            fn=dict, inputs=rows, output_dir=str(data / "lit" / name), chunk_size=500, num_workers=1, verbose=False
        )
    lancedb.connect(str(data / "lance")).create_table("a", table("a"))
