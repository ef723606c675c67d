// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package arrow

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/controller/workload"
	"github.com/kubeflow/datacache/internal/view"
	"github.com/kubeflow/datacache/internal/wellknown"
)

const (
	// deletionPatience is how long after the end of its grace period a pod on a machine that answers may still exist.
	deletionPatience = 10 * time.Second
)

// reasonMachine is the reason of the condition of a cache with a pod on a machine that is not ready.
const reasonMachine = "NodeNotReady"

// outage describes a machine, a Kubernetes node, that is not ready.
type outage struct {
	machine string
	since   metav1.Time // zero if the Node object does not exist
	silent  bool        // its kubelet sends no status, or the Node does not exist: changes of its pods are not carried out
}

// outages returns the outages of the machines that the pods are bound to, by the machines' names.
func (e *Engine) outages(ctx context.Context, pods []*corev1.Pod) (map[string]outage, error) {
	out, seen := map[string]outage{}, map[string]bool{"": true}
	for _, pod := range pods {
		name := pod.Spec.NodeName
		if seen[name] {
			continue
		}
		seen[name] = true
		o, err := e.outageOf(ctx, name)
		if err != nil {
			return nil, err
		}
		if o != nil {
			out[name] = *o
		}
	}
	return out, nil
}

// outageOf returns nil for a machine that is ready.
func (e *Engine) outageOf(ctx context.Context, machine string) (*outage, error) {
	node := &corev1.Node{}
	err := e.Client.Get(ctx, types.NamespacedName{Name: machine}, node)
	if apierrors.IsNotFound(err) { // the informer may not have seen a new machine yet
		err = e.Live.Get(ctx, types.NamespacedName{Name: machine}, node)
	}
	if apierrors.IsNotFound(err) {
		return &outage{machine: machine, silent: true}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get Node %s: %w", machine, err)
	}
	ready := readyOf(node)
	if ready == nil || ready.Status == corev1.ConditionTrue {
		return nil, nil // not an outage
	}
	return &outage{machine, ready.LastTransitionTime, ready.Status == corev1.ConditionUnknown}, nil
}

// readyOf returns the condition Ready of a machine; nil if it has none yet.
func readyOf(node *corev1.Node) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c
		}
	}
	return nil
}

// contact is what a second observer, besides the API server, knows of a pod on a machine with an outage: the head of a data node, and the
// controller of a head.
type contact int

const (
	contactUnknown contact = iota
	contactHeld
	contactLost
)

// strands reports whether the pod must be deleted without grace period, since no kubelet will end it: its machine does not exist, or is
// silent and the pod was evicted or is silent too.
func (o outage) strands(pod *corev1.Pod, c contact, now time.Time) bool {
	deleted := pod.DeletionTimestamp
	switch {
	case o.silent && o.since.IsZero():
		return true
	case c == contactHeld && pod.Labels[wellknown.LabelRole] == wellknown.RoleNode:
		return false // only the API server has lost the machine: the rows are served
	case o.silent:
		return deleted != nil || c == contactLost
	}
	return deleted != nil && now.After(deleted.Add(deletionPatience)) // deleted is when the grace period ends
}

// what says what happened to the machine, and since when.
func (o outage) what() string {
	since := o.since.UTC().Format(time.RFC3339)
	switch {
	case o.since.IsZero():
		return fmt.Sprintf("Kubernetes node %s no longer exists", o.machine)
	case o.silent:
		return fmt.Sprintf("Kubernetes node %s has not answered since %s", o.machine, since)
	}
	return fmt.Sprintf("Kubernetes node %s has not been ready since %s", o.machine, since)
}

// trouble says what happened to the pod's machine, and what is done about it.
func (o outage) trouble(pod *corev1.Pod) *podstate.Trouble {
	what := o.what()
	if pod.DeletionTimestamp == nil && !o.since.IsZero() {
		return &podstate.Trouble{Reason: reasonMachine, Message: fmt.Sprintf("%s; pod %s is replaced %d s later at the latest", what, pod.Name, workload.OutageSeconds)}
	}
	return &podstate.Trouble{Reason: reasonMachine, Message: fmt.Sprintf("%s; pod %s is being replaced", what, pod.Name)}
}

