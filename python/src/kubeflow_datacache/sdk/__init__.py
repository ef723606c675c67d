# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""datacache in the Kubeflow SDK (0.5.0): request a cache in train(), then read its logs and status.

from kubeflow.trainer import CustomTrainer, Initializer, TrainerClient
from kubeflow_datacache.sdk import ArrowCacheDatasetInitializer, cache_logs, cache_status

client = TrainerClient()
job = client.train(
    runtime="torch-distributed",
    initializer=Initializer(dataset=ArrowCacheDatasetInitializer(
        cluster_size=5, metadata_loc="s3://bucket/reviews/metadata/00003.metadata.json",
        schema_name="demo", table_name="reviews", columns=["content", "label"], filter="label >= 1")),
    trainer=CustomTrainer(func=train))
for line in cache_logs(client, job, follow=True):
    print(line)
print(cache_status(client, job))

Files instead of a table, mounted into every container:

    Initializer(dataset=FluidDatasetInitializer("s3://bucket/imagenet", "/data", cache_quota="100Gi"))
"""

from kubeflow_datacache.extras import needs

with needs("sdk", "kubeflow_datacache.sdk"):
    from kubeflow_datacache.sdk.derive import Derive
    from kubeflow_datacache.sdk.fluid import FluidDatasetInitializer
    from kubeflow_datacache.sdk.initializer import ArrowCacheDatasetInitializer
    from kubeflow_datacache.sdk.status import CacheStatus, cache_logs, cache_status, step_logs

__all__ = [
    "ArrowCacheDatasetInitializer",
    "CacheStatus",
    "Derive",
    "FluidDatasetInitializer",
    "cache_logs",
    "cache_status",
    "step_logs",
]
