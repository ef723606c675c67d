// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e runs training jobs on a real cluster, from the Kubeflow SDK to the rows that ranks got.
//
// The cluster has stock JobSet, LeaderWorkerSet and Trainer with upstream's data-cache overlay, datacache from manifests/
// (overlay without-runtime), the images of hack/images, and an object store that the Secret object-store/store tells of:
// AWS_ENDPOINT_URL, AWS_REGION and keys. 'hack/cluster/cluster up' and 'install' make one on a single machine, with scratch volumes
// (manifests/scratch-volumes) and local-path-provisioner besides.
//
//	DATACACHE_CLUSTER=DIR go test ./test/e2e     the cluster that hack/cluster has in the folder
//	E2E_KUBECONFIG=FILE go test ./test/e2e       any other, whose pods can be reached from here; where the object
//	                                             store's can't, E2E_STORE=URL says how it is reached
//
// With neither set every test skips; with one of them set no test may, but those that power nodes off, look at nodes' disks or sign tokens,
// and that of the object cache where there is one already.
package e2e
