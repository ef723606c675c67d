// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	fluidapi "github.com/fluid-cloudnative/fluid/api/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

const clusterScript = "../../hack/cluster/cluster"

// cluster is the cluster for the tests; nil: none was named, and the tests skip.
var cluster *site

// site is a cluster and how to access it. It is safe for concurrent use.
type site struct {
	kubetest.Objects // with the administrator's uncached client

	config *rest.Config
	logs   kubernetes.Interface
	sdk    *notebook
	python string // an interpreter with the Kubeflow SDK
	file   string // the administrator's kubeconfig
	folder string // the folder of hack/cluster; "": another kind of cluster
}

func TestMain(m *testing.M) {
	file, folder := os.Getenv("E2E_KUBECONFIG"), os.Getenv("DATACACHE_CLUSTER")
	if file == "" && folder != "" {
		fmt.Fprintln(os.Stderr, "e2e:", runInside(folder)) // it returns only if it failed
		os.Exit(1)
	}
	if file != "" {
		var err error
		if cluster, err = connect(file, folder); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			os.Exit(1)
		}
	}
	code := m.Run()
	for _, what := range untried.lines {
		fmt.Fprintln(os.Stderr, "NOT TRIED:", what)
	}
	if cluster != nil {
		if err := cluster.sdk.close(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, "e2e: sdk/client.py:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// untried lists the checks that this cluster does not support. Their tests pass without them, so they are printed at the end of the run.
var untried struct {
	mu    sync.Mutex
	lines []string
}

// notTried records that a part of a test was not run; it is reported at the end.
func notTried(what string) {
	untried.mu.Lock()
	defer untried.mu.Unlock()
	untried.lines = append(untried.lines, what)
}

// runInside replaces this process with one inside the cluster's network, which is unreachable from outside.
func runInside(folder string) error {
	script, err := filepath.Abs(clusterScript)
	if err != nil {
		return err
	}
	if folder, err = filepath.Abs(folder); err != nil {
		return err
	}
	environment := append(os.Environ(), "E2E_KUBECONFIG="+filepath.Join(folder, "admin.kubeconfig"), "DATACACHE_CLUSTER="+folder)
	err = syscall.Exec(script, append([]string{script, "run"}, os.Args...), environment)
	return fmt.Errorf("%s run: %w", script, err)
}

// connect checks that the cluster has what the tests need.
func connect(kubeconfig, folder string) (*site, error) {
	s := &site{Objects: kubetest.Objects{Within: deadline}, file: kubeconfig, folder: folder, python: os.Getenv("DATACACHE_TRAINING_PYTHON")}
	if _, err := os.Stat(s.python); err != nil {
		return nil, fmt.Errorf("DATACACHE_TRAINING_PYTHON=%q: %w: run 'make training-venv', and the tests by make", s.python, err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("E2E_KUBECONFIG=%s: %w", kubeconfig, err)
	}
	s.config, config.QPS = config, -1
	config.WarningHandler = rest.NoWarnings{} // about deprecated kinds
	if s.logs, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if s.Client, err = newClient(config); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) //nolint:forbidigo // called from TestMain, which has no context
	defer cancel()
	if err := s.Client.List(ctx, &v1alpha1.DataCacheList{}, client.Limit(1)); err != nil {
		return nil, fmt.Errorf("E2E_KUBECONFIG=%s: datacache isn't installed or can't be asked: %w", kubeconfig, err)
	}
	s.sdk, err = openNotebook(s.python, kubeconfig)
	return s, err
}

func newClient(config *rest.Config) (client.Client, error) {
	scheme, err := kubetest.NewScheme(func(scheme *runtime.Scheme) error {
		return errors.Join(v1alpha1.AddToScheme(scheme), fluidapi.AddToScheme(scheme))
	})
	if err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// needsCluster skips the test if no cluster is named.
func needsCluster(t *testing.T) {
	t.Helper()
	if cluster == nil {
		t.Skip("no cluster: set DATACACHE_CLUSTER or E2E_KUBECONFIG, as 'make e2e' does")
	}
}

// onCluster runs a command of hack/cluster, such as "cut", "2"; with other clusters it skips the test. Cleanup functions may call it
// too.
func onCluster(t *testing.T, arguments ...string) {
	t.Helper()
	if cluster.folder == "" {
		t.Skipf("%v needs a cluster of hack/cluster: set DATACACHE_CLUSTER", arguments)
	}
	began := time.Now()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), clusterScript, arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("cluster %s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
	t.Logf("%.1f s: cluster %s", time.Since(began).Seconds(), strings.Join(arguments, " "))
}
