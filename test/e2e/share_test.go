// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// TestSharedCache checks that one DataCache serves TrainJobs of its own namespace and of one that it allows, concurrently, and no
// others, and that its memory is freed after the last one has ended. It takes known readers only, as caches do by default, and no
// NetworkPolicy protects it: a pod of another namespace is told what it lacks, and no more.
func TestSharedCache(t *testing.T) {
	t.Parallel()
	own, allowed, stranger := namespace(t), namespace(t), namespace(t)
	dc := sharedCache(own, reviews.write(t), allowed)
	cluster.Create(t, dc)
	cluster.Create(t, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: "open"}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, Ingress: []networkingv1.NetworkPolicyIngressRule{{}},
	}})

	refused := submit(t, stranger, referring("stranger", own, dc.Name)).Refused
	if want := fmt.Sprintf("is not for the namespace %s", stranger); !strings.Contains(refused, want) {
		t.Errorf("a TrainJob of a namespace that isn't allowed reads %q, want %q in it", refused, want)
	}

	long := referring("long", own, dc.Name)
	long.Args["pause"] = 60 // seconds per step: it runs until it is deleted
	endless := train(t, own, long)
	r := train(t, allowed, referring("short", own, dc.Name))
	await(t, "both TrainJobs to use the cache", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(dc), dc); err != nil {
			return err
		}
		users := []string{allowed + "/short", own + "/long"}
		slices.Sort(users)
		if !slices.Equal(dc.Status.UsedBy, users) {
			return fmt.Errorf("it is used by %q, want %q", dc.Status.UsedBy, users)
		}
		return nil
	})
	if known := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionReadersKnown); known == nil || known.Status != metav1.ConditionTrue {
		t.Errorf("the condition ReadersKnown is %+v", known)
	}
	strangersLearn(t, stranger, "stranger", dc)
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 1, reviews.Rows)
	endless.passes(t, 1, 0)
	cluster.Delete(t, endless.get(t))
	cluster.DataCache(t, own, dc.Name, v1alpha1.StateReleased)
	cluster.Vanish(t, &lws.LeaderWorkerSet{}, own, dc.Name+"-cache")
}

// askAsStranger asks a head in several ways, and writes what it says, a line each.
const askAsStranger = `
import os, time
import pyarrow.flight as flight
host, token, ca = (os.environ[name] for name in ("HOST", "TOKEN", "CA"))
def ask(scheme, headers, **tls):
    client = flight.FlightClient(f"{scheme}://{host}:50051", **tls)
    end = time.monotonic() + 120
    while True:
        try:
            client.get_flight_info(flight.FlightDescriptor.for_command(b"{}"), flight.FlightCallOptions(headers=headers, timeout=30))
            return "SERVED"
        except flight.FlightUnavailableError as error:
            if time.monotonic() > end:
                return str(error)
            time.sleep(0.5)
        except Exception as error:
            return str(error)
tls = dict(tls_root_certs=ca.encode(), override_hostname="datacache")
bearer = [(b"authorization", b"Bearer " + token.encode())]
said = [ask("grpc", []), ask("grpc+tls", [], **tls), ask("grpc+tls", bearer, **tls)]
open("/dev/termination-log", "w").write("\n".join(text.replace("\n", " ")[:600] for text in said))
`

// strangersLearn checks what a pod of another namespace gets of a cache that it can connect to: in plain text, over TLS, and with a token of its
// own account for this cache, which everyone can get who may create pods in some namespace.
func strangersLearn(t *testing.T, namespace, name string, dc *v1alpha1.DataCache) {
	t.Helper()
	env := func(name, value string) corev1.EnvVar { return corev1.EnvVar{Name: name, Value: value} }
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
			Name: "ask", Image: trainerImage, Command: []string{"python3", "-c", askAsStranger},
			Env: []corev1.EnvVar{
				env("HOST", fmt.Sprintf("%s.%s.svc", wellknown.ServiceName(dc.Name), dc.Namespace)), env("CA", dc.Status.CABundle),
				env("TOKEN", tokenOf(t, namespace, wellknown.Audience(dc.Namespace, dc.Name), nil)),
			},
		}}},
	}
	cluster.Create(t, pod)
	said := ""
	await(t, "the stranger to have asked", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].State.Terminated == nil {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		said = pod.Status.ContainerStatuses[0].State.Terminated.Message
		return nil
	})
	lines := strings.Split(said, "\n")
	want := []string{"takes known readers over TLS", "the call has no token", namespace + "/default may not read this cache: ask its owner for access.namespaces"}
	for i, part := range want {
		if i >= len(lines) || !strings.Contains(lines[i], part) {
			t.Errorf("a stranger is told %q, want %q in line %d", said, part, i)
		}
	}
}

// sharedCache returns a DataCache of the namespace that another namespace may use.
func sharedCache(namespace, metadata, allowed string) *v1alpha1.DataCache {
	ask := func(memory string) v1alpha1.PodSettings {
		return v1alpha1.PodSettings{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse(memory),
		}}}
	}
	return &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "shared"},
		Spec: v1alpha1.DataCacheSpec{
			Arrow: &v1alpha1.ArrowCache{
				MetadataLocation: &metadata, Table: "demo.reviews", DataNodes: 2, Replicas: 1, Head: ask("128Mi"), DataNode: ask("256Mi"),
			},
			Credentials: &v1alpha1.Credentials{SecretRef: corev1.LocalObjectReference{Name: storeSecret}},
			Access:      v1alpha1.Access{Namespaces: v1alpha1.NamespaceAccess{From: v1alpha1.AccessNames, Names: []string{allowed}}},
			Retention:   v1alpha1.Retention{IdleTTL: &metav1.Duration{Duration: 10 * time.Second}},
		},
	}
}

// referring returns a TrainJob that reads an existing DataCache.
func referring(name, namespace, cache string) job {
	return job{
		Name: name, Runtime: "torch-distributed", Initializer: "Arrow", Func: "loader", Image: trainerImage, Nodes: 1,
		Args:    map[string]any{"batch": 1000, "pause": 1.0},
		Dataset: map[string]any{"storage_uri": fmt.Sprintf("datacache://%s/%s", namespace, cache)},
	}
}
