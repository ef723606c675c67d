// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/claim"
)

const (
	firstBackOff = time.Second
	maxBackOff   = 5 * time.Minute
	endingDelay  = 2 * time.Second // interval of checks of a claim that is being deleted
)

// worker creates claims and removes the gates of pods, in the one goroutine that runs run.
type worker struct {
	cached  client.Reader // informers of gated pods and of our claims
	live    client.Client
	owners  *owners
	limiter *rate.Limiter // limits create calls; client-go's flowcontrol wraps the same token bucket
	events  *events
	metrics *metrics
	queue   *queue

	changed chan struct{} // buffered; receives a value when inbox or gone is not empty
	mu      sync.Mutex
	inbox   map[types.NamespacedName]struct{} // pods
	gone    map[types.NamespacedName]struct{} // replicas that lost a claim, by namespace
}

// notice notifies the worker that a pod was created, changed or deleted. It is safe for concurrent use.
func (w *worker) notice(pods ...types.NamespacedName) {
	w.mu.Lock()
	for _, key := range pods {
		w.inbox[key] = struct{}{}
	}
	w.mu.Unlock()
	w.wake()
}

// noticeGone notifies the worker that a claim of a replica was deleted, so that a pod that waits for its deletion is retried at once. It
// is safe for concurrent use.
func (w *worker) noticeGone(namespace, replica string) {
	w.mu.Lock()
	w.gone[types.NamespacedName{Namespace: namespace, Name: replica}] = struct{}{}
	w.mu.Unlock()
	w.wake()
}

func (w *worker) wake() {
	select {
	case w.changed <- struct{}{}:
	default: // already notified
	}
}

