// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e runs training jobs on a real cluster, from the Kubeflow SDK to the rows that ranks got.
//
// The cluster has stock JobSet, LeaderWorkerSet and Trainer with upstream's data-cache overlay, datacache from manifests/ (overlay
// without-runtime), the images of hack/images, and an object store whose address and keys are in the Secret object-store/store:
// AWS_ENDPOINT_URL, AWS_REGION and keys. 'hack/cluster/cluster up' and 'install' make one on a single machine, together with scratch
// volumes (manifests/scratch-volumes), local-path-provisioner, and Fluid with its CSI plugin.
//
//	DATACACHE_CLUSTER=DIR go test ./test/e2e     the cluster that hack/cluster has in the folder
//	E2E_KUBECONFIG=FILE go test ./test/e2e       any other cluster, whose pods can be reached from here; if the object
//	                                             store's address can't, E2E_STORE=URL is another one for it
//
// With neither variable set every test skips. With one of them set no test may skip, except those that power nodes off, inspect
// nodes' disks or sign tokens, the test of the object cache if the cluster has one already (of its parts, those that use hack/cluster's nodes
// and images are left out elsewhere), that of the Helm chart, which needs to know how datacache was installed, and those of files where there is
// no Fluid or, on this machine, no /dev/fuse. What was not tried is printed at the end.
//
// TestTokensAreRenewed is no part of 'make e2e': it takes half an hour, and 'make token-renewals' runs it. Nor is TestRelease.
// 'make release-rehearsal' runs it, with E2E_RELEASE=HOST:PORT/PATH of a release's images, which must be there and is never skipped over.
package e2e
