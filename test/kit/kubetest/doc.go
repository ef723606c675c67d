// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubetest runs a Kubernetes control plane with the stock JobSet, LeaderWorkerSet and Trainer for tests.
//
// Real processes, as built by 'make kube-tools', are etcd, kube-apiserver, kube-controller-manager (with the controllers that a TrainJob
// needs), kube-scheduler, and the three managers. The managers' CRDs, RBAC and webhooks come from the manifests that a user installs, and
// each manager has the permissions of its own service account. The only changes to the manifests are the webhooks' addresses (a URL
// instead of a Service), and the managers' ports and certificates.
//
// Only the kubelet is simulated. There are two nodes, and Kubelet sets the status of each pod bound to them like a real kubelet:
// addresses, phases, readiness, exit codes, restarts, logs. Ports are forwarded to what Kubelet.Connect says. No container runs; a test's Play returns what the containers would do. There
// is no pod network and no DNS: if a test needs a pod that responds, it gives it the address of its own server.
//
// All tests of a package share one cluster, and each has its own namespace:
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
// All programs listen on one loopback address of the cluster (in 127.0.0.0/8, so Linux only). They end with the test binary even if that
// is killed; only then the cluster's folder of temporary files remains.
package kubetest