// run works until ctx ends. The token bucket starts empty, since otherwise each change of leader would allow a burst. notice must
// have been called before for all pods that exist, so that the queue's first order includes them.
func (w *worker) run(ctx context.Context) {
	w.limiter.AllowN(time.Now(), w.limiter.Burst())
	for ctx.Err() == nil {
		w.receive(ctx)
		wait, idle := w.step(ctx)
		w.metrics.length.Set(float64(len(w.queue.byKey)))
		if idle {
			select {
			case <-ctx.Done():
			case <-w.changed:
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-w.changed:
		case <-time.After(wait):
		}
	}
}

// receive adds the pods of the inbox to the queue, and removes those from it that do not wait any more. Of a new pod whose claims all exist
// it removes the gate at once.
func (w *worker) receive(ctx context.Context) {
	w.mu.Lock()
	keys, gone := w.inbox, w.gone
	w.inbox, w.gone = map[types.NamespacedName]struct{}{}, map[types.NamespacedName]struct{}{}
	w.mu.Unlock()
	w.queue.hasten(gone, time.Now())
	for key := range keys {
		pod := w.waiting(ctx, key)
		known := w.queue.byKey[key]
		switch {
		case pod == nil:
			w.drop(key)
		case known == nil || known.uid != pod.UID:
			w.drop(key)
			e := newEntry(pod)
			w.queue.add(e)
			if next := w.plan(ctx, e); next.create == nil {
				w.do(ctx, e, next)
			}
		}
	}
	w.events.tellWaiting(w.queue, w.limiter)
}

func newEntry(pod *corev1.Pod) *entry {
	since := pod.CreationTimestamp.Time
	if now := time.Now(); since.After(now) { // the API server's clock is ahead
		since = now
	}
	return &entry{
		key: client.ObjectKeyFromObject(pod), uid: pod.UID, replica: claim.Replica(pod), since: since,
		made: map[string]*corev1.PersistentVolumeClaim{},
	}
}

// waiting returns the pod with the key, nil if it does not exist, is being deleted or has no gate.
func (w *worker) waiting(ctx context.Context, key types.NamespacedName) *corev1.Pod {
	pod := &corev1.Pod{}
	if err := w.cached.Get(ctx, key, pod); err != nil || pod.DeletionTimestamp != nil || !claim.Gated(pod) {
		return nil // an informer that has synced returns only NotFound
	}
	return pod
}

// drop removes a pod from the queue.
func (w *worker) drop(key types.NamespacedName) {
	if e := w.queue.byKey[key]; e != nil {
		w.queue.remove(key)
		w.events.left(e)
	}
}

// step carries out at most one action, for the first pod of the queue. It returns how long to wait before the next step; idle means that
// the queue is empty.
func (w *worker) step(ctx context.Context) (wait time.Duration, idle bool) {
	e := w.queue.head()
	if e == nil {
		return 0, true
	}
	if wait := time.Until(e.since); wait > 0 {
		return wait, false
	}
	next := w.plan(ctx, e)
	if next.create != nil {
		now := time.Now()
		if !w.limiter.AllowN(now, 1) {
			missing := 1 - w.limiter.TokensAt(now)
			return time.Duration(missing/float64(w.limiter.Limit())*float64(time.Second)) + time.Microsecond, false
		}
	}
	w.do(ctx, e, next)
	return 0, false
}

// action is what to do next for a pod: create a claim, open its gate, or hold it back. If none is set, the pod leaves the queue.
type action struct {
	pod    *corev1.Pod
	owner  metav1.OwnerReference
	create *corev1.PersistentVolumeClaim
	open   bool
	hold   *obstacle
}

// obstacle is the reason why a pod's claims can't be created now.
type obstacle struct {
	reason  string // of the event on the pod; empty: no event
	message string
	label   string        // of the metric of failures
	delay   time.Duration // until the next try; 0: exponential back-off
	longest time.Duration // maximum back-off; 0: maxBackOff
	check   bool          // read claims from the API server: the informer may be behind
}

// plan decides the next action for a pod from its owner and its claims.
func (w *worker) plan(ctx context.Context, e *entry) action {
	pod := w.waiting(ctx, e.key)
	if pod == nil || pod.UID != e.uid {
		return action{}
	}
	wanted, err := claim.Wanted(pod)
	if err != nil {
		return action{pod: pod, hold: &obstacle{reason: EventRefused, message: err.Error(), label: "pod"}}
	}
	owner, err := w.owners.of(ctx, pod)
	if errors.Is(err, errOver) {
		return action{}
	}
	if err != nil {
		return action{pod: pod, hold: failure(err)}
	}
	w.events.joined(e, pod.Namespace, owner)
	for _, want := range wanted {
		existing, err := w.find(ctx, e, client.ObjectKeyFromObject(want))
		if err != nil {
			return action{pod: pod, owner: owner, hold: failure(err)}
		}
		if existing == nil {
			want.OwnerReferences = []metav1.OwnerReference{owner}
			return action{pod: pod, owner: owner, create: want}
		}
		hold := judge(existing, want, owner)
		if hold == nil {
			if hold, err = w.stranded(ctx, existing); err != nil {
				hold = failure(err)
			}
		}
		if hold != nil {
			return action{pod: pod, owner: owner, hold: hold}
		}
	}
	return action{pod: pod, owner: owner, open: true}
}

// find returns the claim with the key, nil if it does not exist.
func (w *worker) find(ctx context.Context, e *entry, key client.ObjectKey) (*corev1.PersistentVolumeClaim, error) {
	if made := e.made[key.Name]; made != nil {
		return made, nil
	}
	reader := w.cached
	if e.check {
		reader = w.live
	}
	existing := &corev1.PersistentVolumeClaim{}
	err := reader.Get(ctx, key, existing)
	if apierrors.IsNotFound(err) {
		return nil, nil // not found is not an error
	}
	if err != nil {
		return nil, fmt.Errorf("get the claim %s: %w", key, err)
	}
	return existing, nil
}

// judge returns why the pod can't use the existing claim, nil if it can.
func judge(existing, want *corev1.PersistentVolumeClaim, owner metav1.OwnerReference) *obstacle {
	switch state, why := claim.Judge(existing, want, owner); state {
	case claim.Ending:
		return &obstacle{delay: endingDelay, label: "ending", check: true}
	case claim.Taken:
		return &obstacle{reason: EventTaken, label: "taken", check: true, message: fmt.Sprintf(
			"claim %s exists already and is not used: %s; delete it, or rename the volume or the job", existing.Name, why)}
	}
	return nil
}

// failure returns the obstacle for an error of the API server.
func failure(err error) *obstacle {
	label := string(apierrors.ReasonForError(err))
	if label == "" {
		label = "error"
	}
	return &obstacle{reason: EventRefused, message: err.Error(), label: label}
}

// do carries out an action. To create a claim, the caller has taken a token from the limiter.
func (w *worker) do(ctx context.Context, e *entry, next action) {
	switch {
	case next.create != nil:
		w.create(ctx, e, next)
	case next.open:
		w.open(ctx, e, next)
	case next.hold != nil:
		w.hold(e, next, next.hold)
	default:
		w.drop(e.key)
	}
}

func (w *worker) create(ctx context.Context, e *entry, next action) {
	name := next.create.Name
	err := w.live.Create(ctx, next.create)
	switch {
	case err == nil:
		w.metrics.created.Inc()
		e.made[name], e.failures = next.create, 0
	case apierrors.IsAlreadyExists(err):
		e.check = true // created a moment ago, or somebody else's: the next plan reads it from the API server
	case ctx.Err() == nil:
		w.hold(e, next, failure(fmt.Errorf("create the claim %s: %w", name, err)))
	}
}

// open removes the pod's gate.
func (w *worker) open(ctx context.Context, e *entry, next action) {
	patch, err := claim.OpenPatch(next.pod)
	if err == nil {
		err = w.live.Patch(ctx, next.pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch))
	}
	switch {
	case err == nil:
		w.metrics.wait.Observe(time.Since(next.pod.CreationTimestamp.Time).Seconds())
		w.events.opened(e)
		w.drop(e.key)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // the pod was deleted or replaced: its event follows
		w.drop(e.key)
	case ctx.Err() == nil:
		w.hold(e, next, failure(fmt.Errorf("open the gate of pod %s: %w", e.key, err)))
	}
}

// hold moves a pod to the place in the queue of a pod that is created when the delay ends.
func (w *worker) hold(e *entry, next action, why *obstacle) {
	delay := why.delay
	if delay == 0 {
		delay = min(firstBackOff<<min(e.failures, 20), cmp.Or(why.longest, maxBackOff))
		e.failures++
		w.metrics.failed.WithLabelValues(why.label).Inc()
	}
	if why.check {
		e.check = true
		clear(e.made)
	}
	if why.reason != "" {
		slog.Warn("claims of a pod can't be made yet", "pod", e.key, "reason", why.reason, "message", why.message, "again-in", delay)
		w.events.warn(next.pod, next.owner, why)
	}
	w.queue.move(e, time.Now().Add(delay))
}
