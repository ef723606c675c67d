// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fluid

import (
	"strings"
	"testing"
	"time"

	fluid "github.com/fluid-cloudnative/fluid/api/v1alpha1"
	"github.com/fluid-cloudnative/fluid/pkg/common"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/inject"
)

// fluidBegan is when the Dataset of fluidReady was created.
var fluidBegan = metav1.NewTime(time.Date(2026, 8, 21, 12, 0, 0, 0, time.UTC))

func files() *v1alpha1.DataCache {
	return &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "pictures", UID: "0b5d7c9e"},
		Spec: v1alpha1.DataCacheSpec{Fluid: &v1alpha1.FluidCache{
			Mounts:    []v1alpha1.FluidMount{{Name: "imagenet", MountPoint: "s3://bucket/imagenet", Path: "/"}},
			MountPath: "/workspace/dataset",
			Runtime: v1alpha1.FluidRuntime{
				Kind: v1alpha1.FluidAlluxio, Replicas: 2, Tiers: []v1alpha1.FluidTier{{Medium: v1alpha1.FluidMemory, Quota: resource.MustParse("4Gi")}},
			},
		}},
	}
}

// fluidReady is what the API server knows of a cache that works, a minute after its Dataset was created.
func fluidReady() *fluidFacts {
	dc := files()
	set := dataset(dc)
	set.UID, set.CreationTimestamp, set.Status.Phase = "5e7d", fluidBegan, fluid.BoundDatasetPhase
	set.Status.Conditions = []fluid.DatasetCondition{{Type: fluid.DatasetReady, Status: corev1.ConditionTrue, LastUpdateTime: fluidBegan}}
	set.Status.CacheStates = common.CacheStateList{common.CachedPercentage: "43.7%"}
	runtime := runtimeOfCache(dc, set)
	runtime.SetUID("70f3")
	*runtime.GetStatus() = fluid.RuntimeStatus{FusePhase: fluid.RuntimePhaseReady, DesiredWorkerNumberScheduled: 2, WorkerNumberReady: 2}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: dc.Namespace, Name: dc.Name, Annotations: map[string]string{"CreatedBy": "fluid"}},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "team-a-pictures"}}
	volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: dc.Namespace, Name: dc.Name}
	probe := fluidProbe(dc, set, inject.Gate{Image: "cacheserver"}, nil)
	probe.CreationTimestamp, probe.Status.Conditions = fluidBegan, []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	return &fluidFacts{now: fluidBegan.Add(time.Minute), cache: dc, dataset: set, runtime: runtime, claim: claim, volume: volume, probe: probe}
}

func (f *fluidFacts) after(d time.Duration) { f.now = fluidBegan.Add(d) }

// notBound is the state before Fluid has started the runtime.
func (f *fluidFacts) notBound() {
	f.dataset.Status.Phase, f.dataset.Status.Conditions, f.claim, f.volume = fluid.NotBoundDatasetPhase, nil, nil, nil
}

// notReady adds a condition that Fluid has set at one time for the first and at another for the last time.
func (f *fluidFacts) notReady(first, last time.Duration, message string) {
	f.dataset.Status.Conditions = append(f.dataset.Status.Conditions, fluid.DatasetCondition{
		Type: fluid.DatasetNotReady, Status: corev1.ConditionTrue, Message: message,
		LastTransitionTime: metav1.NewTime(fluidBegan.Add(first)), LastUpdateTime: metav1.NewTime(fluidBegan.Add(last)),
	})
}

// warn adds a Warning event that was seen at one time for the first and at another for the last time.
func (f *fluidFacts) warn(first, last time.Duration, reason, message string) {
	f.warnings = append(f.warnings, corev1.Event{
		Reason: reason, Message: message, FirstTimestamp: metav1.NewTime(fluidBegan.Add(first)), LastTimestamp: metav1.NewTime(fluidBegan.Add(last)),
		InvolvedObject: corev1.ObjectReference{Kind: "AlluxioRuntime", Name: f.runtime.GetName(), UID: f.runtime.GetUID()},
	})
}

