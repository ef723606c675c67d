# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark's Iceberg tables, created once by pyiceberg and kept in a cache directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.memory import InMemoryCatalog

FILES = 12
VOCABULARY = 50_257
SEQUENCE = 512
CHUNK_BYTES = 4 << 20
# Part of the directory's name: increment when the content of a table changes.
FORMAT = 1


@dataclass(frozen=True)
class Table:
    """A table on disk. arrow_bytes: size of its column buffers, with 32-bit offsets, without validity bitmaps."""

    name: str
    metadata: str
    files: list[str]
    rows: int
    arrow_bytes: int
    parquet_bytes: int

    @property
    def gigabytes(self) -> float:
        return self.arrow_bytes / 1e9

    @property
    def chunk_rows(self) -> int:
        """The number of rows in about 4 MiB: the batch size of the reference servers."""
        return max(1, CHUNK_BYTES * self.rows // self.arrow_bytes)


@dataclass(frozen=True)
class Shape:
    """How to create a table: its rows at scale 1, rows per row group, and the function that generates rows.

    Each file has a multiple of `multiple` rows.
    """

    rows: int
    row_group: int
    schema: pa.Schema
    fill: Callable[[np.random.Generator, int, int], list[pa.Array]]
    multiple: int = 1


def tokens(rng: np.random.Generator, first: int, rows: int) -> list[pa.Array]:
    """Zipf-like tokens with P(k) proportional to k^-1.16, about 11.3 bits each in the file; and a label."""
    names = np.random.default_rng(1).permutation(VOCABULARY).astype(np.int32)
    tail = np.float32(1 - VOCABULARY**-0.16)
    ranks = (1 - rng.random(rows * SEQUENCE, np.float32) * tail) ** np.float32(-1 / 0.16)
    drawn = names[np.minimum(ranks.astype(np.int32), VOCABULARY) - 1]
    offsets = np.arange(0, (rows + 1) * SEQUENCE, SEQUENCE, dtype=np.int32)
    return [pa.ListArray.from_arrays(offsets, drawn), pa.array(rng.integers(0, 1000, rows))]


def _tabular(rng: np.random.Generator, first: int, rows: int) -> list[pa.Array]:
    """Four int64 columns (the row number, and values below 1,000, 2^40 and 2^31), four float64, a 20-byte string."""
    ints = [
        np.arange(first, first + rows),
        rng.integers(0, 1000, rows),
        rng.integers(0, 1 << 40, rows),
        rng.integers(0, 1 << 31, rows),
    ]
    floats = [rng.standard_normal(rows) for _ in range(4)]
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)[rng.integers(0, 16, rows * 20, np.uint8)]
    offsets = np.arange(0, (rows + 1) * 20, 20, dtype=np.int32)
    text = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(digits))
    return [*(pa.array(c) for c in [*ints, *floats]), text]


def images(rng: np.random.Generator, first: int, rows: int) -> list[pa.Array]:
    """Random bytes of 19 to 21 KB, as incompressible as JPEG, and a label."""
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(rng.integers(19_000, 21_001, rows), out=offsets[1:])
    body = pa.BinaryArray.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(rng.bytes(int(offsets[-1])))]
    )
    return [body, pa.array(rng.integers(0, 1000, rows).astype(np.int32))]


def _reviews(rng: np.random.Generator, first: int, rows: int) -> list[pa.Array]:
    """Text of 216 to 270 bytes, which compresses to half, and a label: rows of 256 bytes."""
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(rng.integers(216, 271, rows), out=offsets[1:])
    letters = np.frombuffer(b"etaoinshrdlucmfw", np.uint8)[rng.integers(0, 16, int(offsets[-1]), np.uint8)]
    text = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))
    return [text, pa.array(rng.integers(0, 5, rows))]


SHAPES = {
    "tokens": Shape(
        524_292,
        16_384,
        pa.schema([("tokens", pa.list_(pa.int32())), ("label", pa.int64())]),
        tokens,
    ),
    "tabular": Shape(
        12_192_000,
        524_288,
        pa.schema(
            [(f"i{i}", pa.int64()) for i in range(4)]
            + [(f"f{i}", pa.float64()) for i in range(4)]
            + [("name", pa.string())]
        ),
        _tabular,
    ),
    "images": Shape(52_440, 2_048, pa.schema([("image", pa.binary()), ("label", pa.int32())]), images),
    "reviews": Shape(4_080_000, 170_000, pa.schema([("text", pa.string()), ("label", pa.int64())]), _reviews),
}

# Tables used only for shuffled epochs.
EPOCHS_ONLY = ("reviews",)


def ensure(
    name: str, scale: float, data: Path, progress: Callable[[str], None], shapes: Mapping[str, Shape] = SHAPES
) -> Table:
    """Returns the table `name` at `scale` under `data`; creates it if it is missing."""
    root = data.resolve() / f"v{FORMAT}-scale-{scale:g}" / name
    record = root / "bench.json"
    if record.exists():
        table = Table(**json.loads(record.read_text()))
        whole = all(Path(p).exists() for p in [table.metadata, *table.files])
        if whole and table.rows == FILES * _file_rows(shapes[name], scale):
            return table
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    table = _make(name, shapes[name], scale, root, progress)
    record.write_text(json.dumps(asdict(table), indent=1))
    return table


def _file_rows(shape: Shape, scale: float) -> int:
    return max(1, round(shape.rows * scale / FILES / shape.multiple)) * shape.multiple


def _make(name: str, shape: Shape, scale: float, root: Path, progress: Callable[[str], None]) -> Table:
    per_file = _file_rows(shape, scale)
    catalog = InMemoryCatalog("bench", warehouse=str(root))
    catalog.create_namespace("bench")
    table = catalog.create_table(
        f"bench.{name}",
        schema=shape.schema,
        location=str(root),
        properties={
            "write.parquet.compression-codec": "zstd",
            "write.parquet.row-group-limit": str(shape.row_group),
        },
    )
    arrow_bytes = 0
    for i in range(FILES):
        progress(f"{name}: writing file {i + 1} of {FILES}")
        rng = np.random.default_rng([FORMAT, i])
        batch = pa.Table.from_arrays(shape.fill(rng, i * per_file, per_file), schema=shape.schema)
        arrow_bytes += batch.nbytes
        table.append(batch)
    files = sorted(str(p) for p in root.glob("data/**/*.parquet"))
    return Table(
        name=name,
        metadata=table.metadata_location.removeprefix("file://"),
        files=files,
        rows=per_file * FILES,
        arrow_bytes=arrow_bytes,
        parquet_bytes=sum(Path(f).stat().st_size for f in files),
    )
