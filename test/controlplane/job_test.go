// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// isCachePod distinguishes a cache's pods from those of jobs.
func isCachePod(pod *corev1.Pod) bool { return pod.Labels[wellknown.LabelCache] != "" }

// TestJobGetsItsCache follows a TrainJob from its creation until all its objects are gone.
func TestJobGetsItsCache(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	var trained atomic.Bool
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		if !isCachePod(pod) && trained.Load() {
			return kubetest.Act{Exit: new(int32(0))}
		}
		return kubetest.Act{Unready: isCachePod(pod)}
	})
	job := cacheJob(ns, "train", "cache://demo/reviews", tableEnv()...)
	cluster.Create(t, job)

	dc := cluster.DataCache(t, ns, "train", v1alpha1.StatePending)
	if len(dc.OwnerReferences) != 1 || dc.OwnerReferences[0].UID != job.UID || dc.OwnerReferences[0].Controller != nil {
		t.Errorf("owners of the DataCache are %+v, want the TrainJob, not as its controller", dc.OwnerReferences)
	}
	objectsAreThere(t, dc)
	podsKnowTheirPlaces(t, dc)
	awaitEvent(t, job, "CacheProvisioning")

	served(t, ns, "train")
	dc = cluster.DataCache(t, ns, "train", v1alpha1.StateReady)
	s := dc.Status
	if s.Rows == nil || *s.Rows != tableRows || ptr.Deref(s.LoadedPercent, 0) != 100 || ptr.Deref(s.Bytes, 0) == 0 || s.Snapshot == "" || s.ReadyTime == nil {
		t.Errorf("status of the Ready DataCache is %+v, want %d rows, 100%%, bytes, a snapshot and when it was ready", s, tableRows)
	}
	if diff := cmp.Diff([]string{ns + "/train"}, s.UsedBy); diff != "" || s.Users != 1 {
		t.Errorf("users = %d, usedBy differs (-want +got):\n%s", s.Users, diff)
	}
	if message := awaitEvent(t, job, "CacheReady"); !strings.Contains(message, fmt.Sprintf("all %d rows are in memory", tableRows)) {
		t.Errorf("event CacheReady says %q", message)
	}

	trained.Store(true)
	dc = cluster.DataCache(t, ns, "train", v1alpha1.StateReleased)
	cluster.Vanish(t, &lws.LeaderWorkerSet{}, ns, "train-cache")
	noCachePods(t, ns)
	awaitEvent(t, job, "CacheReleased")
	if dc.Status.Rows != nil || dc.Status.Users != 0 || dc.Status.Snapshot == "" {
		t.Errorf("status of the Released DataCache is %+v, want no rows, no users, the snapshot kept", dc.Status)
	}
	if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
		t.Fatal(err)
	}
	for _, c := range job.Status.Conditions {
		if c.Type != trainer.TrainJobComplete {
			t.Errorf("condition %s=%s (%s) on the TrainJob, want none but Complete: others hide Running from the SDK", c.Type, c.Status, c.Reason)
		}
	}

	cluster.Delete(t, job)
	cluster.Vanish(t, &v1alpha1.DataCache{}, ns, "train")
	cluster.Vanish(t, &corev1.Service{}, ns, "train-cache-service")
	cluster.Vanish(t, &corev1.ServiceAccount{}, ns, "train-cache")
	cluster.Vanish(t, &networkingv1.NetworkPolicy{}, ns, "train-cache")
	cluster.Vanish(t, &policyv1.PodDisruptionBudget{}, ns, "train-cache")
}