// losses is what is known of a cache's pods that were on lost machines, until their replacements are ready.
type losses struct {
	replaced map[string]string // why pods were replaced: sentences by name
	kept     map[string]bool   // StatefulSets of data nodes that wait for their next head, by name
}

// lossesOf returns the losses of a cache, which one reconciliation at a time uses.
func (e *Engine) lossesOf(dc *v1alpha1.DataCache) *losses {
	l, _ := e.losses.LoadOrStore(client.ObjectKeyFromObject(dc), &losses{map[string]string{}, map[string]bool{}})
	return l.(*losses) //nolint:forcetypeassert // nothing else is stored
}

// troubleOfMachines returns the trouble of the first pod, by name, whose machine has an outage, or that replaces a pod of such a machine and
// is not ready yet; nil if there is none.
func (e *Engine) troubleOfMachines(ctx context.Context, dc *v1alpha1.DataCache, pods []*corev1.Pod) (*podstate.Trouble, error) {
	outages, err := e.outages(ctx, pods)
	if err != nil {
		return nil, err
	}
	replaced := e.lossesOf(dc).replaced
	for _, pod := range podstate.ByName(pods) {
		if o, ok := outages[pod.Spec.NodeName]; ok {
			return o.trouble(pod), nil
		}
		why, ok := replaced[pod.Name]
		if !ok {
			continue
		}
		if podstate.IsReady(pod) {
			delete(replaced, pod.Name)
			continue
		}
		t := &podstate.Trouble{Reason: reasonMachine, Message: why}
		if own := podstate.PodTrouble(pod); own != nil {
			t = &podstate.Trouble{Reason: own.Reason, Message: t.Message + "; " + own.Message}
		}
		return t, nil
	}
	return nil, nil
}

// replaceLost lets the cache's pods on lost machines be replaced at once, and the data nodes outlive their head.
//
// A StatefulSet, as LeaderWorkerSet makes them, creates a pod only after the one with the same name is deleted, and on a machine that
// does not answer a deleted pod stays for ever: so it is deleted without grace period. Its containers may then still run. For a cache
// this is safe: rows are a copy of a pinned snapshot, which every process serves alike, and a head lets only one process be the data
// node with an index.
func (e *Engine) replaceLost(ctx context.Context, dc *v1alpha1.DataCache) error {
	set, err := e.find(ctx, dc)
	if err != nil || set == nil {
		return err
	}
	pods, err := e.pods(ctx, dc)
	if err != nil {
		return err
	}
	outages, err := e.outages(ctx, pods)
	if err != nil {
		return err
	}
	ask := e.Heads.Once(ctx)
	for _, pod := range podstate.ByName(pods) {
		o, out := outages[pod.Spec.NodeName]
		lost := out && o.strands(pod, contactWith(pod, pods, ask), e.Warnings.Now())
		if isHead := pod.Labels[wellknown.LabelRole] == wellknown.RoleHead; isHead && set.DeletionTimestamp == nil {
			if err := e.keepWorkers(ctx, set, pod, pods, lost, e.lossesOf(dc).kept); err != nil {
				return err
			}
		}
		if !lost {
			continue
		}
		log.FromContext(ctx).Info("replace a pod on a lost machine", "pod", kube.Qualified(pod), "machine", o.machine, "since", o.since)
		err := e.Client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: new(pod.UID)})
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) { // another pod has its name now
			return fmt.Errorf("delete Pod %s from lost machine %s: %w", kube.Qualified(pod), o.machine, err)
		}
		e.lossesOf(dc).replaced[pod.Name] = o.what() + "; pod " + pod.Name + " was replaced"
	}
	return nil
}

