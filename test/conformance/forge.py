# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Changes to the metadata of finished tables: what a broken writer, a cut file or a wrong hand leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from lake import Made
from pyiceberg.manifest import DataFile, ManifestFile, write_manifest, write_manifest_list

_SYNC = 16  # bytes of an Avro file's sync marker

Change = Callable[[DataFile], None]
Relist = Callable[[list[ManifestFile]], list[ManifestFile]]


def path_of(uri: str) -> Path:
    """The path of a local URI."""
    return Path(urlparse(uri).path)


def cut_blocks(uri: str, blocks: int) -> None:
    """Cuts the last blocks off an Avro file, at a block's border: the file stays a valid Avro file."""
    path = path_of(uri)
    data = path.read_bytes()
    sync = data[-_SYNC:]
    parts = data.split(sync)[:-1]
    assert len(parts) > blocks, f"{uri} has {len(parts) - 1} blocks"
    path.write_bytes(b"".join(part + sync for part in parts[:-blocks]))


def set_summary(made: Made, changes: Mapping[str, Any]) -> None:
    """Changes entries of the current snapshot's summary; None removes one."""
    path = path_of(made.metadata)
    top = json.loads(path.read_text())
    (snapshot,) = [s for s in top["snapshots"] if s["snapshot-id"] == top["current-snapshot-id"]]
    summary = {**snapshot["summary"], **{name: str(value) for name, value in changes.items()}}
    snapshot["summary"] = {name: value for name, value in summary.items() if changes.get(name, "") is not None}
    path.write_text(json.dumps(top))


def set_manifests(made: Made, relist: Relist) -> None:
    """Writes the manifest list again, one Avro block per manifest, with the manifests that relist returns."""
    table = made.open()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = relist(snapshot.manifests(table.io))
    out = table.io.new_output(snapshot.manifest_list)
    ids = snapshot.snapshot_id, snapshot.parent_snapshot_id, snapshot.sequence_number
    with write_manifest_list(2, out, *ids, "deflate") as lines:
        for manifest in manifests:
            lines.add_manifests([manifest])


def set_files(made: Made, change: Change) -> None:
    """Writes all manifests and the manifest list again, with changed data files; the list counts them correctly."""
    table = made.open()

    def again(manifest: ManifestFile) -> ManifestFile:
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        spec = table.specs()[manifest.partition_spec_id]
        out = table.io.new_output(manifest.manifest_path)
        added = manifest.added_snapshot_id
        assert added is not None
        with write_manifest(2, spec, table.schema(), out, added, "deflate") as lines:
            for entry in entries:
                change(entry.data_file)
                lines.add_entry(entry)
        written = lines.to_manifest_file()
        written.sequence_number, written.min_sequence_number = manifest.sequence_number, manifest.min_sequence_number
        return written

    set_manifests(made, lambda manifests: [again(m) for m in manifests])


def set_footer_rows(uri: str, rows: int, claimed: int) -> None:
    """Changes the number of rows of a Parquet file of one row group in its footer, but not the row group's."""
    path = path_of(uri)
    data = path.read_bytes()
    before, after = (b"\x16" + _varint(2 * n) + b"\x19\x1c" for n in (rows, claimed))  # num_rows, list of one row group
    assert data.count(before) == 1
    assert len(before) == len(after)
    path.write_bytes(data.replace(before, after))


def _varint(n: int) -> bytes:
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def set_footer_bytes(uri: str, before: bytes, after: bytes) -> None:
    """Replaces bytes in a Parquet file's footer, such as those of a bound in its statistics."""
    path = path_of(uri)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert data.count(before, footer) > 0
    assert len(before) == len(after)
    path.write_bytes(data[:footer] + data[footer:].replace(before, after))
