// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// TestDoctor runs kubectl datacache doctor. The pods' network is simulated: what they print is, in a cluster that enforces NetworkPolicies.
func TestDoctor(t *testing.T) {
	t.Parallel()
	runtimes(t)
	for name, tt := range map[string]struct {
		act  kubetest.Act
		args string
		view bool // the user has only the role view
		code int
		want []string
	}{
		"all that can be seen": {code: 3, args: "doctor", want: []string{ // no Deployment runs here
			"ok     kinds: served: DataCache v1alpha1, TrainJob v1alpha1, ", "?      manager: there is no Deployment", "ok     webhook's authority: valid until ",
			"ok     training runtimes: with a step that waits for a cache: ", "ok     webhook: the API server reaches it", "ok     admission of pods: ",
			"ok     image: " + image + " runs on node ", "ok     DNS: pods resolve kubernetes.default.svc:443", "ok     network: ", "ok     NetworkPolicies: are enforced",
		}},
		"an image that can't be pulled": {code: 2, args: "doctor --patience=2s", act: kubetest.Act{Waiting: "ImagePullBackOff", Message: "denied"}, want: []string{
			"FAILS  pod datacache-doctor-listens-", "ImagePullBackOff: denied", "fix: make the image available to the nodes",
		}},
		"a user who may only view": {code: 3, args: "doctor", view: true, want: []string{
			"ok     kinds: ", "?      webhook's authority: you may not look", "ok     quotas: namespace ", "?      image: not known",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := cluster.Namespace(t)
			cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
				act := tt.act
				act.Log = connections(t, pod)
				return act
			})
			plugin := pluginFor(t, ns)
			if tt.view {
				plugin = viewer(t, ns)
			}
			said, err := plugin.call(tt.args)
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != tt.code {
				t.Errorf("it ends with %v, want exit code %d", err, tt.code)
			}
			if err := lacks(said, tt.want); err != nil {
				t.Error(err)
			}
			nothingLeft(t, ns)
		})
	}
	t.Run("interrupted", func(t *testing.T) {
		t.Parallel()
		ns := cluster.Namespace(t)
		cluster.Kubelet.Play(ns, func(*corev1.Pod) kubetest.Act { return kubetest.Act{Waiting: "ContainerCreating"} })
		process := pluginFor(t, ns).start("doctor")
		kubetest.Eventually(t, "its first Job", func() error {
			if jobs := jobsIn(t, ns); len(jobs) == 0 {
				return errors.New("there is none")
			}
			return nil
		})
		process.Signal(syscall.SIGINT)
		if code := process.Exit(); code != 1 {
			t.Errorf("it ends with %d after Ctrl-C: %s", code, process.Output)
		}
		nothingLeft(t, ns)
	})
}

// connections is what cacheserver reach prints in a pod: all addresses can be reached, and the first one can't once there is a NetworkPolicy.
func connections(t *testing.T, pod *corev1.Pod) string {
	var out strings.Builder
	first := ""
	for _, address := range pod.Spec.Containers[0].Args[1:] {
		if strings.HasPrefix(address, "--") {
			continue
		}
		if first == "" {
			first = address
		}
		fmt.Fprintln(&out, address, "ok")
	}
	var policies networkingv1.NetworkPolicyList
	if err := cluster.Client.List(t.Context(), &policies, client.InNamespace(pod.Namespace)); err == nil && len(policies.Items) > 0 && first != "" {
		fmt.Fprintln(&out, first, "dial tcp: i/o timeout")
	}
	return out.String()
}

func jobsIn(t *testing.T, namespace string) []batchv1.Job {
	t.Helper()
	var jobs batchv1.JobList
	if err := cluster.Client.List(t.Context(), &jobs, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	return jobs.Items
}

// nothingLeft waits until the namespace has no Job and no NetworkPolicy any more: sooner than the cluster would delete what a doctor left.
func nothingLeft(t *testing.T, namespace string) {
	t.Helper()
	kubetest.Eventually(t, "everything to be gone", func() error {
		var policies networkingv1.NetworkPolicyList
		if err := cluster.Client.List(t.Context(), &policies, client.InNamespace(namespace)); err != nil {
			return err
		}
		if jobs := jobsIn(t, namespace); len(jobs)+len(policies.Items) > 0 {
			return fmt.Errorf("%d Jobs and %d NetworkPolicies are left", len(jobs), len(policies.Items))
		}
		return nil
	})
}
