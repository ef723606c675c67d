// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/controller/heads"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/view"
	"github.com/kubeflow/datacache/internal/wellknown"
)

const (
	// noticePause is how often a waiting step is checked without an event, since refusals cause none.
	noticePause = 3 * time.Second
	// noticeTimeout is the timeout of sending a notice.
	noticeTimeout = 2 * time.Second
)

// noticeReconciler sends to the steps that wait for a cache what the controller knows and the cache's head can't tell: why a TrainJob
// gets no cache, or why its pods don't start. The step writes the notice to its log (docs/adr/0017). Nothing depends on notices: a
// step that can't be reached waits as well.
type noticeReconciler struct {
	client   client.Reader
	refusals *sentences // why TrainJobs currently get no cache
	dial     heads.Dial

	lastNotices sync.Map // the last notice sent, by the UID of the step's pod
}

// Reconcile handles the pod of a waiting step.
func (r *noticeReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	pod := &corev1.Pod{}
	if err := r.client.Get(ctx, request.NamespacedName, pod); err != nil {
		if apierrors.IsNotFound(err) {
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("get pod %s: %w", request.NamespacedName, err)
	}
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		r.lastNotices.Delete(pod.UID)
		return ctrl.Result{}, nil
	}
	if pod.Status.Phase != corev1.PodRunning {
		return ctrl.Result{}, nil // its start causes an event
	}
	notice, err := r.notice(ctx, jobOfStep(pod))
	if err != nil {
		return ctrl.Result{}, err
	}
	if before, ok := r.lastNotices.Load(pod.UID); notice == before || !ok && notice == "" {
		return ctrl.Result{RequeueAfter: noticePause}, nil
	}
	if err := sendNotice(ctx, r.dial, pod, notice); err != nil {
		log.FromContext(ctx).V(1).Info("a step that waits takes no notice", "pod", request.NamespacedName, "reason", err.Error())
	} else {
		r.lastNotices.Store(pod.UID, notice)
	}
	return ctrl.Result{RequeueAfter: noticePause}, nil
}

// notice returns what the controller knows of a TrainJob's caches; "" if their heads know more. If there are several, what it knows of one of
// them is a line that begins with its name.
func (r *noticeReconciler) notice(ctx context.Context, key types.NamespacedName) (string, error) {
	if refusal := r.refusals.of(key); refusal != "" {
		return refusal, nil
	}
	job := &trainer.TrainJob{}
	if err := r.client.Get(ctx, key, job); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("get TrainJob %s: %w", key, err)
	}
	uses := request.Read(job, job.Namespace).Uses()
	if len(uses) < 2 {
		cache, err := r.cacheOf(ctx, key)
		if err != nil {
			return "", err
		}
		return r.noticeAbout(ctx, cache)
	}
	var lines []string
	for _, use := range uses[1:] {
		text, err := r.noticeAbout(ctx, use.Key)
		if err != nil {
			return "", err
		}
		if text != "" {
			lines = append(lines, use.Name+": "+strings.Join(strings.Fields(text), " "))
		}
	}
	return strings.Join(lines, "\n"), nil
}

// cacheOf is the only DataCache that a TrainJob uses.
func (r *noticeReconciler) cacheOf(ctx context.Context, job types.NamespacedName) (types.NamespacedName, error) {
	service := &corev1.Service{}
	err := r.client.Get(ctx, types.NamespacedName{Namespace: job.Namespace, Name: wellknown.ServiceName(job.Name)}, service)
	if client.IgnoreNotFound(err) != nil {
		return job, fmt.Errorf("get the Service of TrainJob %s: %w", job, err)
	}
	if used := service.Annotations[wellknown.AnnotationUses]; used != "" {
		return kube.KeyOf(used), nil
	}
	return job, nil
}

// noticeAbout returns what the controller knows of a DataCache.
func (r *noticeReconciler) noticeAbout(ctx context.Context, cache types.NamespacedName) (string, error) {
	dc := &v1alpha1.DataCache{}
	if err := r.client.Get(ctx, cache, dc); err != nil {
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "", fmt.Errorf("get DataCache %s: %w", cache, err)
	}
	return noticeOf(dc), nil
}

// noticeOf returns what a DataCache's status says about pods and what prevents them from running, and about the step that makes a dataset; the
// head itself reports everything else.
func noticeOf(dc *v1alpha1.DataCache) string {
	c := readyCondition(&dc.Status)
	if view.IsObstacle(c.Reason) || c.Reason == engine.ReasonStarting || c.Reason == engine.ReasonReleased {
		return fmt.Sprintf("%s: %s", c.Reason, c.Message)
	}
	if c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionDerived); c != nil && c.Status == metav1.ConditionFalse {
		return fmt.Sprintf("the step that makes the dataset: %s: %s", c.Reason, c.Message)
	}
	return ""
}

// sendNotice sends a notice to the step in the pod.
func sendNotice(ctx context.Context, dial heads.Dial, pod *corev1.Pod, notice string) error {
	url := fmt.Sprintf("http://%s:%d%s", pod.Name, wellknown.HTTPPort, noticePath)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(notice))
	if err != nil {
		return fmt.Errorf("tell pod %s: %w", pod.Name, err)
	}
	response, err := dial.Do(request, pod, noticeTimeout)
	if err != nil {
		return fmt.Errorf("tell pod %s: %w", pod.Name, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusNoContent {
		return fmt.Errorf("tell pod %s: it answers %s", pod.Name, response.Status)
	}
	return nil
}

// noticePath is the path on which a step receives notices (cacheserver/wait).
const noticePath = "/notice"

// isStep reports whether a pod belongs to a step that waits for a cache.
func isStep(pod client.Object) bool {
	labels := pod.GetLabels()
	return labels[wellknown.LabelJobSet] != "" && labels[wellknown.LabelReplicatedJob] == wellknown.StepName
}

// jobOfStep is the TrainJob to which a step's pod belongs.
func jobOfStep(pod client.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.GetLabels()[wellknown.LabelJobSet]}
}

// stepOfJob indexes the pods of steps by their TrainJob's name.
func stepOfJob(pod client.Object) []string {
	if !isStep(pod) {
		return nil
	}
	return []string{jobOfStep(pod).Name}
}

// stepsOfCache maps a DataCache to the pods that wait for it: those of the TrainJob with its name, and of its users.
func stepsOfCache(reader client.Reader) func(context.Context, client.Object) []reconcile.Request {
	return func(ctx context.Context, object client.Object) []reconcile.Request {
		var requests []reconcile.Request
		for _, job := range jobsOfCache(reader)(ctx, object) {
			var pods corev1.PodList
			if err := reader.List(ctx, &pods, client.InNamespace(job.Namespace), client.MatchingFields{indexStep: job.Name}); err != nil {
				log.FromContext(ctx).Error(err, "list the pods that wait for a DataCache", "datacache", kube.Qualified(object))
			}
			for i := range pods.Items {
				requests = append(requests, requestFor(client.ObjectKeyFromObject(&pods.Items[i])))
			}
		}
		return requests
	}
}

// sentences holds a text about each of some TrainJobs. It is safe for concurrent use.
type sentences struct {
	mu   sync.Mutex
	text map[types.NamespacedName]string
}

func newSentences() *sentences { return &sentences{text: map[types.NamespacedName]string{}} }

// set records the text about a job; "" removes it, as must be done when the job is gone.
func (r *sentences) set(job types.NamespacedName, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text == "" {
		delete(r.text, job)
		return
	}
	r.text[job] = text
}

func (r *sentences) of(job types.NamespacedName) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text[job]
}
