// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// usedBy waits until exactly these TrainJobs use the DataCache.
func usedBy(t *testing.T, dc *v1alpha1.DataCache, users ...string) {
	t.Helper()
	kubetest.Eventually(t, fmt.Sprintf("DataCache %s is used by %q", dc.Name, users), func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(dc), dc); err != nil {
			return err
		}
		if !slices.Equal(dc.Status.UsedBy, users) || int(dc.Status.Users) != len(users) {
			return fmt.Errorf("it is used by %d: %q", dc.Status.Users, dc.Status.UsedBy)
		}
		return nil
	})
}

// leadsTo waits for the job's Service and checks where it points.
func leadsTo(t *testing.T, job *trainer.TrainJob, dc *v1alpha1.DataCache) {
	t.Helper()
	service := appears(t, &corev1.Service{}, job.Namespace, job.Name+"-cache-service")
	want := fmt.Sprintf("%s-cache-service.%s.svc.cluster.local", dc.Name, dc.Namespace)
	if service.Spec.Type != corev1.ServiceTypeExternalName || service.Spec.ExternalName != want {
		t.Errorf("Service of TrainJob %s is %s to %q, want ExternalName to %q", job.Name, service.Spec.Type, service.Spec.ExternalName, want)
	}
}

// TestJobsShareACache checks that the first job of a namespace creates the cache, others join it, and it is freed after its idle
// time.
func TestJobsShareACache(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	env := append(tableEnv(), variables("CACHE_SCOPE", "namespace", "IDLE_TTL", "1s")...)
	one, two := cacheJob(ns, "one", "cache://demo/reviews", env...), cacheJob(ns, "two", "cache://demo/reviews", env...)
	other := cacheJob(ns, "other", "cache://demo/reviews", append(slices.Clone(env), variables("COLUMNS", "label")...)...)
	cluster.Create(t, one)
	cluster.Create(t, two)
	cluster.Create(t, other)

	var caches v1alpha1.DataCacheList
	kubetest.Eventually(t, "one DataCache for two jobs, another for other columns", func() error {
		if err := cluster.Client.List(t.Context(), &caches, client.InNamespace(ns)); err != nil {
			return err
		}
		if len(caches.Items) != 2 {
			return fmt.Errorf("there are %d", len(caches.Items))
		}
		return nil
	})
	dc := &caches.Items[0]
	if len(dc.Spec.Arrow.Columns) > 0 {
		dc = &caches.Items[1]
	}
	if !strings.HasPrefix(dc.Name, "shared-") || len(dc.OwnerReferences) > 0 {
		t.Errorf("the shared DataCache is %s with owners %v, want shared-... without any", dc.Name, dc.OwnerReferences)
	}
	usedBy(t, dc, ns+"/one", ns+"/two")
	leadsTo(t, one, dc)
	leadsTo(t, two, dc)
	awaitEvent(t, one, "CacheProvisioning")
	served(t, ns, dc.Name)
	cluster.DataCache(t, ns, dc.Name, v1alpha1.StateReady)
	awaitEvent(t, two, "CacheReady")

	cluster.Delete(t, one)
	usedBy(t, dc, ns+"/two")
	change(t, two, func(j *trainer.TrainJob) { j.Spec.Suspend = new(true) })
	usedBy(t, dc)
	leadsTo(t, two, dc) // remains as the record of what it used, for when it is resumed
	cluster.DataCache(t, ns, dc.Name, v1alpha1.StateReleased)
	cluster.Vanish(t, &lws.LeaderWorkerSet{}, ns, dc.Name+"-cache")

	change(t, two, func(j *trainer.TrainJob) { j.Spec.Suspend = new(false) })
	usedBy(t, dc, ns+"/two")
	cluster.DataCache(t, ns, dc.Name, v1alpha1.StateReady)
}

// TestNamedCache checks that a DataCache created by a user serves jobs of its own namespace and of those that it allows.
func TestNamedCache(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns, allowedNS := cluster.Namespace(t), cluster.Namespace(t)
	dc := &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "reviews"},
		Spec: v1alpha1.DataCacheSpec{
			Arrow: &v1alpha1.ArrowCache{
				Table: "demo.reviews", MetadataLocation: new("s3://lake/reviews/metadata/00001.metadata.json"), DataNodes: 2, Replicas: 1,
			},
			Access:    v1alpha1.Access{Namespaces: v1alpha1.NamespaceAccess{From: v1alpha1.AccessNames, Names: []string{allowedNS}}},
			Retention: v1alpha1.Retention{IdleTTL: &metav1.Duration{Duration: time.Hour}},
		},
	}
	cluster.Create(t, dc)
	served(t, ns, "reviews")
	cluster.DataCache(t, ns, "reviews", v1alpha1.StateReady)

	local := cacheJob(ns, "local", "datacache://reviews")
	namesake := cacheJob(ns, "reviews", "datacache://reviews")
	remote := cacheJob(allowedNS, "remote", "datacache://"+ns+"/reviews")
	cluster.Create(t, local)
	cluster.Create(t, namesake)
	cluster.Create(t, remote)
	users := []string{ns + "/local", ns + "/reviews", allowedNS + "/remote"}
	slices.Sort(users)
	usedBy(t, dc, users...)
	leadsTo(t, local, dc)
	leadsTo(t, remote, dc)

	change(t, dc, func(dc *v1alpha1.DataCache) { dc.Spec.Access = v1alpha1.Access{} })
	usedBy(t, dc, ns+"/local", ns+"/reviews")
	cluster.Vanish(t, &corev1.Service{}, allowedNS, "remote-cache-service")
	if message := awaitEvent(t, remote, "CacheFailed"); !strings.Contains(message, "is not for the namespace "+allowedNS) {
		t.Errorf("event CacheFailed says %q", message)
	}

	change(t, dc, func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.Replicas = 2 })
	kubetest.Eventually(t, "two groups", func() error {
		set := &lws.LeaderWorkerSet{}
		if err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "reviews-cache"}, set); err != nil {
			return err
		}
		if *set.Spec.Replicas != 2 || set.Status.ReadyReplicas != 2 {
			return fmt.Errorf("it has %d replicas, %d are ready", *set.Spec.Replicas, set.Status.ReadyReplicas)
		}
		return nil
	})
}

