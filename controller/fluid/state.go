// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fluid

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	fluid "github.com/fluid-cloudnative/fluid/api/v1alpha1"
	"github.com/fluid-cloudnative/fluid/pkg/common"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/podstate"
)

const (
	// fluidPatience is how long a Dataset may take before the reason is looked for: Fluid retries many of its own conflicts.
	fluidPatience = 10 * time.Second
	// fluidFailsAfter is how long something must keep a cache from being used before the cache is Failed.
	fluidFailsAfter = 5 * time.Minute
	// fluidRetriesWithin is how old the last sign of a trouble may be for the trouble to persist: Fluid retries after 20 s what precedes the
	// claim, and after 90 s the claim (pkg/controllers/runtime_controller.go, pkg/utils/crtl_utils.go of v1.0.8); later when it is busy.
	fluidRetriesWithin = 2 * time.Minute
	// fuseStartsWithin is how long a FUSE pod may take to start before it counts as broken: it starts only when a job's pod wants it.
	fuseStartsWithin = time.Minute
)

// Reasons of conditions, besides those of pods that can't start and those of Warning events.
const (
	ReasonMissing       = "FluidMissing"
	reasonFluidNotReady = "FluidNotReady"
	reasonWarmUpFailed  = "WarmUpFailed"
	reasonNotMounted    = "NotMounted"
	reasonFuse          = "FuseUnavailable"
	reasonWorkers       = "WorkersUnavailable"
)

// fluidFacts is what the API server knows of a Dataset that exists and of the objects around it. Those that do not exist are nil.
type fluidFacts struct {
	now      time.Time
	cache    *v1alpha1.DataCache
	dataset  *fluid.Dataset
	runtime  fluidRuntime
	claim    *corev1.PersistentVolumeClaim
	volume   *corev1.PersistentVolume
	load     *fluid.DataLoad
	probe    *batchv1.Job
	pods     []*corev1.Pod  // master, workers and FUSE clients
	probes   []*corev1.Pod  // pods of the probe
	warnings []corev1.Event // of the namespace
}

// age is how long ago the Dataset was created.
func (f *fluidFacts) age() time.Duration { return f.now.Sub(f.dataset.CreationTimestamp.Time) }

// conditionOfFluid derives the condition of a cache. It does not rely on Fluid's own phases: a Dataset is Bound and Ready while its claim was
// refused, belongs to somebody else, or can't be mounted (docs/fluid.md has the cases).
func conditionOfFluid(f *fluidFacts) engine.Condition {
	if c := f.taken(); c != nil {
		return *c
	}
	if f.dataset.Status.Phase != fluid.BoundDatasetPhase || f.claim == nil || f.claim.Status.Phase != corev1.ClaimBound {
		return f.unbound()
	}
	mounting, unknown := f.mounting()
	if mounting != nil && mounting.Reason != engine.ReasonLoading {
		return *mounting
	}
	if f.cache.Spec.Fluid.WarmUp {
		if c := f.warmingUp(); c != nil {
			return *c
		}
	}
	if mounting != nil {
		return *mounting
	}
	if c := f.broken(); c != nil {
		return *c
	}
	c := engine.Condition{State: v1alpha1.StateReady, Reason: engine.ReasonLoaded, Message: fmt.Sprintf("%s can be mounted by claim %s", locations(f.cache.Spec.Fluid), f.claim.Name)}
	if unknown != nil {
		c.Message += "; that was not tried: " + unknown.Message
	}
	return c
}

// taken returns the condition of a cache whose claim or volume belongs to somebody else.
func (f *fluidFacts) taken() *engine.Condition {
	dc := f.cache
	if f.claim != nil && f.claim.Annotations[annotationCreatedBy] != createdByFluid {
		err := &kube.ForeignError{Kind: "PersistentVolumeClaim", Name: kube.Qualified(f.claim), Owner: "somebody else than Fluid"}
		return &engine.Condition{State: v1alpha1.StateFailed, Reason: engine.ReasonNameTaken, Message: err.Error()}
	}
	if f.volume != nil && !isClaimOf(f.volume, dc) {
		ref := f.volume.Spec.ClaimRef
		return &engine.Condition{State: v1alpha1.StateFailed, Reason: engine.ReasonNameTaken, Message: fmt.Sprintf(
			"Fluid names the volume of %s %s, and the claim %s/%s has a volume of this name: choose another name for one of the two caches",
			kube.Qualified(dc), f.volume.Name, ref.Namespace, ref.Name)}
	}
	return nil
}

