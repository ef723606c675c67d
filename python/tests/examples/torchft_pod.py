# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a pod of the runtime torchft-with-cache trains, for test_torchft.py: one replica of torchft_training.py."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

from kubeflow_datacache.torch.torchft import in_pod

# Other pods can't look up a pod's short name. torchft reads it when it is imported.
socket.gethostname = lambda: f"train-node-0-{os.environ['REPLICA_GROUP_ID']}"

if __name__ == "__main__":
    from torchft_training import replica

    endpoint, options, folder = json.loads(sys.argv[1])
    replica(endpoint, options, Path(folder), int(os.environ["REPLICA_GROUP_ID"]), fails=False, **in_pod())
