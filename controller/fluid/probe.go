// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fluid

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	fluid "github.com/fluid-cloudnative/fluid/api/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/internal/inject"
)

const (
	// longestOperation is the maximum length of the name of a DataLoad, whose Helm release is <name>-loader: Helm's names have at most 53 bytes.
	longestOperation = 46
	// probeMount is where the probe mounts the files, and probeCommand the image's command that lists them (cmd/cacheserver).
	probeMount   = "/files"
	probeCommand = "probe"
	roleProbe    = "probe" // a value of LabelRole
	// probeEndsWithin is how long a probe may run, and how long it is kept when it has ended: longer than a failure must last.
	probeEndsWithin = 2 * fluidFailsAfter
	// probeTries is how often a probe is tried again that could not list the files.
	probeTries = 3
	// probeAnswersWithin is how long the probe may wait for the files, and how long nobody may know whether it can run at all.
	probeAnswersWithin = time.Minute
)

// operationName is the name of an operation on a cache, from which other names are derived.
func operationName(dc *v1alpha1.DataCache, suffix string) string {
	name := dc.Name
	if longest := longestOperation - len("-") - len(suffix); len(name) > longest {
		sum := sha256.Sum256([]byte(name))
		unique := "-" + hex.EncodeToString(sum[:4])
		name = name[:longest-len(unique)] + unique
	}
	return name + "-" + suffix
}

func probeName(dc *v1alpha1.DataCache) string { return operationName(dc, "probe") }

// fluidProbe returns the probe of a Dataset: a Job whose pod mounts the files and lists the folder of each mount. Only a pod that mounts the files
// makes Fluid start a FUSE pod, so nothing else shows whether they can be mounted. It runs where the pods of like may run. Its deadline also holds
// for a pod that can't start, so that it does not keep the Dataset from being deleted for long.
func fluidProbe(dc *v1alpha1.DataCache, set *fluid.Dataset, gate inject.Gate, like *corev1.PodSpec) *batchv1.Job {
	args := []string{probeCommand}
	for _, m := range set.Spec.Mounts {
		args = append(args, path.Join(probeMount, cmp.Or(m.Path, m.Name)))
	}
	pod := gate.Pod(roleProbe, args...)
	pod.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "files", MountPath: probeMount, ReadOnly: true}}
	pod.Volumes = []corev1.Volume{{Name: "files", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: dc.Name, ReadOnly: true},
	}}}
	if like != nil {
		pod.NodeSelector, pod.Tolerations = like.NodeSelector, like.Tolerations
		if like.Affinity != nil && like.Affinity.NodeAffinity != nil {
			pod.Affinity = &corev1.Affinity{NodeAffinity: like.Affinity.NodeAffinity}
		}
	}
	labels := kube.CacheLabels(dc) // by these labels, changes of the pod trigger a reconciliation of the cache
	maps.Copy(labels, kube.PodsOf(dc, roleProbe))
	labels["sidecar.istio.io/inject"] = "false" // a sidecar would not end
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: probeName(dc), Namespace: dc.Namespace, Labels: kube.CacheLabels(dc), OwnerReferences: []metav1.OwnerReference{ofDataset(set)},
		},
		Spec: batchv1.JobSpec{
			BackoffLimit:            new(int32(probeTries)),
			ActiveDeadlineSeconds:   new(int64(probeEndsWithin / time.Second)),
			TTLSecondsAfterFinished: new(int32(probeEndsWithin / time.Second)),
			Template:                corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
		},
	}
}

// wasReady reports whether the cache was Ready since this Dataset was made: then it needs no probe.
func wasReady(dc *v1alpha1.DataCache, set *fluid.Dataset) bool {
	return dc.Status.ReadyTime != nil && dc.Status.ProvisionedTime.Equal(&set.CreationTimestamp)
}

