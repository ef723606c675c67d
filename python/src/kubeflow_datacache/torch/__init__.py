# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Datasets and a DataLoader for torch: the same batches in the same order for any number of workers and ranks.

from kubeflow_datacache import DataCache
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset

if __name__ == "__main__":  # workers import the script
    cache = DataCache.from_env()
    loader = StreamingDataLoader(StreamingDataset(cache, global_batch_size=1024, seed=7), num_workers=2)
    for epoch in range(3):
        loader.set_epoch(epoch)
        for batch in loader:  # TensorBatch: a dict of tensors
            train(batch["content"], batch["label"])
    state = loader.state_dict()
"""

from kubeflow_datacache.extras import needs

with needs("torch", "kubeflow_datacache.torch"):
    from kubeflow_datacache.torch.arrow_dataset import ArrowCacheDataset
    from kubeflow_datacache.torch.batch import Columns, TensorBatch
    from kubeflow_datacache.torch.collective import broadcast
    from kubeflow_datacache.torch.dataset import StreamingDataset
    from kubeflow_datacache.torch.loader import StreamingDataLoader
    from kubeflow_datacache.torch.pad import Pad
    from kubeflow_datacache.torch.table import ColumnarRows, Row, TableDataset

__all__ = [
    "ArrowCacheDataset",
    "ColumnarRows",
    "Columns",
    "Pad",
    "Row",
    "StreamingDataLoader",
    "StreamingDataset",
    "TableDataset",
    "TensorBatch",
    "broadcast",
]