// contactOf is the head's contact with the data node with the index.
func contactOf(h *view.HeadStatus, index int) contact {
	for _, n := range h.Nodes {
		switch {
		case n.Index != index:
		case n.State == "Lost":
			return contactLost
		case n.State != "Missing":
			return contactHeld
		}
	}
	return contactUnknown
}

// contactWith asks the pod, if it is a head, or the head of the data node in the pod.
func contactWith(pod *corev1.Pod, pods []*corev1.Pod, ask func(*corev1.Pod) *view.HeadStatus) contact {
	if pod.Labels[wellknown.LabelRole] == wellknown.RoleHead {
		if ask(pod) == nil {
			return contactLost
		}
		return contactHeld
	}
	index, err := strconv.Atoi(pod.Labels[lws.WorkerIndexLabelKey])
	if err != nil {
		return contactUnknown
	}
	for _, head := range podstate.RunningHeads(pods) {
		if head.Labels[lws.GroupIndexLabelKey] != pod.Labels[lws.GroupIndexLabelKey] {
			continue
		}
		if status := ask(head); status != nil {
			return contactOf(status, index-1)
		}
	}
	return contactUnknown
}

// keepWorkers lets the data nodes of a group outlive its head. LeaderWorkerSet makes their StatefulSet a dependent of the head's pod,
// with which the garbage collector would delete it, and accepts a StatefulSet that exists when it finds a new head. So the StatefulSet
// of a head that goes becomes a dependent of the LeaderWorkerSet, and then of the new head's pod. If the pods of the new head have
// another template, its data nodes must be replaced too. kept are the StatefulSets that wait for their next head.
func (e *Engine) keepWorkers(ctx context.Context, set *lws.LeaderWorkerSet, head *corev1.Pod, pods []*corev1.Pod, lost bool, kept map[string]bool) error {
	group, err := strconv.Atoi(head.Labels[lws.GroupIndexLabelKey])
	if err != nil || group >= int(*set.Spec.Replicas) {
		return nil //nolint:nilerr // a pod that is no group's, or whose group LeaderWorkerSet removes
	}
	key, leaves := client.ObjectKeyFromObject(head), lost || head.DeletionTimestamp != nil
	if !leaves && !kept[head.Name] && !outlived(head, pods) {
		return nil
	}
	workers := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"}}
	if err := e.Live.Get(ctx, key, workers); err != nil {
		return client.IgnoreNotFound(err)
	}
	owner := *metav1.NewControllerRef(head, corev1.SchemeGroupVersion.WithKind("Pod"))
	before, after := set.UID, owner
	if leaves {
		before, after = head.UID, *metav1.NewControllerRef(set, lws.GroupVersion.WithKind("LeaderWorkerSet"))
	}
	if is := metav1.GetControllerOf(workers); is == nil || is.UID != before || workers.DeletionTimestamp != nil {
		return nil // done already, or somebody else's
	}
	old := workers.DeepCopy()
	workers.OwnerReferences = []metav1.OwnerReference{after}
	if err := e.Client.Patch(ctx, workers, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("patch the owner of StatefulSet %s: %w", kube.Qualified(workers), err)
	}
	if leaves {
		kept[head.Name] = true
		return nil
	}
	delete(kept, head.Name)
	if workers.Labels[lws.RevisionKey] == head.Labels[lws.RevisionKey] {
		return nil
	}
	if err := e.Client.Delete(ctx, workers, client.Preconditions{UID: new(workers.UID)}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete StatefulSet %s of an earlier template: %w", kube.Qualified(workers), err)
	}
	return nil
}

// outlived reports whether a data node of the head's group is older than the head. Times are in seconds, so that of a head that was
// replaced at once it may not be.
func outlived(head *corev1.Pod, pods []*corev1.Pod) bool {
	return slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
		return pod.Labels[wellknown.LabelRole] == wellknown.RoleNode && pod.Labels[lws.GroupIndexLabelKey] == head.Labels[lws.GroupIndexLabelKey] &&
			pod.CreationTimestamp.Before(&head.CreationTimestamp)
	})
}
