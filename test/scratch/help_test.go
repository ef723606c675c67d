// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/claim"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// account is the manager's user name.
const account = "system:serviceaccount:" + system + ":" + system

var groups = []string{"system:serviceaccounts", "system:authenticated"}

// disks creates a namespace and a storage class with its name and the given number of volumes, which are bound to claims once a pod
// uses them.
func disks(t *testing.T, volumes int) (namespace string) {
	t.Helper()
	namespace = cluster.Namespace(t)
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	cluster.Create(t, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: namespace}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &mode,
	})
	for i := range volumes {
		cluster.Create(t, volume(namespace, strconv.Itoa(i)))
	}
	return namespace
}

// volume returns a volume of the storage class, whose name is also the namespace's.
func volume(class, name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: class + "-" + name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}, Capacity: size,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		},
	}
}

var size = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}

// scratchVolume returns a scratch volume of the storage class that disks created.
func scratchVolume(namespace string) corev1.Volume {
	return corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "a"}, Annotations: map[string]string{claim.Mark: claim.PerReplica}},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &namespace, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
				Resources: corev1.VolumeResourceRequirements{Requests: size},
			},
		},
	}}}
}

var mount = corev1.VolumeMount{Name: "scratch", MountPath: "/scratch"}

// template returns a template of pods with a scratch volume.
func template(namespace string, restart corev1.RestartPolicy) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		RestartPolicy: restart,
		Containers:    []corev1.Container{{Name: "train", Image: "example.com/train:test", VolumeMounts: []corev1.VolumeMount{mount}}},
		Volumes:       []corev1.Volume{scratchVolume(namespace)},
	}}
}

// indexedJob returns a Job with the given number of replicas, which all run at once.
func indexedJob(namespace, name string, replicas int32) *batchv1.Job {
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: jobSpec(namespace, replicas)}
}

func jobSpec(namespace string, replicas int32) batchv1.JobSpec {
	mode := batchv1.IndexedCompletion
	return batchv1.JobSpec{
		Parallelism: &replicas, Completions: &replicas, CompletionMode: &mode, Template: template(namespace, corev1.RestartPolicyNever),
	}
}

// barePod returns a pod without a controller.
func barePod(namespace, name string) *corev1.Pod {
	t := template(namespace, corev1.RestartPolicyNever)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: t.Spec}
}

// claims returns all claims of a namespace.
func claims(t *testing.T, namespace string) []corev1.PersistentVolumeClaim {
	t.Helper()
	var list corev1.PersistentVolumeClaimList
	if err := cluster.Client.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// haveClaims waits until the namespace has exactly these claims, none of them being deleted, and returns their UIDs by name.
func haveClaims(t *testing.T, namespace string, names ...string) map[string]types.UID {
	t.Helper()
	var got map[string]types.UID
	slices.Sort(names)
	kubetest.Eventually(t, fmt.Sprintf("claims %v", names), func() error {
		got = map[string]types.UID{}
		for _, c := range claims(t, namespace) {
			if c.DeletionTimestamp == nil {
				got[c.Name] = c.UID
			}
		}
		if has := slices.Sorted(maps.Keys(got)); !slices.Equal(has, names) {
			return fmt.Errorf("there are %v", has)
		}
		return nil
	})
	return got
}

// sameClaims checks that exactly the earlier claims exist.
func sameClaims(t *testing.T, namespace string, before map[string]types.UID) {
	t.Helper()
	after := map[string]types.UID{}
	for _, c := range claims(t, namespace) {
		after[c.Name] = c.UID
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("UIDs of claims (-before +after):\n%s", diff)
	}
}

// pods returns all pods of a namespace that are not being deleted.
func pods(t *testing.T, namespace string) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := cluster.Client.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// running waits until the given number of pods that are not in before are running, and returns all of the namespace's pods by UID.
func running(t *testing.T, namespace string, number int, before map[types.UID]bool) map[types.UID]bool {
	t.Helper()
	var seen map[types.UID]bool
	kubetest.Eventually(t, fmt.Sprintf("%d new pods to run", number), func() error {
		seen = map[types.UID]bool{}
		n := 0
		var states []string
		for _, p := range pods(t, namespace) {
			seen[p.UID] = true
			if !before[p.UID] && p.Status.Phase == corev1.PodRunning {
				n++
			}
			states = append(states, fmt.Sprintf("%s is %s", p.Name, p.Status.Phase))
		}
		if n != number {
			return fmt.Errorf("%v", states)
		}
		return nil
	})
	return seen
}

// awaitEvent waits for an event about an object whose message contains the words.
func awaitEvent(t *testing.T, namespace, kind, reason string, words ...string) {
	t.Helper()
	kubetest.Eventually(t, fmt.Sprintf("event %s of a %s with %q", reason, kind, words), func() error {
		var events corev1.EventList
		if err := cluster.Client.List(t.Context(), &events, client.InNamespace(namespace)); err != nil {
			return err
		}
		var others []string
		for _, e := range events.Items {
			missing := slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e.Message, w) })
			if e.InvolvedObject.Kind == kind && e.Reason == reason && !missing {
				return nil
			}
			others = append(others, fmt.Sprintf("%s: %s: %s", e.InvolvedObject.Kind, e.Reason, e.Message))
		}
		return fmt.Errorf("there are others: %q", others)
	})
}

// gated waits until the given number of pods of the namespace wait for their claims, and there are no others.
func gated(t *testing.T, namespace string, number int) []corev1.Pod {
	t.Helper()
	var all []corev1.Pod
	kubetest.Eventually(t, fmt.Sprintf("%d pods to be gated", number), func() error {
		all = pods(t, namespace)
		if n := len(waiting(all)); n != number || n != len(all) {
			return fmt.Errorf("%d of %d are", n, len(all))
		}
		return nil
	})
	return all
}

// waiting returns the pods that have the gate and the label.
func waiting(all []corev1.Pod) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(all), func(p corev1.Pod) bool {
		return !claim.Gated(&p) || p.Labels[claim.LabelState] != claim.StateWaiting
	})
}
