// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller"
	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/internal/overview/reviewed"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
	"github.com/kubeflow/datacache/webhook"
)

const (
	image           = "example.com/cacheserver:test"
	systemNamespace = "datacache-system"
	webhookPort     = 19450
	// overlay is the overlay to install, without its Deployment: the manager runs in this process.
	overlay = "../../manifests/overlays/without-runtime"
)

var (
	cluster *kubetest.Cluster
	leader  *running
	other   *running // answers the webhook, and leads when the leader has stopped
	heads   = &network{servers: map[types.NamespacedName]string{}}
	asked   kubetest.Requests // by the manager

	cacheserver string // the program
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard()) // it would write to os.Stderr, which testing replaces under -json
	options := kubetest.Options{
		Tools:  os.Getenv("DATACACHE_KUBE"),
		CRDs:   []string{"../../manifests/base/crds/datacache.kubeflow.org_datacaches.yaml"},
		Scheme: v1alpha1.AddToScheme,
		// makes the claims of spill volumes
		Controllers: []string{"ephemeral-volume-controller"},
	}
	os.Exit(proctest.Run("controlplane", false, func(binary string) int {
		cacheserver = binary
		return kubetest.Run(options, func(c *kubetest.Cluster) int { return run(m, c) })
	}))
}

// run runs the tests and returns their exit code.
func run(m *testing.M, c *kubetest.Cluster) int {
	cluster = c
	c.Kubelet.Connect(heads.dial)
	stop, err := startManagers(c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		return 1
	}
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "controlplane: the manager:", err)
		return 1
	}
	return code
}

// startManagers installs the overlay and runs two managers, as its Deployment does, with the permissions of the manager's own service
// account: the first one leads, the second one serves the webhook. stop ends them and returns their errors.
func startManagers(c *kubetest.Cluster) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // called from TestMain, which has no context
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	if err := install(ctx, c); err != nil {
		return nil, err
	}
	if err := leadAndFollow(ctx, c); err != nil {
		return nil, err
	}
	return func() error { cancel(); return errors.Join(leader.stop(), other.stop()) }, nil
}

// leadAndFollow starts leader and, when it leads, other.
func leadAndFollow(ctx context.Context, c *kubetest.Cluster) (err error) {
	if leader, err = startManager(ctx, c, webhookPort+1); err != nil {
		return err
	}
	select {
	case <-leader.Elected():
	case <-time.After(deadline.Limit()):
		return errors.New("the first manager does not lead")
	}
	other, err = startManager(ctx, c, webhookPort)
	return err
}

// running is a manager that is running.
type running struct {
	ctrl.Manager
	metrics *prometheus.Registry
	stop    func() error  // stops it, at the first call, and returns its error
	stopped chan struct{} // closed by stop
}

func startManager(ctx context.Context, c *kubetest.Cluster, port int) (*running, error) {
	metrics := prometheus.NewRegistry()
	mgr, err := newManager(ctx, c, port, metrics)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended, stopped := make(chan error, 1), make(chan struct{})
	go func() { ended <- mgr.Start(ctx) }()
	stop := sync.OnceValue(func() error { cancel(); defer close(stopped); return <-ended })
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return nil, errors.Join(errors.New("the manager's informers did not sync"), stop())
	}
	return &running{mgr, metrics, stop, stopped}, nil
}

func install(ctx context.Context, c *kubetest.Cluster) error {
	rendered, err := exec.CommandContext(ctx, c.Kubectl(), "kustomize", overlay).Output()
	if err != nil {
		return fmt.Errorf("render %s: %w", overlay, err)
	}
	dir, err := os.MkdirTemp("", "controlplane-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "overlay.yaml")
	if err := os.WriteFile(file, rendered, 0o600); err != nil {
		return err
	}
	return c.Install(ctx, file, fmt.Sprintf("%s:%d", c.Address, webhookPort))
}

func newManager(ctx context.Context, c *kubetest.Cluster, port int, metrics *prometheus.Registry) (ctrl.Manager, error) {
	reach, err := c.ConfigFor("system:serviceaccount:"+systemNamespace+":datacache-manager", "system:serviceaccounts", "system:authenticated")
	if err != nil {
		return nil, err
	}
	reach.QPS, reach.Burst = 200, 400 // as with the flags of cmd/manager
	reach.Wrap(asked.Count)
	reach.Wrap(keysOfNextServer)
	scheme := runtime.NewScheme()
	if err := controller.AddToScheme(scheme); err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(reach, ctrl.Options{
		Scheme:        scheme,
		Cache:         controller.CacheOptions(),
		Metrics:       metricsserver.Options{BindAddress: "0"},
		Controller:    config.Controller{SkipNameValidation: new(true)},
		WebhookServer: ctrlwebhook.NewServer(ctrlwebhook.Options{Host: c.Address, Port: port, CertDir: c.CertDir}),

		LeaderElection:                true, // as in cmd/manager
		LeaderElectionID:              "datacache-manager",
		LeaderElectionNamespace:       systemNamespace,
		LeaderElectionReleaseOnCancel: true,
		// Longer than a busy machine may leave the leader without processor time. A leader that stops releases its lease at once.
		LeaseDuration: new(3 * time.Minute),
		RenewDeadline: new(2 * time.Minute),
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(webhook.Setup(mgr, inject.Settings{}, nil), reviewed.Setup(ctx, mgr)); err != nil {
		return nil, err
	}
	return mgr, controller.Setup(ctx, mgr, controller.Options{
		Image: image, Namespace: systemNamespace, Dial: heads.dial, Registry: metrics, Patience: time.Second, IdleAfter: 3 * time.Second,
	})
}

// network replaces the pod network: it connects the controller to the heads and steps that tests run. It is safe for concurrent use.
type network struct {
	mu      sync.Mutex
	servers map[types.NamespacedName]string // host:port by pod
}

// headPod is the name that LWS gives to the first pod of a cache's first group.
func headPod(namespace, cache string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: wellknown.CacheName(cache) + "-0"}
}

func (n *network) dial(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	place := client.ObjectKeyFromObject(pod)
	n.mu.Lock()
	server := n.servers[place]
	n.mu.Unlock()
	if server == "" {
		return nil, fmt.Errorf("nothing listens in pod %s", place)
	}
	return (&net.Dialer{Timeout: time.Minute}).DialContext(ctx, "tcp", server)
}

// serve connects a cache's first head to the server from now on; "" to none.
func (n *network) serve(namespace, cache, server string) { n.lead(headPod(namespace, cache), server) }

// lead connects a pod to the server from now on; "" to none.
func (n *network) lead(pod types.NamespacedName, server string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.servers[pod] = server
}
