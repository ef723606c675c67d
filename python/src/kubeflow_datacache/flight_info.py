# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The head's FlightInfo: which data nodes hold the requested rows, and the tickets to fetch them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as fl

from kubeflow_datacache.dataset import Dataset
from kubeflow_datacache.errors import DataCacheError
from kubeflow_datacache.order.split import Placement, Split, placement

_VERSION = 1


@dataclass(frozen=True)
class Endpoint:
    """A Flight endpoint: the data node's index, its address as a URI, and the ticket to send there."""

    node: int
    location: str
    ticket: bytes


@dataclass(frozen=True, kw_only=True)
class FlightInfo:
    """A parsed FlightInfo. placement: the data node of each row. narrow: whether the cache offers shorter integers.

    swept: whether not all rows stay in the memory of the data nodes.
    """

    dataset: Dataset
    schema: pa.Schema
    placement: Placement
    endpoints: tuple[Endpoint, ...]
    records: int
    nbytes: int
    narrow: bool = False
    swept: bool = False

    @classmethod
    def parse(cls, info: fl.FlightInfo) -> Self:
        """Parses a FlightInfo of wire contract v1."""
        metadata = json.loads(info.app_metadata or b"{}")
        if metadata.get("v") != _VERSION:
            raise DataCacheError(
                f"the head speaks wire contract {metadata.get('v')!r}, this client {_VERSION}: is the address that of a"
                " datacache head of this release? Update kubeflow-datacache if the server is newer"
            )
        dataset = _dataset(metadata)
        bounds = tuple((start, end) for start, end in metadata["nodes"])
        return cls(
            dataset=dataset,
            schema=info.schema,
            placement=placement(bounds, dataset.split, metadata.get("filtered_rows", dataset.rows)),
            endpoints=tuple(_endpoint(e) for e in info.endpoints if e.locations),  # without: the head itself
            records=info.total_records,
            nbytes=info.total_bytes,
            narrow=metadata.get("narrow", False),
            swept=metadata.get("swept", False),
        )

    @property
    def row_bytes(self) -> float:
        """Estimated Arrow bytes per row; 1.0 if there are no rows."""
        return max(1.0, self.nbytes / self.records) if self.records > 0 else 1.0


def _dataset(metadata: dict[str, Any]) -> Dataset:
    """Parses the dataset; fields that this release does not know are ignored."""
    dataset, selection = metadata["dataset"], metadata.get("selection", {})
    return Dataset(
        table_uuid=dataset["table_uuid"],
        snapshot=dataset["snapshot"],
        fingerprint=dataset["fingerprint"],
        filter=dataset.get("filter", ""),
        rows=metadata["rows"],
        row_filter=selection.get("filter", ""),
        split=Split.parse(selection["split"]) if "split" in selection else None,
    )


def _endpoint(endpoint: fl.FlightEndpoint) -> Endpoint:
    uri = endpoint.locations[0].uri
    return Endpoint(
        node=json.loads(endpoint.app_metadata)["node"],
        location=uri.decode() if isinstance(uri, bytes) else uri,
        ticket=endpoint.ticket.ticket,
    )