// objectsAreThere waits for every object of the cache and checks its owner; the controller's unit tests check the contents.
func objectsAreThere(t *testing.T, dc *v1alpha1.DataCache) {
	t.Helper()
	var secrets corev1.SecretList
	kubetest.Eventually(t, "the cache's Secret", func() error {
		if err := cluster.Client.List(t.Context(), &secrets, client.InNamespace(dc.Namespace), client.MatchingLabels{wellknown.LabelCache: dc.Name}); err != nil {
			return err
		}
		if len(secrets.Items) != 1 {
			return fmt.Errorf("there are %d", len(secrets.Items))
		}
		return nil
	})
	if key := secrets.Items[0].Data["CACHE_SECRET"]; len(key) != 64 {
		t.Errorf("CACHE_SECRET has %d characters, want 64 (32 bytes in hex)", len(key))
	}
	set := appears(t, &lws.LeaderWorkerSet{}, dc.Namespace, dc.Name+"-cache")
	for _, object := range []client.Object{
		set,
		&secrets.Items[0],
		appears(t, &corev1.Service{}, dc.Namespace, dc.Name+"-cache-service"),
		appears(t, &corev1.ServiceAccount{}, dc.Namespace, dc.Name+"-cache"),
		appears(t, &corev1.ConfigMap{}, dc.Namespace, dc.Name+"-cache"),
		appears(t, &networkingv1.NetworkPolicy{}, dc.Namespace, dc.Name+"-cache"),
		appears(t, &policyv1.PodDisruptionBudget{}, dc.Namespace, dc.Name+"-cache"),
	} {
		if !metav1.IsControlledBy(object, dc) {
			t.Errorf("%T %s has owners %+v, want the DataCache", object, object.GetName(), object.GetOwnerReferences())
		}
	}
	if size, policy := *set.Spec.LeaderWorkerTemplate.Size, set.Spec.LeaderWorkerTemplate.RestartPolicy; size != 3 || policy != lws.NoneRestartPolicy {
		t.Errorf("LeaderWorkerSet has size %d and restartPolicy %s, want 3 and None", size, policy)
	}
}

// podsKnowTheirPlaces waits for the head and the data nodes that LWS creates, and checks the environment that LWS sets.
func podsKnowTheirPlaces(t *testing.T, dc *v1alpha1.DataCache) {
	t.Helper()
	for i, pod := range cachePods(t, dc.Namespace, 3) {
		env := map[string]string{}
		for _, v := range pod.Spec.Containers[0].Env {
			env[v.Name] = v.Value
		}
		want := map[string]string{
			"LWS_LEADER_ADDRESS": fmt.Sprintf("%s-cache-0.%s-cache.%s", dc.Name, dc.Name, dc.Namespace), "LWS_GROUP_SIZE": "3", "LWS_WORKER_INDEX": fmt.Sprint(i),
			"METADATA_LOC": *dc.Spec.Arrow.MetadataLocation, "SCHEMA_NAME": "demo", "TABLE_NAME": "reviews",
		}
		for name, value := range want {
			if env[name] != value {
				t.Errorf("pod %s has %s=%q, want %q", pod.Name, name, env[name], value)
			}
		}
		if pod.Spec.Containers[0].Image != image || pod.Spec.ServiceAccountName != dc.Name+"-cache" {
			t.Errorf("pod %s runs %s as %s", pod.Name, pod.Spec.Containers[0].Image, pod.Spec.ServiceAccountName)
		}
	}
}

func noCachePods(t *testing.T, namespace string) {
	t.Helper()
	kubetest.Eventually(t, "the cache's pods are gone", func() error {
		var pods corev1.PodList
		if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.HasLabels{wellknown.LabelCache}); err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		return nil
	})
}