// TestEditedRuntimeKeepsTheCache checks that it is decided once which cache a TrainJob uses: it makes no difference if the runtime is
// later deleted, or edited to request other rows, even if the TrainJob is suspended meanwhile.
func TestEditedRuntimeKeepsTheCache(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	stock := appears(t, &trainer.ClusterTrainingRuntime{}, "", "torch-distributed-data-cache")
	own := &trainer.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "own", Labels: stock.Labels}, Spec: stock.Spec}
	step := &own.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0]
	step.Env = append(step.Env, variables("CACHE_SCOPE", "namespace", "FILTER", "label = 1")...)
	cluster.Create(t, own)
	job := cacheJob(ns, "train", table, tableEnv()...)
	job.Spec.RuntimeRef = trainer.RuntimeRef{Kind: new(trainer.TrainingRuntimeKind), Name: "own"}
	cluster.Create(t, job)
	uses := func() *v1alpha1.DataCache {
		t.Helper()
		service := appears(t, &corev1.Service{}, ns, "train-cache-service")
		_, name, _ := strings.Cut(service.Annotations["datacache.kubeflow.org/uses"], "/")
		return appears(t, &v1alpha1.DataCache{}, ns, name)
	}
	dc := uses()
	again := func() {
		t.Helper()
		for _, suspend := range []bool{true, false} {
			change(t, job, func(j *trainer.TrainJob) { j.Spec.Suspend = &suspend })
			if suspend {
				usedBy(t, dc)
			}
		}
		usedBy(t, dc, ns+"/train")
		leadsTo(t, job, dc)
	}
	change(t, own, func(r *trainer.TrainingRuntime) {
		env := r.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec.Containers[0].Env
		env[slices.IndexFunc(env, func(v corev1.EnvVar) bool { return v.Name == "FILTER" })].Value = "label = 2"
	})
	again()

	// Without the runtime Trainer itself rejects suspending the TrainJob; a change of its DataCache triggers a reconciliation of the
	// TrainJob.
	cluster.Delete(t, own)
	change(t, dc, func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.Replicas = 2 })
	usedBy(t, dc, ns+"/train")
	leadsTo(t, job, dc)
}

// TestFailedStepRunsAgain checks that a TrainJob which begins to use a cache has its step run again if that failed, and lets it be otherwise.
func TestFailedStepRunsAgain(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	var fails atomic.Bool
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		if pod.Labels[wellknown.LabelStepOf] != "" && fails.Load() {
			return kubetest.Act{Exit: new(int32(1))}
		}
		return kubetest.Act{}
	})
	env := append(tableEnv(), variables("DERIVE", `{"dataset":"tok","image":"tok:3"}`)...)
	cluster.Create(t, cacheJob(ns, "one", "cache://demo/reviews", env...))
	var caches v1alpha1.DataCacheList
	kubetest.Eventually(t, "a DataCache", func() error {
		err := cluster.Client.List(t.Context(), &caches, client.InNamespace(ns))
		if err == nil && len(caches.Items) != 1 {
			err = fmt.Errorf("there are %d", len(caches.Items))
		}
		return err
	})
	dc := &caches.Items[0]
	step := appears(t, &batchv1.Job{}, ns, dc.Name+"-cache-derive")
	first := step.UID
	cluster.Create(t, cacheJob(ns, "two", "cache://demo/reviews", env...))
	usedBy(t, dc, ns+"/one", ns+"/two")
	if step = appears(t, step, ns, step.Name); step.UID != first || step.DeletionTimestamp != nil {
		t.Error("a step that has not failed runs again")
	}
	change(t, step, func(j *batchv1.Job) { j.Spec.BackoffLimit = new(int32(0)) })
	fails.Store(true)
	kubetest.Eventually(t, "the step to have failed", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(dc), dc); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionDerived); c == nil || c.Reason != v1alpha1.ReasonDeriveFailed {
			return fmt.Errorf("the condition is %+v", c)
		}
		return nil
	})
	fails.Store(false)
	cluster.Create(t, cacheJob(ns, "three", "cache://demo/reviews", env...))
	kubetest.Eventually(t, "the step to run again", func() error {
		err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(step), step)
		if err == nil && step.UID == first {
			err = fmt.Errorf("its Job is the one that failed: %+v", step.Status)
		}
		return err
	})
}