// unbound returns the condition of a cache without a bound claim.
func (f *fluidFacts) unbound() engine.Condition {
	c := engine.Condition{State: v1alpha1.StatePending, Reason: engine.ReasonStarting, Message: fmt.Sprintf("its Dataset is %s", cmp.Or(f.dataset.Status.Phase, fluid.NotBoundDatasetPhase))}
	if f.dataset.Status.Phase == fluid.BoundDatasetPhase {
		c.Message = "its Dataset is Bound and has no bound claim yet"
	}
	why, persists := f.trouble()
	if why == nil {
		return c
	}
	c.Reason, c.Message = why.Reason, c.Message+"; "+why.Message
	if persists {
		c.State = v1alpha1.StateFailed
	}
	return c
}

// trouble returns what keeps a Dataset from being bound, nil if it only needs time; and whether it has done so for fluidFailsAfter. A condition
// NotReady stays True after a recovery, so only one that is newer than Ready counts.
func (f *fluidFacts) trouble() (why *podstate.Trouble, persists bool) {
	for _, pod := range podstate.ByName(f.pods) {
		if t := podstate.PodTrouble(pod); t != nil {
			return t, f.lasts(pod.CreationTimestamp.Time, f.now)
		}
	}
	if f.age() >= fluidPatience {
		if e := f.warned(); e != nil {
			t := &podstate.Trouble{Reason: cmp.Or(podstate.Word(e.Reason), "FluidWarning"), Message: fmt.Sprintf("%s %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message)}
			return t, f.lasts(podstate.FirstTimeOf(e), podstate.TimeOf(e))
		}
	}
	no, yes := f.datasetCondition(fluid.DatasetNotReady), f.datasetCondition(fluid.DatasetReady)
	if no != nil && (yes == nil || yes.LastUpdateTime.Before(&no.LastUpdateTime)) {
		return &podstate.Trouble{Reason: reasonFluidNotReady, Message: "Fluid says: " + cmp.Or(no.Message, no.Reason)}, f.lasts(no.LastTransitionTime.Time, no.LastUpdateTime.Time)
	}
	return nil, false
}

// lasts reports whether a problem, first and last reported at these times, has lasted for fluidFailsAfter and is still being reported. On a
// busy cluster Fluid needs minutes for a Dataset; a conflict that it reported once, at the beginning, does not count.
func (f *fluidFacts) lasts(first, last time.Time) bool {
	return f.now.Sub(first) >= fluidFailsAfter && f.now.Sub(last) < fluidRetriesWithin
}

func (f *fluidFacts) datasetCondition(kind fluid.DatasetConditionType) *fluid.DatasetCondition {
	for i := range f.dataset.Status.Conditions {
		if c := &f.dataset.Status.Conditions[i]; c.Type == kind && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

// warned returns the latest Warning event of the runtime or the Dataset.
func (f *fluidFacts) warned() *corev1.Event {
	var last *corev1.Event
	for i := range f.warnings {
		e := &f.warnings[i]
		of := &e.InvolvedObject
		ours := of.UID == f.dataset.UID || f.runtime != nil && of.UID == f.runtime.GetUID() || of.Kind == "PersistentVolumeClaim" && of.Name == f.dataset.Name
		if ours && !podstate.TimeOf(e).Before(f.dataset.CreationTimestamp.Time) && (last == nil || podstate.TimeOf(last).Before(podstate.TimeOf(e))) {
			last = e
		}
	}
	return last
}

// warmingUp returns the condition of a cache whose files are still to be read once; nil if they have been.
func (f *fluidFacts) warmingUp() *engine.Condition {
	if f.load == nil {
		return &engine.Condition{State: v1alpha1.StateLoading, Reason: engine.ReasonLoading, Message: "its DataLoad is asked for"}
	}
	switch f.load.Status.Phase {
	case common.PhaseComplete:
		return nil
	case common.PhaseFailed:
		return &engine.Condition{State: v1alpha1.StateFailed, Reason: reasonWarmUpFailed, Message: fmt.Sprintf("DataLoad %s failed: %s", f.load.Name, operationMessage(f.load.Status.Conditions))}
	}
	message := fmt.Sprintf("DataLoad %s is %s", f.load.Name, cmp.Or(string(f.load.Status.Phase), string(common.PhasePending)))
	if percent := f.percent(); percent != nil {
		message += fmt.Sprintf(", %d%% of the files are cached", *percent)
	}
	return &engine.Condition{State: v1alpha1.StateLoading, Reason: engine.ReasonLoading, Message: message}
}

// operationMessage is why an operation of Fluid failed.
func operationMessage(conditions []fluid.Condition) string {
	for _, c := range slices.Backward(conditions) {
		if text := cmp.Or(c.Message, c.Reason); text != "" {
			return text
		}
	}
	return "it says no reason; see the pods of its Job"
}

// broken returns the condition of a cache whose claim is bound and whose FUSE clients or workers don't run; nil if all do. Fluid counts a FUSE
// client as unavailable while it starts, so its pod must have a trouble or be late.
func (f *fluidFacts) broken() *engine.Condition {
	if f.runtime == nil {
		return &engine.Condition{State: v1alpha1.StateDegraded, Reason: engine.ReasonStarting, Message: fmt.Sprintf("%s %s is gone", runtimeKind(f.cache.Spec.Fluid.Runtime.Kind), f.dataset.Name)}
	}
	status := f.runtime.GetStatus()
	if status.FuseNumberUnavailable > 0 {
		if pod, why := f.brokenFuse(); why != nil {
			c := &engine.Condition{State: v1alpha1.StateDegraded, Reason: why.Reason, Message: fmt.Sprintf("the files can't be mounted on node %s: %s", pod.Spec.NodeName, why.Message)}
			if status.FuseNumberReady == 0 && f.now.Sub(pod.CreationTimestamp.Time) >= fluidFailsAfter {
				c.State = v1alpha1.StateFailed
			}
			return c
		}
	}
	if missing := status.DesiredWorkerNumberScheduled - status.WorkerNumberReady; missing > 0 {
		c := &engine.Condition{State: v1alpha1.StateDegraded, Reason: reasonWorkers, Message: fmt.Sprintf("%d of %d workers don't run", missing, status.DesiredWorkerNumberScheduled)}
		if why := podstate.TroubleOf(f.pods); why != nil {
			c.Reason, c.Message = why.Reason, c.Message+": "+why.Message
		}
		return c
	}
	return nil
}

func (f *fluidFacts) brokenFuse() (*corev1.Pod, *podstate.Trouble) {
	for _, pod := range podstate.ByName(f.pods) {
		if !strings.Contains(pod.Name, "-fuse-") || podstate.IsReady(pod) {
			continue
		}
		if why := podstate.PodTrouble(pod); why != nil {
			return pod, why
		}
		if f.now.Sub(pod.CreationTimestamp.Time) >= fuseStartsWithin {
			return pod, &podstate.Trouble{Reason: reasonFuse, Message: fmt.Sprintf("pod %s is not ready", pod.Name)}
		}
	}
	return nil, nil
}

// percent is the share of the files that is cached, as Fluid reports it ("43.0%"); nil if it does not.
func (f *fluidFacts) percent() *int32 {
	text := strings.TrimSuffix(f.dataset.Status.CacheStates[common.CachedPercentage], "%")
	share, err := strconv.ParseFloat(text, 64)
	if err != nil || share < 0 {
		return nil
	}
	return new(int32(min(share, 100)))
}
