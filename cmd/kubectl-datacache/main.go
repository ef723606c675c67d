// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-datacache is kubectl's plugin for caches: kubectl datacache. Under the name kubectl_complete-datacache, to which it is
// linked, it completes the plugin's command line for kubectl.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// version is set by the linker, see the Makefile. If it is empty, the module's version is used, which go install PACKAGE@VERSION
// records.
var version = ""

func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return ""
}

func main() {
	klog.LogToStderr(false) // commands return the errors that client-go logs besides
	klog.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	args := os.Args[1:]
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl_complete-") {
		args = append([]string{cobra.ShellCompRequestCmd}, args...) // kubectl asks this name for completions
	}
	code := run(ctx, args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs the command line and returns the exit code. All that it prints goes through visible.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root, errs := command(), &visible{out: stderr}
	root.SetArgs(args)
	root.SetOut(&visible{out: stdout})
	root.SetErr(errs)
	err := root.ExecuteContext(ctx)
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		return exit.code
	case err != nil:
		fmt.Fprintln(errs, "error:", explain(err))
		return 1
	}
	return 0
}

// exitError ends the program with a code, and without a message, since the command has printed what there is to say.
type exitError struct{ code int }

func (e *exitError) Error() string { return "exit code " + strconv.Itoa(e.code) }

// target is the cluster and the namespace that kubectl's usual flags name.
type target struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

func command() *cobra.Command {
	at := &target{rules: clientcmd.NewDefaultClientConfigLoadingRules()}
	root := &cobra.Command{
		Use:   "kubectl-datacache",
		Short: "See the caches of a cluster, and what a TrainJob waits for",
		Example: `  kubectl datacache list -A
  kubectl datacache status train --watch
  kubectl datacache why train
  kubectl datacache top train
  kubectl datacache datasets tokens
  kubectl datacache logs train --server node --follow
  kubectl datacache ui train
  kubectl datacache login reviews --dir ./credentials
  kubectl datacache doctor`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl datacache"},
		Version:       cmp.Or(version, moduleVersion()),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&at.rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig file")
	clientcmd.BindOverrideFlags(&at.overrides, root.PersistentFlags(), clientcmd.RecommendedConfigOverrideFlags(""))
	root.AddCommand(listCommand(at), statusCommand(at), whyCommand(at), topCommand(at), datasetsCommand(at), doctorCommand(at), eventsCommand(at), logsCommand(at), uiCommand(at), loginCommand(at))
	at.completeFlags(root)
	return root
}

// cluster is a cluster that commands talk to, and the namespace that they are about. It is safe for concurrent use.
type cluster struct {
	client.WithWatch
	core      *corev1client.CoreV1Client // for logs and ports
	config    *rest.Config
	namespace string
}

// reach returns the cluster. It does not talk to it yet.
func (t *target) reach() (*cluster, error) {
	loader := t.loader()
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, trainer.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	return &cluster{WithWatch: c, core: core, config: config, namespace: namespace}, nil
}

func (t *target) loader() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(t.rules, &t.overrides)
}

// cache returns the DataCache of the name.
func (c *cluster) cache(ctx context.Context, name string) (*v1alpha1.DataCache, error) {
	dc := &v1alpha1.DataCache{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, dc); err != nil {
		return nil, fmt.Errorf("get DataCache %s/%s: %w", c.namespace, name, err)
	}
	return dc, nil
}
