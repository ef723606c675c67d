// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// The ports on the cluster's address. They are below 32768, and so outside the range for outgoing connections.
const (
	etcdPort      = "12379"
	etcdPeerPort  = "12380"
	apiServerPort = "16443"
	// nextAPIServerPort is that of StartWithNewKey.
	nextAPIServerPort = "16444"
	kubeletPort       = 20250

	serviceRange = "10.96.0.0/16" // for ClusterIPs, which are not routed here
)

// controllers are the controllers of kube-controller-manager that a TrainJob, its cache and its namespace need.
var controllers = []string{
	"job-controller",
	"statefulset-controller",
	"endpointslice-controller",
	"garbage-collector-controller",
	"namespace-controller",
	"serviceaccount-controller",
	"root-ca-certificate-publisher-controller",
	"disruption-controller",
	"persistentvolumeclaim-protection-controller",
	"ttl-after-finished-controller",
	"clusterrole-aggregation-controller",
}

// startStore starts etcd and kube-apiserver and waits until they are serving.
func (c *Cluster) startStore(ctx context.Context) error {
	client, peer := "http://"+c.Address+":"+etcdPort, "http://"+c.Address+":"+etcdPeerPort
	_, err := c.processes.run("etcd", c.tool("etcd"), nil,
		"--data-dir="+c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	if err != nil {
		return err
	}
	return c.startAPIServer(ctx, "kube-apiserver", apiServerPort, c.pki("tokens.key"))
}

// StartWithNewKey starts another API server on the same store, as while an administrator replaces them one after the other: it signs the tokens of
// ServiceAccounts with another key, and accepts those of the first one's too. It runs until the cluster stops. Call it once.
func (c *Cluster) StartWithNewKey(ctx context.Context) (*rest.Config, error) {
	_, key, err := c.ca.user("new tokens", nil) // any key will do
	if err != nil {
		return nil, err
	}
	if err := writeFiles(c.CertDir, map[string][]byte{"new-tokens.key": key}); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(c.Config)
	config.Host = "https://" + c.Address + ":" + nextAPIServerPort
	return config, c.startAPIServer(ctx, "kube-apiserver-2", nextAPIServerPort, c.pki("new-tokens.key"), c.pki("tokens.key"))
}

// startAPIServer starts a kube-apiserver and waits until it is serving. It signs tokens with the first key.
func (c *Cluster) startAPIServer(ctx context.Context, name, port string, keys ...string) error {
	args := []string{"--service-account-signing-key-file=" + keys[0]}
	for _, key := range keys {
		args = append(args, "--service-account-key-file="+key)
	}
	server, err := c.processes.run(name, c.tool("kube-apiserver"), nil, append(args,
		"--etcd-servers=http://"+c.Address+":"+etcdPort,
		"--bind-address="+c.Address, "--advertise-address="+c.Address, "--secure-port="+port,
		"--endpoint-reconciler-type=none", // it would reject a loopback address, and the Service "kubernetes" is not used
		"--tls-cert-file="+c.pki("tls.crt"), "--tls-private-key-file="+c.pki("tls.key"),
		"--client-ca-file="+c.pki("ca.crt"),
		"--authorization-mode=RBAC", "--allow-privileged",
		"--service-cluster-ip-range="+serviceRange,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--kubelet-certificate-authority="+c.pki("ca.crt"),
		"--kubelet-client-certificate="+c.pki("kubelet-client.crt"), "--kubelet-client-key="+c.pki("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--profiling=false")...)
	if err != nil {
		return err
	}
	return c.await(ctx, "the API server to be ready", func(ctx context.Context) error {
		if err := server.check(); err != nil {
			return err
		}
		status, said, err := c.ask(ctx, http.MethodGet, "https://"+c.Address+":"+port+"/readyz")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("/readyz says %d: %s", status, said)
		}
		return err
	})
}

// startControllers starts kube-controller-manager, with additional controllers, and the scheduler. The garbage collector discovers
// kinds when it starts and every 30 s after that, so install CRDs first.
func (c *Cluster) startControllers(options Options) error {
	kubeconfig, err := c.Kubeconfig("system:kube-controller-manager", "system:masters")
	if err != nil {
		return err
	}
	_, err = c.processes.run("kube-controller-manager", c.tool("kube-controller-manager"), nil,
		"--kubeconfig="+kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--controllers="+strings.Join(slices.Concat(controllers, options.Controllers), ","),
		"--root-ca-file="+c.pki("ca.crt"), "--service-account-private-key-file="+c.pki("tokens.key"),
		// Not configurable: the job controller waits a second between syncs of one job, and 10 s after each failed pod.
		"--kube-api-qps=500", "--kube-api-burst=500")
	if err != nil {
		return err
	}
	return c.startScheduler(options)
}

// startScheduler starts kube-scheduler, or the one with Coscheduling.
func (c *Cluster) startScheduler(options Options) error {
	kubeconfig, err := c.Kubeconfig("system:kube-scheduler", "system:masters")
	if err != nil {
		return err
	}
	args := []string{"--secure-port=0", "--authentication-tolerate-lookup-failure"}
	if options.Schedulers == "" {
		args = append(args, "--kubeconfig="+kubeconfig, "--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=500")
		_, err = c.processes.run("kube-scheduler", c.tool("kube-scheduler"), nil, args...)
		return err
	}
	file := c.path("coscheduling.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, coscheduling, kubeconfig), 0o600); err != nil {
		return err
	}
	_, err = c.processes.run("coscheduling", filepath.Join(options.Schedulers, "bin", "coscheduling"), nil, append(args, "--config="+file)...)
	return err
}

// coscheduling is the scheduler's configuration, as scheduler-plugins' documentation has it, for a kubeconfig.
const coscheduling = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %s, qps: 500, burst: 500}
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint: {enabled: [{name: Coscheduling}]}
    queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: "*"}]}
  pluginConfig:
  - name: Coscheduling
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: CoschedulingArgs, permitWaitingTimeSeconds: 5}
`

// ask sends a request as the administrator.
func (c *Cluster) ask(ctx context.Context, method, url string) (status int, text string, err error) {
	return proctest.Request(ctx, c.http, method, url)
}

// await calls ask until it returns nil, a program or ctx has ended, or the time limit is over.
func (c *Cluster) await(ctx context.Context, what string, ask func(context.Context) error) error {
	var dead error
	err := deadline.StartLong(Deadline).Poll(func() error {
		err := ask(ctx)
		if dead = cmp.Or(c.processes.check(), ctx.Err()); dead != nil {
			return nil //nolint:nilerr // the wait ends
		}
		return err
	})
	if err = cmp.Or(dead, err); err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}

func (c *Cluster) tool(name string) string { return filepath.Join(c.tools, "bin", name) }
func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }
func (c *Cluster) pki(name string) string  { return filepath.Join(c.CertDir, name) }