// probing is the state in which the probe's pod, if the phase is not "", has not ended with success.
func (f *fluidFacts) probing(phase corev1.PodPhase, node string) *corev1.Pod {
	f.probe.Status.Conditions = nil
	if phase == "" {
		return nil
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "probe-q9", CreationTimestamp: fluidBegan},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: phase},
	}
	f.probes = append(f.probes, pod)
	return pod
}

func (f *fluidFacts) probeFailed() {
	f.probe.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Message: "backoff limit"}}
}

// unschedulable says that the probe's pod gets no node.
func (f *fluidFacts) unschedulable() {
	f.probing(corev1.PodPending, "").Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "untolerated taint",
	}}
}

// warnOf adds a Warning event of an object besides the runtime.
func (f *fluidFacts) warnOf(kind, name, message string) {
	f.warn(30*time.Second, 30*time.Second, "FailedMount", message)
	f.warnings[len(f.warnings)-1].InvolvedObject = corev1.ObjectReference{Kind: kind, Name: name}
}

// waiting adds a pod whose container can't start.
func (f *fluidFacts) waiting(name, reason string) {
	f.pods = append(f.pods, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, CreationTimestamp: fluidBegan},
		Spec:       corev1.PodSpec{NodeName: "node-7"},
		Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "pulling image failed"}},
		}}},
	})
}

func (f *fluidFacts) warmUp(phase common.Phase) {
	f.cache.Spec.Fluid.WarmUp = true
	f.load = dataLoad(f.cache, f.dataset)
	f.load.Status.Phase = phase
}

