// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

var (
	jobSetKind   = schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}
	workloadKind = schema.GroupVersionKind{Group: "kueue.x-k8s.io", Version: "v1beta2", Kind: "WorkloadList"}
)

// suspended says what a suspended TrainJob waits for: if Kueue manages it, what its Workload says.
func (w *walk) suspended(ctx context.Context, f Finding) (Finding, error) {
	f.State, f.Blocks, f.Fix = "suspended: its cache starts when it runs", true, "set spec.suspend to false"
	workloads := &unstructured.UnstructuredList{}
	workloads.SetGroupVersionKind(workloadKind)
	err := w.reader.List(ctx, workloads, client.InNamespace(w.job.Namespace))
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) { // Kueue is not installed, or the user may not list Workloads
		f.Fix += "; if Kueue manages it, see `kubectl describe workloads` for what it waits for"
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("list the Workloads of namespace %s: %w", w.job.Namespace, err)
	}
	for i := range workloads.Items {
		workload := &workloads.Items[i]
		if !metav1.IsControlledBy(workload, w.job) {
			continue
		}
		w.queued(workload, &f)
	}
	return f, nil
}

// queued says what the Workload of a suspended TrainJob waits for.
func (w *walk) queued(workload *unstructured.Unstructured, f *Finding) {
	f.Fix = "as Kueue's message says: a larger quota, smaller requests, or wait for other jobs"
	f.State = "suspended: Kueue has not looked at its Workload " + workload.GetName() + " yet: is there a LocalQueue of its queue's name?"
	conditions, _, _ := unstructured.NestedSlice(workload.Object, "status", "conditions")
	reserved := false
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		if condition["status"] == "False" && (condition["type"] == "QuotaReserved" || condition["type"] == "Admitted") {
			f.State = fmt.Sprintf("suspended: Kueue: %v", condition["message"])
		}
		reserved = reserved || condition["status"] == "True" && condition["type"] == "QuotaReserved"
	}
	active, set, _ := unstructured.NestedBool(workload.Object, "spec", "active")
	if _, until, paused := strings.Cut(workload.GetAnnotations()[wellknown.AnnotationPause], " "); paused && set && !active {
		f.State = "suspended: its cache got no quota, so that it gave its own back until " + until
		f.Fix = "a larger quota, or wait for other jobs"
	}
	checks := checksOf(workload)
	if !reserved || checks == "" {
		return
	}
	f.State, f.Fix = "suspended: Kueue has reserved its quota, and waits"+checks, "as the message says"
	w.loads = strings.Contains(checks, "; AdmissionCheck datacache: ")
	if strings.HasSuffix(checks, " waits for quota") {
		w.loads, f.Fix = false, "a larger quota, or wait for other jobs; it gives its own quota back after 5 to 10 minutes, and tries again later"
	}
}

// checksOf says which AdmissionChecks of a Workload are not Ready, and why; "" if all are.
func checksOf(workload *unstructured.Unstructured) (text string) {
	checks, _, _ := unstructured.NestedSlice(workload.Object, "status", "admissionChecks")
	for _, c := range checks {
		if check, _ := c.(map[string]any); check["state"] != "Ready" {
			text += fmt.Sprintf("; AdmissionCheck %v: %v", check["name"], check["message"])
		}
	}
	return text
}

// jobs checks that JobSet has created the TrainJob's Jobs, and these their pods.
func (w *walk) jobs(ctx context.Context) (Finding, error) {
	f := Finding{Subject: "Jobs of the TrainJob"}
	var jobs batchv1.JobList
	err := w.reader.List(ctx, &jobs, client.InNamespace(w.job.Namespace), client.MatchingLabels{wellknown.LabelJobSet: w.job.Name})
	if apierrors.IsForbidden(err) {
		f.State, f.Unseen = "you may not list them", true
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("list the Jobs of TrainJob %s: %w", client.ObjectKeyFromObject(w.job), err)
	}
	ended := 0
	for i := range jobs.Items {
		job := &jobs.Items[i]
		if isTrue(job, batchv1.JobComplete) {
			ended++
			continue
		}
		if blocking, err := w.batchJob(ctx, job); err != nil || blocking.Blocks {
			return blocking, err
		}
	}
	if ended == len(jobs.Items) && !w.failed {
		return w.noJob(ctx, ended)
	}
	f.State = fmt.Sprintf("%d, of which %d ended", len(jobs.Items), ended)
	return f, nil
}

// batchJob checks that a Job has created its pods.
func (w *walk) batchJob(ctx context.Context, job *batchv1.Job) (Finding, error) {
	f := Finding{Subject: "Job " + job.Name}
	want := ptr.Deref(job.Spec.Parallelism, 1)
	have := job.Status.Active + job.Status.Succeeded
	for _, c := range job.Status.Conditions {
		if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
			return w.failedJob(ctx, job, c.Message)
		}
	}
	if have >= want || ptr.Deref(job.Spec.Suspend, false) {
		return f, nil
	}
	why, err := w.warning(ctx, job, func(reason string) bool { return reason == "FailedCreate" })
	switch {
	case err != nil:
		return f, err
	case why != "":
		f.State, f.Blocks = fmt.Sprintf("has %d of %d pods: %s", have, want, why), true
		f.Fix = fmt.Sprintf("as the message says: a larger quota (kubectl -n %s describe quota), other limits, or other settings of the pods", job.Namespace)
	case have == 0 && job.Status.Failed == 0:
		f.State, f.Blocks = fmt.Sprintf("has none of its %d pods yet", want), true
	}
	return f, nil
}