func (e *Engine) provideProbe(ctx context.Context, dc *v1alpha1.DataCache, set *fluid.Dataset) error {
	have, err := find(ctx, e.Live, &batchv1.Job{}, dc.Namespace, probeName(dc))
	if err != nil {
		return err
	}
	if have == nil {
		claim, err := find(ctx, e.Live, &corev1.PersistentVolumeClaim{}, dc.Namespace, dc.Name)
		if err != nil || claim == nil || claim.Annotations[annotationCreatedBy] != createdByFluid {
			return err // there is none yet, or it is somebody else's
		}
		like, err := e.podsOfUser(ctx, dc)
		if err != nil {
			return err
		}
		return e.create(ctx, fluidProbe(dc, set, e.Gate, like))
	}
	if !belongsTo(have, set) {
		return leftover("Job", have, isOurs(have, dc.Name))
	}
	return nil
}

// podsOfUser returns the spec of pods that will mount the files for a TrainJob that uses the cache, as its JobSet has it; nil if none does.
func (e *Engine) podsOfUser(ctx context.Context, dc *v1alpha1.DataCache) (*corev1.PodSpec, error) {
	users, err := e.Users(ctx, dc)
	if err != nil {
		return nil, err
	}
	for _, user := range users {
		key := kube.KeyOf(user)
		set, err := find(ctx, e.Live, &jobset.JobSet{}, key.Namespace, key.Name)
		if err != nil {
			return nil, err
		}
		if set == nil {
			continue
		}
		for i := range set.Spec.ReplicatedJobs {
			pod := &set.Spec.ReplicatedJobs[i].Template.Spec.Template.Spec
			for _, v := range pod.Volumes {
				if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == dc.Name {
					return pod, nil
				}
			}
		}
	}
	return nil, nil
}

// releaseProbe deletes the probe of a cache. Its pod mounts the files, so Fluid would keep the Dataset until the pod has ended.
func (e *Engine) releaseProbe(ctx context.Context, namespace, cache string) error {
	name := probeName(&v1alpha1.DataCache{ObjectMeta: metav1.ObjectMeta{Name: cache}})
	have, err := find(ctx, e.Live, &batchv1.Job{}, namespace, name)
	if err != nil || have == nil || !isOurs(have, cache) || have.DeletionTimestamp != nil {
		return err
	}
	err = e.Client.Delete(ctx, have, client.Preconditions{UID: new(have.UID)}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return e.Failed("delete", have, err)
	}
	return nil
}

// mounting returns the condition of a cache whose files no pod has mounted yet; nil if one has, or if nobody can find out, for which why is set.
func (f *fluidFacts) mounting() (c *engine.Condition, why *podstate.Trouble) {
	if wasReady(f.cache, f.dataset) {
		return nil, nil
	}
	c = &engine.Condition{State: v1alpha1.StateLoading, Reason: engine.ReasonLoading, Message: "a pod mounts the files, which shows that pods can"}
	if f.probe == nil {
		return c, nil
	}
	if f.probeHas(batchv1.JobComplete) != nil || slices.ContainsFunc(f.probes, hasSucceeded) {
		return nil, nil
	}
	if pod, t := f.brokenFuse(); t != nil {
		return f.notMounted(pod, t), nil
	}
	if t := f.warningOf("DaemonSet", f.dataset.Name+"-fuse"); t != nil {
		return f.notMounted(nil, t), nil
	}
	if f.probeHas(batchv1.JobFailed) != nil {
		c = f.notMounted(f.probeTrouble())
		c.State = v1alpha1.StateFailed
		return c, nil
	}
	if why := f.probeCantRun(); why != nil {
		return nil, why
	}
	if pod, t := f.probeTrouble(); t != nil {
		return f.notMounted(pod, t), nil
	}
	return c, nil
}

// notMounted is the condition of a cache whose files a pod, which may be nil, can't mount. It is Failed if that has lasted for fluidFailsAfter. A FUSE
// pod of which nothing else is known than that it is late may have a large image: it has until the deadline of the probe.
func (f *fluidFacts) notMounted(pod *corev1.Pod, why *podstate.Trouble) *engine.Condition {
	where := ""
	if pod != nil && pod.Spec.NodeName != "" {
		where = " on node " + pod.Spec.NodeName
	}
	c := &engine.Condition{State: v1alpha1.StateLoading, Reason: why.Reason, Message: fmt.Sprintf("the files can't be mounted%s: %s", where, why.Message)}
	if f.now.Sub(f.probe.CreationTimestamp.Time) >= fluidFailsAfter && why.Reason != reasonFuse {
		c.State = v1alpha1.StateFailed
	}
	return c
}

