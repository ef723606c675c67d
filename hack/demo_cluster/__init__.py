# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The demo on a cluster: a TrainJob of the Kubeflow SDK trains a small model from a cached table and reports its speed.

'make demo-cluster' runs it inside the network of a cluster of hack/cluster, with KUBECONFIG set.
"""
