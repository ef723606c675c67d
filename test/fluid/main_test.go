// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fluid

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	fluidapi "github.com/fluid-cloudnative/fluid/api/v1alpha1"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller"
	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
	"github.com/kubeflow/datacache/webhook"
)

const (
	systemNamespace = "datacache-system"
	fluidNamespace  = "fluid-system"
	webhookPort     = 19470
	statusPort      = 19471
	overlay         = "testdata"
)

var (
	cluster *kubetest.Cluster
	gate    string // the program cacheserver
	tools   = os.Getenv("DATACACHE_FLUID")
	asked   kubetest.Requests // by datacache's manager
)

func statusURL() string { return fmt.Sprintf("http://%s:%d", cluster.Address, statusPort) }

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	if tools == "" {
		fmt.Fprintln(os.Stderr, "fluid: run 'make fluid-tools', and the tests by make or with DATACACHE_FLUID=$(make -s print-FLUID)")
		os.Exit(1)
	}
	options := kubetest.Options{
		Tools:       os.Getenv("DATACACHE_KUBE"),
		CRDs:        []string{"../../manifests/base/crds/datacache.kubeflow.org_datacaches.yaml"},
		Controllers: []string{"persistentvolume-binder-controller", "persistentvolume-protection-controller", "daemonset-controller", "resourcequota-controller"},
		Scheme: func(scheme *runtime.Scheme) error {
			return errors.Join(v1alpha1.AddToScheme(scheme), fluidapi.AddToScheme(scheme))
		},
	}
	os.Exit(proctest.Run("fluid", false, func(binary string) int {
		gate = binary
		return kubetest.Run(options, func(c *kubetest.Cluster) int { return run(m, c) })
	}))
}

// run installs datacache and runs its manager in this process, with the permissions of its own service account.
func run(m *testing.M, c *kubetest.Cluster) int {
	cluster = c
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // called from TestMain, which has no context
	defer cancel()
	ended := make(chan error, 1)
	if err := startManager(ctx, c, ended); err != nil {
		fmt.Fprintln(os.Stderr, "fluid:", err)
		return 1
	}
	code := m.Run()
	cancel()
	if err := <-ended; err != nil {
		fmt.Fprintln(os.Stderr, "fluid: the manager:", err)
		return 1
	}
	return code
}

func startManager(ctx context.Context, c *kubetest.Cluster, ended chan<- error) error {
	if err := install(ctx, c, func(dir string) ([]byte, error) {
		return exec.CommandContext(ctx, c.Kubectl(), "kustomize", overlay).Output()
	}, fmt.Sprintf("%s:%d", c.Address, webhookPort)); err != nil {
		return err
	}
	reach, err := c.ConfigFor("system:serviceaccount:"+systemNamespace+":datacache-manager", "system:serviceaccounts", "system:authenticated")
	if err != nil {
		return err
	}
	reach.QPS, reach.Burst = 200, 400 // as with the flags of cmd/manager
	reach.Wrap(asked.Count)
	scheme := runtime.NewScheme()
	if err := controller.AddToScheme(scheme); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(reach, ctrl.Options{
		Scheme:        scheme,
		Cache:         controller.CacheOptions(),
		Metrics:       metricsserver.Options{BindAddress: "0"},
		Controller:    config.Controller{SkipNameValidation: new(true)},
		WebhookServer: ctrlwebhook.NewServer(ctrlwebhook.Options{Host: c.Address, Port: webhookPort, CertDir: c.CertDir}),
	})
	if err != nil {
		return err
	}
	if err := webhook.Setup(mgr, inject.Settings{StatusURL: statusURL()}, nil); err != nil {
		return err
	}
	if err := controller.Setup(ctx, mgr, controller.Options{
		Image: "example.com/cacheserver:test", Namespace: systemNamespace, Registry: prometheus.NewRegistry(),
		StatusAddress: fmt.Sprintf("%s:%d", c.Address, statusPort),
	}); err != nil {
		return err
	}
	go func() { ended <- mgr.Start(ctx) }()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return errors.New("the manager's informers did not sync")
	}
	return nil
}

// install applies rendered manifests without their Deployments.
func install(ctx context.Context, c *kubetest.Cluster, render func(dir string) ([]byte, error), webhooks string) error {
	dir, err := os.MkdirTemp("", "fluid-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	text, err := render(dir)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "objects.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	return c.Install(ctx, file, webhooks)
}

// startFluid installs Fluid as a user would, and runs its controllers of Datasets, thin runtimes and Alluxio until the end of the test. Its webhook, which
// changes pods that ask for a sidecar, and its CSI plugin don't run.
func startFluid(t *testing.T) {
	t.Helper()
	manifest, err := os.ReadFile(filepath.Join(tools, "fluid.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for document := range strings.SplitSeq(string(manifest), "\n---\n") {
		if !strings.Contains(document, "kind: MutatingWebhookConfiguration") && !strings.Contains(document, "kind: DaemonSet") && !strings.Contains(document, "helm.sh/hook") {
			kept = append(kept, document)
		}
	}
	namespace := fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", fluidNamespace)
	err = install(t.Context(), cluster, func(string) ([]byte, error) {
		return []byte(namespace + "---\n" + strings.Join(kept, "\n---\n")), nil
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir() // the controllers look for charts in the home directory
	if err := os.Symlink(filepath.Join(tools, "charts"), filepath.Join(home, "charts")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dataset-controller", "thinruntime-controller", "alluxioruntime-controller"} {
		kubeconfig, err := cluster.Kubeconfig("system:serviceaccount:"+fluidNamespace+":"+name, "system:serviceaccounts", "system:authenticated")
		if err != nil {
			t.Fatal(err)
		}
		env := []string{
			"KUBECONFIG=" + kubeconfig, "PATH=" + filepath.Join(tools, "bin") + ":" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + t.TempDir(),
			"HELM_DRIVER=configmap", "MOUNT_ROOT=/var/lib/fluid-test", "MY_POD_NAMESPACE=" + fluidNamespace,
			"ALLUXIO_RUNTIME_IMAGE_ENV=" + alluxioImage, "ALLUXIO_FUSE_IMAGE_ENV=" + alluxioImage, "ALLUXIO_MOUNT_CONFIG_STORAGE=configmap",
		}
		proctest.Start(t, name, env, filepath.Join(tools, "bin", name), "start", "--development=false", "--metrics-addr=0", "--pprof-addr=")
	}
}
