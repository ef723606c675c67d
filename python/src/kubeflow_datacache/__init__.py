# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training data from a datacache: shuffled, sharded, resumable Arrow batches over Arrow Flight.

from kubeflow_datacache import DataCache

cache = DataCache.from_env()                      # or DataCache("grpc://127.0.0.1:50051")
loader = cache.loader(global_batch_size=1024, seed=7, columns=["content", "label"])
for epoch in range(3):
    loader.set_epoch(epoch)
    for batch in loader:
        train(batch.torch())
"""

from importlib.metadata import PackageNotFoundError, version

from kubeflow_datacache.balancing import BalancedLoader
from kubeflow_datacache.buckets import LengthBuckets
from kubeflow_datacache.cache import DataCache
from kubeflow_datacache.commits import Committed, commit
from kubeflow_datacache.credentials import CredentialOptions
from kubeflow_datacache.dataset import Dataset
from kubeflow_datacache.derive import derive
from kubeflow_datacache.errors import (
    CacheFailedError,
    ColumnError,
    DataCacheError,
    DatasetChangedError,
    ForkedError,
    RefusedError,
    RowsError,
    StateError,
    TransformError,
    UnreachableError,
)
from kubeflow_datacache.loader import Loader
from kubeflow_datacache.mixture import MixLoader, Mixture, PackMixLoader, mix
from kubeflow_datacache.monitoring.stats import Stats
from kubeflow_datacache.options import LoaderOptions
from kubeflow_datacache.order.pack import Counts, Pack
from kubeflow_datacache.order.split import Split
from kubeflow_datacache.packing import PackLoader, PackOptions
from kubeflow_datacache.proof import Proof, VerifiedEpoch, verify
from kubeflow_datacache.puts import Published, Put, put
from kubeflow_datacache.rows.batch import Batch
from kubeflow_datacache.rows.packed import Packed, PackedBatch
from kubeflow_datacache.selection import Selection
from kubeflow_datacache.table import Table
from kubeflow_datacache.world import World

try:
    __version__ = version("kubeflow-datacache")
except PackageNotFoundError:  # not installed, imported from a checkout
    __version__ = "0+unknown"

__all__ = [
    "BalancedLoader",
    "Batch",
    "CacheFailedError",
    "ColumnError",
    "Committed",
    "Counts",
    "CredentialOptions",
    "DataCache",
    "DataCacheError",
    "Dataset",
    "DatasetChangedError",
    "ForkedError",
    "LengthBuckets",
    "Loader",
    "LoaderOptions",
    "MixLoader",
    "Mixture",
    "Pack",
    "PackLoader",
    "PackMixLoader",
    "PackOptions",
    "Packed",
    "PackedBatch",
    "Proof",
    "Published",
    "Put",
    "RefusedError",
    "RowsError",
    "Selection",
    "Split",
    "StateError",
    "Stats",
    "Table",
    "TransformError",
    "UnreachableError",
    "VerifiedEpoch",
    "World",
    "__version__",
    "commit",
    "derive",
    "mix",
    "put",
    "verify",
]
