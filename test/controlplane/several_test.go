// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/diagnose"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// named returns a DataCache that a user creates.
func named(namespace, name string) *v1alpha1.DataCache {
	return &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.DataCacheSpec{Arrow: &v1alpha1.ArrowCache{Table: "demo." + name, MetadataLocation: new(location), DataNodes: 1, Replicas: 1}},
	}
}

// Services of a TrainJob train that names the caches code and web: the KEP's, and one for each name.
const (
	firstService = "train-cache-service"
	webService   = "train-cache-service-4b5e57f6"
	codeService  = "train-cache-service-5694d08a"
)

// pointsTo waits until a Service leads to a DataCache.
func pointsTo(t *testing.T, service string, dc *v1alpha1.DataCache) {
	t.Helper()
	found := appears(t, &corev1.Service{}, dc.Namespace, service)
	want := fmt.Sprintf("%s-cache-service.%s.svc.cluster.local", dc.Name, dc.Namespace)
	if found.Spec.ExternalName != want || found.Annotations[wellknown.AnnotationUses] != dc.Namespace+"/"+dc.Name {
		t.Errorf("Service %s leads to %q and records %q, want DataCache %s", service, found.Spec.ExternalName, found.Annotations[wellknown.AnnotationUses], dc.Name)
	}
}

// TestSeveralCaches checks that a TrainJob that names two caches uses both, is told by name which one it waits for, and keeps one while the
// other, which it names first, is deleted.
func TestSeveralCaches(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		if pod.Labels[wellknown.LabelCache] == "code" {
			return kubetest.Act{Waiting: "ImagePullBackOff"}
		}
		return kubetest.Act{}
	})
	served(t, ns, "web")
	web, code := named(ns, "web"), named(ns, "code")
	cluster.Create(t, web)
	cluster.Create(t, code)
	cluster.DataCache(t, ns, "web", v1alpha1.StateReady)
	cluster.Become(t, code, ns, "code", "without its image", func() error { // or the TrainJob's first event does not say so
		if ready := meta.FindStatusCondition(code.Status.Conditions, v1alpha1.ConditionReady); ready == nil || ready.Reason != "ImagePullBackOff" {
			return fmt.Errorf("it is %+v", ready)
		}
		return nil
	})

	const uri = "datacache://code,web"
	job := cacheJob(ns, "train", uri)
	cluster.Create(t, job)
	both := func(users ...string) {
		t.Helper()
		usedBy(t, web, users...)
		usedBy(t, code, users...)
	}
	both(ns + "/train")
	pointsTo(t, firstService, code)
	pointsTo(t, codeService, code)
	pointsTo(t, webService, web)
	kubetest.Eventually(t, "an event that names both", func() error {
		return warned(t, job, "CacheProvisioning", []string{"uses DataCache " + ns + "/code at ", "; uses DataCache " + ns + "/web at "})
	})
	waitsForBoth(t, ns, uri)

	gate := waitingStepAt(t, ns, "train", "web="+heads.of(ns, "web")+",code=127.0.0.1:1")
	say := func(parts ...string) {
		t.Helper()
		kubetest.Eventually(t, fmt.Sprintf("%q in the step's log", parts), func() error { return lacks(gate.Output.String(), parts) })
	}
	say("  web: ready: 1000 rows", "  code: waiting for the cache: ImagePullBackOff")
	kubetest.Eventually(t, "the diagnosis", func() error {
		findings, err := diagnose.Why(t.Context(), cluster.Client, nil, client.ObjectKeyFromObject(job))
		if err != nil || len(findings) != 4 {
			return fmt.Errorf("it has %+v: %w", findings, err)
		}
		if !findings[2].Blocks || findings[3].Blocks {
			return fmt.Errorf("of code and web, another one blocks: %+v", findings)
		}
		return lacks(fmt.Sprint(findings[2:]), []string{"DataCache " + ns + "/code", "pod code-cache-0", "ImagePullBackOff", "DataCache " + ns + "/web"})
	})

	cluster.Delete(t, code)
	cluster.Vanish(t, &corev1.Service{}, ns, codeService)
	cluster.Vanish(t, &corev1.Service{}, ns, firstService)
	if message := awaitEvent(t, job, "CacheFailed"); !strings.Contains(message, "there is no DataCache code") || strings.Contains(message, "web") {
		t.Errorf("event CacheFailed says %q", message)
	}
	say("code: waiting for the cache: no cache: ", "there is no DataCache code")
	usedBy(t, web, ns+"/train")
	pointsTo(t, webService, web)

	code = named(ns, "code")
	cluster.Create(t, code)
	both(ns + "/train")
	pointsTo(t, codeService, code)
	pointsTo(t, firstService, code)

	change(t, job, func(j *trainer.TrainJob) { j.Spec.Suspend = new(true) })
	both()
	change(t, job, func(j *trainer.TrainJob) { j.Spec.Suspend = new(false) })
	both(ns + "/train")
	cluster.Delete(t, job)
	both()
}

// waitsForBoth checks that Trainer tells the step which caches to wait for.
func waitsForBoth(t *testing.T, namespace, uri string) {
	t.Helper()
	set := appears(t, &jobset.JobSet{}, namespace, "train")
	for _, v := range set.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Env {
		if v.Name == "STORAGE_URI" && v.Value == uri {
			return
		}
	}
	t.Errorf("the step's environment has no STORAGE_URI=%s: %+v", uri, set.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Env)
}