// probeTrouble returns why the probe has not listed the files, with its last pod; nil if it only needs time.
func (f *fluidFacts) probeTrouble() (*corev1.Pod, *podstate.Trouble) {
	pod, failed := f.lastProbePod(), f.probeHas(batchv1.JobFailed)
	switch {
	case pod != nil && pod.Status.Phase == corev1.PodFailed:
		return pod, &podstate.Trouble{Reason: reasonNotMounted, Message: fmt.Sprintf("pod %s failed: %s", pod.Name, podstate.EndOf(pod))}
	case failed != nil:
		return pod, &podstate.Trouble{Reason: reasonNotMounted, Message: fmt.Sprintf("Job %s failed: %s", f.probe.Name, cmp.Or(failed.Message, failed.Reason))}
	case pod == nil:
		return nil, nil
	}
	if t := podstate.PodTrouble(pod); t != nil {
		return pod, t
	}
	if f.now.Sub(pod.CreationTimestamp.Time) >= fluidPatience { // the kubelet tries again while the FUSE client starts
		if t := f.warningOf("Pod", pod.Name); t != nil {
			return pod, t
		}
	}
	if since := startOf(pod); pod.Status.Phase == corev1.PodRunning && f.now.Sub(since) >= probeAnswersWithin {
		return pod, &podstate.Trouble{Reason: reasonNotMounted, Message: fmt.Sprintf("pod %s has asked for a list of the files since %s and got no answer", pod.Name, since.UTC().Format(time.TimeOnly))}
	}
	return pod, nil
}

// probeCantRun returns why nothing can be said of the mount: no pod of the probe was given a node, which is no fault of the files. The pods of jobs
// may ask for other nodes, or have a quota of their own.
func (f *fluidFacts) probeCantRun() *podstate.Trouble {
	pod := f.lastProbePod()
	if pod != nil && pod.Spec.NodeName != "" || f.now.Sub(f.probe.CreationTimestamp.Time) < probeAnswersWithin {
		return nil
	}
	if pod != nil {
		return podstate.PodTrouble(pod)
	}
	if t := f.warningOf("Job", f.probe.Name); t != nil {
		return t
	}
	return &podstate.Trouble{Reason: reasonNotMounted, Message: fmt.Sprintf("Job %s has no pod", f.probe.Name)}
}

// warningOf returns the latest Warning event of an object, if it is recent.
func (f *fluidFacts) warningOf(kind, name string) *podstate.Trouble {
	var last *corev1.Event
	for i := range f.warnings {
		e := &f.warnings[i]
		recent := !podstate.TimeOf(e).Before(f.probe.CreationTimestamp.Time) && f.now.Sub(podstate.TimeOf(e)) < fluidRetriesWithin
		if recent && e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && (last == nil || podstate.TimeOf(last).Before(podstate.TimeOf(e))) {
			last = e
		}
	}
	if last == nil {
		return nil
	}
	return &podstate.Trouble{Reason: cmp.Or(podstate.Word(last.Reason), reasonNotMounted), Message: fmt.Sprintf("%s %s: %s", kind, name, last.Message)}
}

func (f *fluidFacts) probeHas(kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range f.probe.Status.Conditions {
		if c := &f.probe.Status.Conditions[i]; c.Type == kind && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

func hasSucceeded(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded }

// lastProbePod returns the newest pod of the probe: its Job makes another one when one has failed.
func (f *fluidFacts) lastProbePod() *corev1.Pod {
	var last *corev1.Pod
	for _, pod := range podstate.ByName(f.probes) {
		if last == nil || last.CreationTimestamp.Before(&pod.CreationTimestamp) {
			last = pod
		}
	}
	return last
}

// startOf is when the containers of a running pod started.
func startOf(pod *corev1.Pod) time.Time {
	for i := range pod.Status.ContainerStatuses {
		if running := pod.Status.ContainerStatuses[i].State.Running; running != nil {
			return running.StartedAt.Time
		}
	}
	return pod.CreationTimestamp.Time
}