// failedJob says what happened to a pod of a failed Job or, if none is left that tells, what the Job says.
func (w *walk) failedJob(ctx context.Context, job *batchv1.Job, message string) (Finding, error) {
	pods, err := w.podsOf(ctx, client.MatchingLabels{batchv1.JobNameLabel: job.Name})
	if err != nil {
		return Finding{}, err
	}
	for i := range pods {
		why, fix, err := w.troubleOf(ctx, &pods[i])
		if err != nil || why != "" {
			return Finding{Subject: "pod " + pods[i].Name, State: why, Blocks: true, Fix: fix}, err
		}
	}
	return Finding{
		Subject: "Job " + job.Name, State: "failed: " + message, Blocks: true,
		Fix: fmt.Sprintf("kubectl -n %s logs -l job-name=%s --all-containers --tail 30", job.Namespace, job.Name),
	}, nil
}

// noJob says why JobSet has not created the Jobs that are still to come.
func (w *walk) noJob(ctx context.Context, ended int) (Finding, error) {
	f := Finding{Subject: "JobSet " + w.job.Name, Blocks: true}
	set := &metav1.PartialObjectMetadata{}
	set.SetGroupVersionKind(jobSetKind)
	err := w.reader.Get(ctx, client.ObjectKeyFromObject(w.job), set)
	var about client.Object = set
	switch {
	case apierrors.IsNotFound(err):
		f.State, f.Fix = "does not exist: Trainer has not created it", "ask who runs Trainer to look at its manager's log"
		about = w.job
	case apierrors.IsForbidden(err):
		f.State, f.Blocks, f.Unseen = "you may not read it", false, true
		return f, nil
	case err != nil:
		return f, fmt.Errorf("get JobSet %s: %w", client.ObjectKeyFromObject(w.job), err)
	case ended == 0:
		f.State, f.Fix = "has created no Job", "ask who runs JobSet to look at its manager's log"
	default:
		f.State, f.Fix = fmt.Sprintf("has created no more Jobs since %d ended", ended), "ask who runs JobSet to look at its manager's log"
	}
	why, err := w.warning(ctx, about, func(reason string) bool { return !strings.HasPrefix(reason, "Cache") })
	if err != nil || why == "" {
		return f, err
	}
	f.State, f.Fix = f.State+": "+why, "as the message says"
	return f, nil
}

// step checks the pods of the step that waits for the caches: while one runs, the training does not start.
func (w *walk) step(ctx context.Context) (Finding, error) {
	f := Finding{Subject: "step " + wellknown.StepName}
	pods, err := w.podsOf(ctx, client.MatchingLabels{wellknown.LabelJobSet: w.job.Name, wellknown.LabelReplicatedJob: wellknown.StepName})
	if err != nil {
		return f, err
	}
	for i := range pods {
		pod := &pods[i]
		f.Subject = "pod " + pod.Name
		if f.State, f.Fix, err = w.troubleOf(ctx, pod); err != nil || f.State != "" {
			f.Blocks = true
			return f, err
		}
		if pod.Status.Phase != corev1.PodRunning {
			continue
		}
		f.State, f.Blocks = "waits, though each cache that you may read is Ready", true
		f.Fix = "if it lasts, the pod can't resolve or reach a cache's head: look at the cluster's DNS, and for a NetworkPolicy or mesh between it and port 50051"
		if line := w.lastLineOf(ctx, pod); line != "" {
			f.State += "; the last line of its log: " + line
		}
		return f, nil
	}
	f.State = "has ended"
	if len(pods) == 0 {
		f.State = "has no pod any more"
	}
	return f, nil
}

// pods checks the training pods, which start when the step has ended.
func (w *walk) pods(ctx context.Context) (Finding, error) {
	f := Finding{Subject: "pods of the TrainJob"}
	pods, err := w.podsOf(ctx, client.MatchingLabels{wellknown.LabelJobSet: w.job.Name})
	if err != nil {
		return f, err
	}
	pods = slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
	running := 0
	for i := range pods {
		pod := &pods[i]
		why, fix, err := w.troubleOf(ctx, pod)
		if err != nil || why != "" {
			return Finding{Subject: "pod " + pod.Name, State: why, Blocks: true, Fix: fix}, err
		}
		if pod.Status.Phase == corev1.PodRunning {
			running++
		}
	}
	f.State = fmt.Sprintf("%d of %d run", running, len(pods))
	switch {
	case running == 0:
	case w.notRead != "":
		f.State, f.Unseen, f.Fix = f.State+w.notRead, true, fixes[v1alpha1.ReasonNotRead]
	default:
		f.State += "; their logs say how the training goes"
	}
	return f, nil
}