// TestSuspendedJobFreesItsCache checks that the memory is freed after the job's pods are gone, and that the cache runs again when the
// job does.
func TestSuspendedJobFreesItsCache(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	served(t, ns, "train")
	job := cacheJob(ns, "train", "cache://demo/reviews", tableEnv()...)
	job.Spec.Suspend = new(true)
	cluster.Create(t, job)
	kubetest.Eventually(t, "the TrainJob is suspended", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(job.Status.Conditions, trainer.TrainJobSuspended) {
			return errors.New("not yet")
		}
		return nil
	})
	if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), &v1alpha1.DataCache{}); err == nil {
		t.Error("a job that never ran has a DataCache")
	}

	change(t, job, func(j *trainer.TrainJob) { j.Spec.Suspend = new(false) })
	first := cluster.DataCache(t, ns, "train", v1alpha1.StateReady)
	set := appears(t, &lws.LeaderWorkerSet{}, ns, "train-cache")

	change(t, job, func(j *trainer.TrainJob) { j.Spec.Suspend = new(true) })
	usedBy(t, first) // no users, and it is kept for its suspendGrace of 10 minutes
	if first.Status.State != v1alpha1.StateReady {
		t.Errorf("the cache of a TrainJob that was just suspended is %s, want it to stay for its suspendGrace", first.Status.State)
	}
	change(t, first, func(dc *v1alpha1.DataCache) { dc.Spec.Retention.SuspendGrace = &metav1.Duration{} })
	cluster.DataCache(t, ns, "train", v1alpha1.StateReleased)
	cluster.Vanish(t, &lws.LeaderWorkerSet{}, ns, "train-cache")
	noCachePods(t, ns)

	change(t, job, func(j *trainer.TrainJob) { j.Spec.Suspend = new(false) })
	again := cluster.DataCache(t, ns, "train", v1alpha1.StateReady)
	if again.UID != first.UID {
		t.Error("the DataCache was made anew, want the same one again")
	}
	next := appears(t, &lws.LeaderWorkerSet{}, ns, "train-cache")
	if next.UID == set.UID {
		t.Error("the LeaderWorkerSet is the one before, want a new one")
	}
	pin := appears(t, &corev1.ConfigMap{}, ns, "train-cache")
	if got, want := pin.Data["SNAPSHOT_PIN"], first.Status.Snapshot; want == "" || got != want {
		t.Errorf("heads are told SNAPSHOT_PIN=%q, want %q, which was loaded before", got, want)
	}
}

// TestForeignObjectsStay checks that a Service with our name that somebody else created is not changed, and that the job gets an
// event about it.
func TestForeignObjectsStay(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	theirs := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "train-cache-service"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "theirs"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	cluster.Create(t, theirs)
	job := cacheJob(ns, "train", "cache://demo/reviews", tableEnv()...)
	cluster.Create(t, job)
	want := "Service " + ns + "/train-cache-service exists and belongs to nobody that datacache knows"
	if message := awaitEvent(t, job, "CacheFailed"); !strings.Contains(message, want) {
		t.Errorf("event CacheFailed says %q, want %q in it", message, want)
	}
	dc := cluster.DataCache(t, ns, "train", v1alpha1.StatePending)
	if c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionReady); c == nil || c.Reason != "NameTaken" {
		t.Errorf("condition Ready is %+v, want reason NameTaken", c)
	}
	if err := blocks(t, client.ObjectKeyFromObject(job), []string{"NameTaken: " + want, "fix: delete the object"}); err != nil {
		t.Errorf("the diagnosis: %v", err)
	}
	cluster.Delete(t, job)
	cluster.Vanish(t, &v1alpha1.DataCache{}, ns, "train")
	still := appears(t, &corev1.Service{}, ns, "train-cache-service")
	if diff := cmp.Diff(theirs, still); diff != "" {
		t.Errorf("the foreign Service was changed (-before +after):\n%s", diff)
	}
}

// TestPodsThatCannotStart checks that the DataCache's condition and the job's events say why its pods can't start.
func TestPodsThatCannotStart(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		if isCachePod(pod) {
			return kubetest.Act{Waiting: "ImagePullBackOff"}
		}
		return kubetest.Act{}
	})
	job := cacheJob(ns, "train", "cache://demo/reviews", tableEnv()...)
	cluster.Create(t, job)
	kubetest.Eventually(t, "condition ImagePullBackOff", func() error {
		dc := &v1alpha1.DataCache{}
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), dc); err != nil {
			return err
		}
		c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionReady)
		if c == nil || c.Reason != "ImagePullBackOff" || dc.Status.State != v1alpha1.StatePending {
			return fmt.Errorf("state %s, condition %+v", dc.Status.State, c)
		}
		return nil
	})
	kubetest.Eventually(t, "a warning of it on the TrainJob", func() error {
		var events corev1.EventList
		if err := cluster.Client.List(t.Context(), &events, client.InNamespace(ns)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "TrainJob" && e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, "ImagePullBackOff") {
				return nil
			}
		}
		return fmt.Errorf("there are %d events", len(events.Items))
	})
}