// TestFluidStates checks the condition for each case in which Fluid 1.0.8 says something else than what is true, and for the ordinary ones.
func TestFluidStates(t *testing.T) {
	tests := map[string]struct {
		edit    func(*fluidFacts)
		state   v1alpha1.State
		reason  string
		message []string
	}{
		"ready": {func(*fluidFacts) {}, v1alpha1.StateReady, "Loaded", []string{"s3://bucket/imagenet", "claim pictures"}},

		"just asked for":      {func(f *fluidFacts) { f.notBound(); f.dataset.Status.Phase = "" }, v1alpha1.StatePending, "PodsStarting", []string{"Dataset is NotBound"}},
		"bound, no claim yet": {func(f *fluidFacts) { f.claim = nil }, v1alpha1.StatePending, "PodsStarting", []string{"no bound claim yet"}},
		"claim not bound":     {func(f *fluidFacts) { f.claim.Status.Phase = corev1.ClaimPending }, v1alpha1.StatePending, "PodsStarting", []string{"no bound claim yet"}},

		"not probed yet":  {func(f *fluidFacts) { f.probe = nil }, v1alpha1.StateLoading, "Loading", []string{"a pod mounts the files"}},
		"probe asked for": {func(f *fluidFacts) { f.after(30 * time.Second); f.probing("", "") }, v1alpha1.StateLoading, "Loading", []string{"a pod mounts the files"}},
		"probe starts":    {func(f *fluidFacts) { f.probing(corev1.PodPending, "node-7") }, v1alpha1.StateLoading, "Loading", []string{"a pod mounts the files"}},
		"probe succeeded, its Job not yet": {func(f *fluidFacts) {
			f.probing(corev1.PodSucceeded, "node-7")
		}, v1alpha1.StateReady, "Loaded", nil},
		"was ready before, probe gone": {func(f *fluidFacts) {
			f.probe = nil
			f.cache.Status.ProvisionedTime, f.cache.Status.ReadyTime = &fluidBegan, &fluidBegan
		}, v1alpha1.StateReady, "Loaded", nil},
		"an earlier Dataset was ready": {func(f *fluidFacts) {
			f.probe = nil
			f.cache.Status.ProvisionedTime, f.cache.Status.ReadyTime = new(metav1.NewTime(fluidBegan.Add(-time.Hour))), &fluidBegan
		}, v1alpha1.StateLoading, "Loading", nil},
		"probe: FUSE image missing": {func(f *fluidFacts) {
			f.probing(corev1.PodPending, "node-7")
			f.waiting("pictures-fuse-x7", "ImagePullBackOff")
		}, v1alpha1.StateLoading, "ImagePullBackOff", []string{"can't be mounted on node node-7", "pictures-fuse-x7", "pulling image failed"}},
		"probe: FUSE image missing for 5 min": {func(f *fluidFacts) {
			f.after(5 * time.Minute)
			f.probing(corev1.PodPending, "node-7")
			f.waiting("pictures-fuse-x7", "ImagePullBackOff")
		}, v1alpha1.StateFailed, "ImagePullBackOff", []string{"can't be mounted on node node-7", "pictures-fuse-x7", "pulling image failed"}},
		"probe: FUSE image is large": {func(f *fluidFacts) {
			f.after(6 * time.Minute)
			f.probing(corev1.PodPending, "node-7")
			f.waiting("pictures-fuse-x7", "ContainerCreating")
		}, v1alpha1.StateLoading, "FuseUnavailable", []string{"node-7", "pictures-fuse-x7 is not ready"}},
		"probe: its time is over": {func(f *fluidFacts) {
			f.probing(corev1.PodPending, "node-7").DeletionTimestamp = new(fluidBegan)
			f.probeFailed()
		}, v1alpha1.StateFailed, "NotMounted", []string{"on node node-7: Job pictures-probe failed"}},
		"probe: FUSE pods refused": {func(f *fluidFacts) {
			f.probing(corev1.PodPending, "node-7")
			f.warnOf("DaemonSet", "pictures-fuse", "violates PodSecurity")
		}, v1alpha1.StateLoading, "FailedMount", []string{"can't be mounted: DaemonSet pictures-fuse: violates PodSecurity"}},
		"probe: no CSI plugin": {func(f *fluidFacts) {
			f.probing(corev1.PodPending, "node-7")
			f.warnOf("Pod", "probe-q9", "driver name fuse.csi.fluid.io not found")
		}, v1alpha1.StateLoading, "FailedMount", []string{"can't be mounted on node node-7", "driver name fuse.csi.fluid.io not found"}},
		"probe: no CSI plugin for a moment": {func(f *fluidFacts) {
			f.after(4 * time.Minute)
			f.probing(corev1.PodPending, "node-7")
			f.warnOf("Pod", "probe-q9", "driver name fuse.csi.fluid.io not found")
		}, v1alpha1.StateLoading, "Loading", nil},
		"probe: no answer": {func(f *fluidFacts) {
			f.probing(corev1.PodRunning, "node-7")
		}, v1alpha1.StateLoading, "NotMounted", []string{"node-7", "probe-q9", "since 12:00:00", "no answer"}},
		"probe: the storage refuses, another try": {func(f *fluidFacts) {
			f.probing(corev1.PodFailed, "node-7").Status.ContainerStatuses = []corev1.ContainerStatus{{
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "error: read folder /files:\n permission denied"}},
			}}
		}, v1alpha1.StateLoading, "NotMounted", []string{"on node node-7: pod probe-q9 failed: error: read folder /files: permission denied"}},
		"probe: the storage refuses": {func(f *fluidFacts) {
			f.probing(corev1.PodFailed, "node-7").Status.ContainerStatuses = []corev1.ContainerStatus{{
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "permission denied"}},
			}}
			f.probeFailed()
		}, v1alpha1.StateFailed, "NotMounted", []string{"probe-q9 failed: permission denied"}},
		"probe: failed, its pods are gone": {func(f *fluidFacts) {
			f.probeFailed()
		}, v1alpha1.StateFailed, "NotMounted", []string{"Job pictures-probe failed: backoff limit"}},
		"probe: its own image missing": {func(f *fluidFacts) {
			f.waiting("probe-q9", "ErrImagePull")
			f.probes, f.pods = f.pods, nil
			f.probe.Status.Conditions = nil
		}, v1alpha1.StateLoading, "ErrImagePull", []string{"node-7", "probe-q9"}},
		"probe: no node takes it":              {func(f *fluidFacts) { f.unschedulable() }, v1alpha1.StateReady, "Loaded", []string{"not tried", "probe-q9 can't be scheduled: untolerated taint"}},
		"probe: no node takes it for a moment": {func(f *fluidFacts) { f.after(59 * time.Second); f.unschedulable() }, v1alpha1.StateLoading, "Unschedulable", []string{"untolerated taint"}},
		"probe: a quota keeps it from running": {func(f *fluidFacts) {
			f.probing("", "")
			f.warnOf("Job", "pictures-probe", "exceeded quota")
		}, v1alpha1.StateReady, "Loaded", []string{"not tried", "exceeded quota"}},
		"probe: its Job has no pod":           {func(f *fluidFacts) { f.probing("", "") }, v1alpha1.StateReady, "Loaded", []string{"not tried", "has no pod"}},
		"probe runs, and the warm-up":         {func(f *fluidFacts) { f.probing(corev1.PodPending, "node-7"); f.warmUp(common.PhaseExecuting) }, v1alpha1.StateLoading, "Loading", []string{"pictures-warm is Executing"}},
		"probe runs, the warm-up is complete": {func(f *fluidFacts) { f.probing(corev1.PodPending, "node-7"); f.warmUp(common.PhaseComplete) }, v1alpha1.StateLoading, "Loading", []string{"a pod mounts the files"}},
		"probe in trouble, and the warm-up runs": {func(f *fluidFacts) {
			f.probing(corev1.PodPending, "node-7")
			f.warmUp(common.PhaseExecuting)
			f.waiting("pictures-fuse-x7", "ImagePullBackOff")
		}, v1alpha1.StateLoading, "ImagePullBackOff", []string{"node-7"}},

		"FUSE image missing": {func(f *fluidFacts) {
			f.runtime.GetStatus().FuseNumberUnavailable = 1
			f.waiting("pictures-fuse-x7", "ImagePullBackOff")
		}, v1alpha1.StateDegraded, "ImagePullBackOff", []string{"can't be mounted on node node-7", "pictures-fuse-x7", "pulling image failed"}},
		"FUSE image missing for 5 min": {func(f *fluidFacts) {
			f.after(5 * time.Minute)
			f.runtime.GetStatus().FuseNumberUnavailable = 1
			f.waiting("pictures-fuse-x7", "ImagePullBackOff")
		}, v1alpha1.StateFailed, "ImagePullBackOff", []string{"node-7"}},
		"FUSE broken on one node of two": {func(f *fluidFacts) {
			f.after(time.Hour)
			f.runtime.GetStatus().FuseNumberUnavailable, f.runtime.GetStatus().FuseNumberReady = 1, 1
			f.waiting("pictures-fuse-x7", "ImagePullBackOff")
		}, v1alpha1.StateDegraded, "ImagePullBackOff", []string{"node-7"}},
		"FUSE pod stays ContainerCreating": {func(f *fluidFacts) {
			f.after(2 * time.Minute)
			f.runtime.GetStatus().FuseNumberUnavailable = 1
			f.waiting("pictures-fuse-x7", "ContainerCreating")
		}, v1alpha1.StateDegraded, "FuseUnavailable", []string{"node-7", "pictures-fuse-x7 is not ready"}},
		"FUSE pod starts": {func(f *fluidFacts) {
			f.after(30 * time.Second)
			f.runtime.GetStatus().FuseNumberUnavailable = 1
			f.waiting("pictures-fuse-x7", "ContainerCreating")
		}, v1alpha1.StateReady, "Loaded", nil},
		"a worker is gone":    {func(f *fluidFacts) { f.runtime.GetStatus().WorkerNumberReady = 1 }, v1alpha1.StateDegraded, "WorkersUnavailable", []string{"1 of 2 workers"}},
		"the runtime is gone": {func(f *fluidFacts) { f.runtime = nil }, v1alpha1.StateDegraded, "PodsStarting", []string{"AlluxioRuntime pictures is gone"}},

		"helm fails": {func(f *fluidFacts) { f.notBound(); f.notReady(time.Second, time.Second, "chart not found") }, v1alpha1.StatePending, "FluidNotReady", []string{"chart not found"}},
		"helm fails for 5 min": {func(f *fluidFacts) {
			f.after(6 * time.Minute)
			f.notBound()
			f.notReady(time.Minute, 5*time.Minute, "chart not found")
		}, v1alpha1.StateFailed, "FluidNotReady", []string{"chart not found"}},
		"helm failed once, and Fluid is busy": {func(f *fluidFacts) {
			f.after(6 * time.Minute)
			f.notBound()
			f.notReady(time.Second, time.Second, "chart not found")
		}, v1alpha1.StatePending, "FluidNotReady", []string{"chart not found"}},
		"helm fails for 2 min on a busy machine": {func(f *fluidFacts) {
			f.after(6 * time.Minute)
			f.notBound()
			f.notReady(4*time.Minute, 6*time.Minute, "chart not found")
		}, v1alpha1.StatePending, "FluidNotReady", []string{"chart not found"}},
		"helm failed before": {func(f *fluidFacts) {
			f.notReady(-time.Second, -time.Second, "chart not found")
		}, v1alpha1.StateReady, "Loaded", nil},
		"helm failed before, claim to come": {func(f *fluidFacts) {
			f.claim = nil
			f.notReady(-time.Second, -time.Second, "chart not found")
		}, v1alpha1.StatePending, "PodsStarting", []string{"no bound claim yet"}},

		"Alluxio image missing": {func(f *fluidFacts) { f.notBound(); f.waiting("pictures-master-0", "ErrImagePull") }, v1alpha1.StatePending, "ErrImagePull", []string{"pictures-master-0", "pulling image failed"}},
		"Alluxio image missing for an init container": {func(f *fluidFacts) {
			f.notBound()
			f.waiting("pictures-master-0", "ErrImagePull")
			status := &f.pods[0].Status
			status.InitContainerStatuses, status.ContainerStatuses = status.ContainerStatuses, nil
		}, v1alpha1.StatePending, "ErrImagePull", []string{"pictures-master-0", "pulling image failed"}},
		"Alluxio image missing for 5 min": {func(f *fluidFacts) {
			f.after(6 * time.Minute)
			f.notBound()
			f.waiting("pictures-master-0", "ErrImagePull")
		}, v1alpha1.StateFailed, "ErrImagePull", []string{"pictures-master-0"}},
		"profile missing": {func(f *fluidFacts) {
			f.notBound()
			f.warn(20*time.Second, 20*time.Second, "ErrorProcessRuntimeReason", `profile "nfs" not found`)
		}, v1alpha1.StatePending, "ErrorProcessRuntimeReason", []string{`profile "nfs" not found`}},
		"quota on requests.storage": {func(f *fluidFacts) {
			f.claim = nil
			f.warn(20*time.Second, 20*time.Second, "ErrorProcessRuntimeReason", "exceeded quota")
		}, v1alpha1.StatePending, "ErrorProcessRuntimeReason", []string{"no bound claim yet", "exceeded quota"}},
		"quota for 5 min": {func(f *fluidFacts) {
			f.after(7 * time.Minute)
			f.claim = nil
			f.warn(20*time.Second, 6*time.Minute, "ErrorProcessRuntimeReason", "exceeded quota")
		}, v1alpha1.StateFailed, "ErrorProcessRuntimeReason", []string{"exceeded quota"}},
		"a conflict at the start": {func(f *fluidFacts) {
			f.after(5 * time.Second)
			f.notBound()
			f.warn(time.Second, time.Second, "ErrorProcessRuntimeReason", "the object has been modified")
		}, v1alpha1.StatePending, "PodsStarting", nil},
		"a conflict at the start, and Fluid is busy": {func(f *fluidFacts) {
			f.after(6 * time.Minute)
			f.notBound()
			f.warn(time.Second, 30*time.Second, "ErrorProcessRuntimeReason", "the object has been modified")
		}, v1alpha1.StatePending, "ErrorProcessRuntimeReason", []string{"the object has been modified"}},
		"a conflict after 5 min": {func(f *fluidFacts) {
			f.after(6 * time.Minute)
			f.notBound()
			f.warn(5*time.Minute, 5*time.Minute, "ErrorProcessRuntimeReason", "the object has been modified")
		}, v1alpha1.StatePending, "ErrorProcessRuntimeReason", []string{"the object has been modified"}},
		"a warning of an earlier Dataset": {func(f *fluidFacts) {
			f.notBound()
			f.warn(-time.Second, -time.Second, "ErrorProcessRuntimeReason", "exceeded quota")
		}, v1alpha1.StatePending, "PodsStarting", nil},

		"somebody's claim": {func(f *fluidFacts) { f.claim.Annotations = nil }, v1alpha1.StateFailed, "NameTaken", []string{"PersistentVolumeClaim team-a/pictures", "somebody else"}},
		"names collide": {func(f *fluidFacts) {
			f.notBound()
			f.volume = fluidReady().volume
			f.volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team", Name: "a-pictures"}
		}, v1alpha1.StateFailed, "NameTaken", []string{"team-a-pictures", "team/a-pictures", "another name"}},

		"warm-up asked for": {func(f *fluidFacts) { f.warmUp(""); f.load = nil }, v1alpha1.StateLoading, "Loading", []string{"asked for"}},
		"warm-up pending":   {func(f *fluidFacts) { f.warmUp("") }, v1alpha1.StateLoading, "Loading", []string{"pictures-warm is Pending"}},
		"warm-up runs":      {func(f *fluidFacts) { f.warmUp(common.PhaseExecuting) }, v1alpha1.StateLoading, "Loading", []string{"Executing", "43% of the files"}},
		"warm-up complete":  {func(f *fluidFacts) { f.warmUp(common.PhaseComplete) }, v1alpha1.StateReady, "Loaded", nil},
		"warm-up failed": {func(f *fluidFacts) {
			f.warmUp(common.PhaseFailed)
			f.load.Status.Conditions = []fluid.Condition{{Type: common.Failed, Message: "the Job failed"}}
		}, v1alpha1.StateFailed, "WarmUpFailed", []string{"pictures-warm", "the Job failed"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := fluidReady()
			tt.edit(f)
			got := conditionOfFluid(f)
			if got.State != tt.state || got.Reason != tt.reason {
				t.Errorf("it is %s, %s: %s; want %s, %s", got.State, got.Reason, got.Message, tt.state, tt.reason)
			}
			for _, part := range tt.message {
				if !strings.Contains(got.Message, part) {
					t.Errorf("%q does not hold %q", got.Message, part)
				}
			}
		})
	}
}

func TestFluidPercent(t *testing.T) {
	for text, want := range map[string]int32{"43.7%": 43, "100.0%": 100, "0.0%": 0, "": -1, "[Calculating]": -1} {
		f := fluidReady()
		f.dataset.Status.CacheStates[common.CachedPercentage] = text
		got := f.percent()
		if want < 0 && got != nil || want >= 0 && (got == nil || *got != want) {
			t.Errorf("%q is %v, want %d", text, got, want)
		}
	}
}