// podsOf returns the pods with the labels by name.
func (w *walk) podsOf(ctx context.Context, labels client.MatchingLabels) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := w.reader.List(ctx, &pods, client.InNamespace(w.job.Namespace), labels); err != nil {
		return nil, fmt.Errorf("list the pods of TrainJob %s: %w", client.ObjectKeyFromObject(w.job), err)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods.Items, nil
}

// troubleOf says why a pod of the TrainJob does not start or has failed, and what to do; "" if it runs or has succeeded. A container that
// was OOMKilled is named although it runs again: it will be killed again.
func (w *walk) troubleOf(ctx context.Context, pod *corev1.Pod) (why, fix string, err error) {
	fix = "kubectl -n " + w.job.Namespace + " describe pod " + pod.Name
	if pod.DeletionTimestamp != nil {
		if time.Since(pod.DeletionTimestamp.Time) < 0 { // the time until which it may end
			return "", "", nil
		}
		return "should have ended at " + pod.DeletionTimestamp.UTC().Format(time.TimeOnly) + " UTC: its node " + pod.Spec.NodeName + " does not answer",
			"if that machine is lost for good: kubectl delete node " + pod.Spec.NodeName, nil
	}
	if why := Waits(pod); why != "" {
		if strings.HasPrefix(why, "CreateContainerConfigError") {
			fix = "create in namespace " + w.job.Namespace + " the Secret or ConfigMap that the message names, or its key"
		}
		event, err := w.warning(ctx, pod, func(string) bool { return true })
		if event != "" && !strings.Contains(why, event) {
			why += ": " + event
		}
		return why, fix, err
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			switch {
			case end == nil || end.ExitCode == 0:
			case end.Reason == "OOMKilled":
				return "container " + c.Name + " is OOMKilled: it reached its memory limit", "raise its memory, or lower prefetch_bytes: docs/use.md, Memory of a training pod", nil
			case c.State.Running == nil: // and it is not restarted, or not yet
				return fmt.Sprintf("container %s ended with exit code %d (%s)", c.Name, end.ExitCode, end.Reason), fmt.Sprintf("kubectl -n %s logs %s -c %s", w.job.Namespace, pod.Name, c.Name), nil
			}
		}
	}
	if pod.Status.Phase == corev1.PodFailed { // evicted, preempted
		return strings.TrimSuffix("failed: "+pod.Status.Reason+": "+pod.Status.Message, ": "), fix, nil
	}
	return "", "", nil
}

// Waits says why a pod does not start; "" if it runs or has ended.
func Waits(pod *corev1.Pod) string {
	if pod.Status.Phase != corev1.PodPending {
		return ""
	}
	scheduled := false
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			if c.Status == corev1.ConditionFalse {
				return c.Reason + ": " + c.Message
			}
			scheduled = true
		}
	}
	if !scheduled && pod.Spec.NodeName == "" {
		return "no scheduler has looked at it: is there one named " + pod.Spec.SchedulerName + "?"
	}
	starting := ""
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		waiting := s.State.Waiting
		switch {
		case s.State.Running != nil && starting == "":
			starting = "its container " + s.Name + " runs before the others"
		case waiting == nil:
		case waiting.Reason == "PodInitializing" || waiting.Reason == "ContainerCreating":
			starting = cmp.Or(starting, waiting.Reason)
		default:
			return strings.TrimSuffix(waiting.Reason+": "+waiting.Message, ": ")
		}
	}
	return cmp.Or(starting, "node "+pod.Spec.NodeName+" has not begun to start it")
}

// lastLineOf returns the last line of the log of a pod's first container; "" if it can't be read.
func (w *walk) lastLineOf(ctx context.Context, pod *corev1.Pod) string {
	if w.log == nil || len(pod.Spec.Containers) == 0 {
		return ""
	}
	line, err := w.log(ctx, client.ObjectKeyFromObject(pod), pod.Spec.Containers[0].Name, 1)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(line)
}

// warning is the message of the newest warning about an object whose reason is wanted; "" if there is none.
func (w *walk) warning(ctx context.Context, about client.Object, wanted func(reason string) bool) (string, error) {
	var events corev1.EventList
	if err := w.reader.List(ctx, &events, client.InNamespace(w.job.Namespace)); err != nil {
		return "", fmt.Errorf("list events of namespace %s: %w", w.job.Namespace, err)
	}
	found := slices.DeleteFunc(events.Items, func(e corev1.Event) bool {
		return e.InvolvedObject.UID != about.GetUID() || e.Type != corev1.EventTypeWarning || !wanted(e.Reason)
	})
	if len(found) == 0 {
		return "", nil
	}
	return slices.MaxFunc(found, func(a, b corev1.Event) int { return timeOf(&a).Compare(timeOf(&b)) }).Message, nil
}

// timeOf is when an event happened last; reporters that use the newer API leave the older field empty.
func timeOf(e *corev1.Event) time.Time {
	if e.LastTimestamp.IsZero() {
		return e.EventTime.Time
	}
	return e.LastTimestamp.Time
}

func isTrue(job *batchv1.Job, condition batchv1.JobConditionType) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == condition && c.Status == corev1.ConditionTrue })
}