// TestFailureIsHeardLate checks that, if a job fails because of its cache before the controller could query the head, the cache is
// kept until it has reported the reason.
func TestFailureIsHeardLate(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	var gaveUp atomic.Bool
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		if !isCachePod(pod) && gaveUp.Load() {
			return kubetest.Act{Exit: new(int32(1))}
		}
		return kubetest.Act{Unready: isCachePod(pod)}
	})
	job := cacheJob(ns, "train", "cache://demo/reviews", tableEnv()...)
	cluster.Create(t, job)
	kubetest.Eventually(t, "the controller to query a head that does not answer", func() error {
		dc := &v1alpha1.DataCache{}
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), dc); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionReady); c == nil || c.Reason != "HeadUnreachable" {
			return fmt.Errorf("its condition Ready is %+v", c)
		}
		return blocks(t, client.ObjectKeyFromObject(job), []string{"HeadUnreachable: ", "fix: look for a NetworkPolicy"})
	})
	gaveUp.Store(true)
	kubetest.Eventually(t, "the TrainJob to fail", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(job.Status.Conditions, trainer.TrainJobFailed) {
			return fmt.Errorf("its conditions are %+v", job.Status.Conditions)
		}
		return nil
	})
	runHead(t, "/nonexistent/00001.metadata.json", ns, "train")
	cluster.DataCache(t, ns, "train", v1alpha1.StateFailed)
	if message := awaitEvent(t, job, "CacheFailed"); !strings.Contains(message, "/nonexistent/00001.metadata.json") {
		t.Errorf("event CacheFailed says %q, want the file that is missing", message)
	}
	cluster.Vanish(t, &lws.LeaderWorkerSet{}, ns, "train-cache")
}

// TestFailedCache checks that the job's owner can read why its cache failed, that the memory is freed when the job has failed too,
// that the reason remains, and that a new job with the same name, created at once, gets a new cache.
func TestFailedCache(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	var gaveUp atomic.Bool
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		if !isCachePod(pod) && gaveUp.Load() {
			return kubetest.Act{Exit: new(int32(1))}
		}
		return kubetest.Act{Unready: isCachePod(pod)}
	})
	runHead(t, "/nonexistent/00001.metadata.json", ns, "train")
	job := cacheJob(ns, "train", "cache://demo/reviews", tableEnv()...)
	cluster.Create(t, job)
	first := cluster.DataCache(t, ns, "train", v1alpha1.StateFailed)
	if message := awaitEvent(t, job, "CacheFailed"); !strings.Contains(message, "/nonexistent/00001.metadata.json") {
		t.Errorf("event CacheFailed says %q, want the file that is missing", message)
	}
	if err := blocks(t, client.ObjectKeyFromObject(job), []string{"Failed: LoadFailed: ", "/nonexistent/00001.metadata.json", "fix: correct what"}); err != nil {
		t.Errorf("the diagnosis: %v", err)
	}
	appears(t, &lws.LeaderWorkerSet{}, ns, "train-cache")

	gaveUp.Store(true)
	cluster.Vanish(t, &lws.LeaderWorkerSet{}, ns, "train-cache")
	noCachePods(t, ns)
	dc := cluster.DataCache(t, ns, "train", v1alpha1.StateFailed)
	if c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionReady); c == nil || !strings.Contains(c.Message, "/nonexistent/") {
		t.Errorf("condition Ready is %+v, want the reason kept", c)
	}

	gaveUp.Store(false)
	cluster.Delete(t, job)
	again := cacheJob(ns, "train", "cache://demo/reviews", tableEnv()...)
	cluster.Create(t, again)
	kubetest.Eventually(t, "a new DataCache that failed too", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(again), dc); err != nil {
			return err
		}
		if dc.UID == first.UID || dc.Status.State != v1alpha1.StateFailed {
			return fmt.Errorf("it is %s, %s", dc.UID, dc.Status.State)
		}
		return nil
	})
	podsKnowTheirPlaces(t, dc)
}
