// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubetest runs a Kubernetes control plane with the stock JobSet, LeaderWorkerSet and Trainer for tests.
//
// Real, each a process of its own as 'make kube-tools' built it: etcd, kube-apiserver, kube-controller-manager (the
// controllers that a TrainJob meets), kube-scheduler, and the three managers with their CRDs, RBAC and webhooks from the
// manifests that a user installs, under the rights of their own service accounts. Changed in those manifests are only the
// webhooks' addresses (a URL in place of a Service), and the managers' ports and certificates.
//
// Played: the kubelet, and it alone. Two nodes exist, and Kubelet says of each pod bound to them what a real one would:
// addresses, phases, readiness, exit codes, restarts, logs. No container runs; a test says by a Play what they would do.
// There is no pod network and no DNS either: a test that wants a pod to answer gives it the address of a server of its own.
//
// One cluster serves all tests of a package, and namespaces keep them apart:
//
//	var cluster *kubetest.Cluster
//
//	func TestMain(m *testing.M) {
//		options := kubetest.Options{Tools: os.Getenv("DATACACHE_KUBE")}
//		os.Exit(kubetest.Run(options, func(c *kubetest.Cluster) int { cluster = c; return m.Run() }))
//	}
//
//	func TestSomething(t *testing.T) {
//		namespace := cluster.Namespace(t)
//		cluster.Kubelet.Play(namespace, kubetest.Succeed)
//		...
//	}
//
// Everything listens on one loopback address of the cluster's own (of 127.0.0.0/8, so Linux only), ends with the test
// binary even when that is killed; only then its folder of temporary files stays.
package kubetest
