// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

const (
	overlay   = "manifests/overlays/without-runtime"
	namespace = "datacache-system"
	stock     = "torch-distributed"
)

var (
	cluster  *kubetest.Cluster
	program  string // path of the built manager
	lastPort atomic.Int64
)

func TestMain(m *testing.M) {
	lastPort.Store(19500)
	options := kubetest.Options{
		Tools: os.Getenv("DATACACHE_KUBE"), Scheme: v1alpha1.AddToScheme,
		CRDs:        []string{filepath.Join(repository, "manifests/base/crds/datacache.kubeflow.org_datacaches.yaml")},
		Controllers: []string{"deployment-controller", "replicaset-controller"},
	}
	os.Exit(kubetest.RunWithProgram(options, "./cmd/manager", nil, func(c *kubetest.Cluster, built string) int {
		cluster, program = c, built
		return m.Run()
	}))
}

const repository = "../.."

// rendered returns a file with the objects of an overlay of a checkout.
func rendered(t *testing.T, checkout, overlay string) string {
	t.Helper()
	return cluster.Render(t, filepath.Join(checkout, overlay))
}

// manager is a process that runs the manager's program.
type manager struct {
	cmd     *exec.Cmd
	ended   chan struct{}
	webhook string // host:port
	metrics string // host:port
	probes  string // host:port
}

// start runs a manager in the namespace and waits until it is ready. Cleanup kills it if it is still running.
func start(t *testing.T, program, namespace string, more ...string) *manager {
	t.Helper()
	m := launch(t, program, namespace, append([]string{"--rotate-certs=false", "--cert-dir=" + cluster.CertDir}, more...)...)
	m.isReady(t)
	return m
}

// launch is start without waiting; more names the certificates.
func launch(t *testing.T, program, namespace string, more ...string) *manager {
	t.Helper()
	kubeconfig, err := cluster.Kubeconfig("system:serviceaccount:"+namespace+":datacache-manager", "system:serviceaccounts", "system:authenticated")
	if err != nil {
		t.Fatal(err)
	}
	port := lastPort.Add(3)
	at := func(n int64) string { return net.JoinHostPort(cluster.Address, strconv.FormatInt(port+n, 10)) }
	m := &manager{webhook: at(0), metrics: at(1), probes: at(2), ended: make(chan struct{})}
	log, err := os.Create(filepath.Join(t.TempDir(), "manager.log"))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--kubeconfig=" + kubeconfig, "--namespace=" + namespace, "--cache-image=example.com/cacheserver:test", "--leader-elect",
		"--webhook-host=" + cluster.Address, fmt.Sprintf("--webhook-port=%d", port), "--metrics=" + m.metrics, "--probes=" + m.probes,
	}
	m.cmd = exec.Command(program, append(args, more...)...)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = m.cmd.Wait() // how it ended is in ProcessState
		close(m.ended)
	}()
	t.Cleanup(func() {
		_ = m.cmd.Process.Kill() // it may have ended
		<-m.ended
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("the manager at %s said last:\n%s", m.webhook, text[max(0, len(text)-4000):])
		}
		_ = log.Close() // opened for reading: closing can't lose data
	})
	return m
}

func (m *manager) isReady(t *testing.T) {
	t.Helper()
	kubetest.AwaitReady(t, m.probes, func() {
		select {
		case <-m.ended:
			t.Fatalf("the manager ended: %s", m.cmd.ProcessState)
		default:
		}
	})
}

// terminate ends the manager as the kubelet does after preStop, and waits for it.
func (m *manager) terminate(t *testing.T) {
	t.Helper()
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-m.ended
	if !m.cmd.ProcessState.Success() {
		t.Errorf("the manager at %s ended with %s", m.webhook, m.cmd.ProcessState)
	}
}

// cacheJob returns a TrainJob with a cache on the stock runtime.
func cacheJob(namespace, name string) *trainer.TrainJob {
	return &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: trainer.TrainJobSpec{
			RuntimeRef: trainer.RuntimeRef{Name: stock},
			Trainer:    &trainer.Trainer{NumNodes: new(int32(1))},
			Initializer: &trainer.Initializer{Dataset: &trainer.DatasetInitializer{
				StorageUri: new("cache://demo/reviews"),
				Env:        []corev1.EnvVar{{Name: "METADATA_LOC", Value: "s3://lake/reviews/metadata/00001.metadata.json"}, {Name: "CLUSTER_SIZE", Value: "3"}},
			}},
		},
	}
}

// twin waits for the stock runtime's twin.
func twin(t *testing.T) *trainer.ClusterTrainingRuntime {
	t.Helper()
	if err := cluster.InstallRuntimes(t.Context(), stock); err != nil {
		t.Fatal(err)
	}
	made := &trainer.ClusterTrainingRuntime{}
	cluster.Appear(t, made, "", wellknown.TwinName(stock))
	return made
}
