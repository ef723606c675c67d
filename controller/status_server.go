// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/internal/view"
	"github.com/kubeflow/datacache/internal/webpage"
)

// statusServer answers the steps that wait for a cache without a head, in the words of a head's /status: GET /status/<namespace>/<DataCache>
// with the query pod=<UID of the step's pod>. It changes nothing, and answers only steps of the DataCache's own namespace: a pod's UID is
// random, and known only to the pod and to who may read pods there. Every replica of the manager serves it.
type statusServer struct {
	address string
	caches  client.Reader // backed by informers
	live    client.Reader
}

var (
	_ manager.Runnable               = (*statusServer)(nil)
	_ manager.LeaderElectionRunnable = (*statusServer)(nil)
)

// NeedLeaderElection is false: the informers of all replicas have the DataCaches.
func (*statusServer) NeedLeaderElection() bool { return false }

const (
	statusTimeout   = 10 * time.Second // of a request and its response
	statusMaxHeader = 8 << 10
)

// Start serves until the context ends.
func (s *statusServer) Start(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.Handle("GET /status/{namespace}/{name}", s)
	server := &http.Server{
		Handler: webpage.NoSniff(mux), ReadTimeout: statusTimeout, WriteTimeout: statusTimeout, IdleTimeout: statusTimeout, MaxHeaderBytes: statusMaxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.address)
	if err != nil {
		return fmt.Errorf("serve the states of caches: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the states of caches: %w", err)
	}
	return nil
}

// waitStatus is the part of a head's /status (cacheserver/protocol) that a step that waits for files reads.
type waitStatus struct {
	State  v1alpha1.State `json:"state"`
	Reason string         `json:"reason"`
}

func (s *statusServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	status := waitStatus{}
	job, err := s.jobOf(r.Context(), key.Namespace, types.UID(r.URL.Query().Get("pod")))
	if err == nil && job == "" {
		http.Error(w, "pod: no step that waits in namespace "+key.Namespace+" has this UID", http.StatusForbidden)
		return
	}
	if err == nil {
		status, err = s.status(r.Context(), key, job)
	}
	if err != nil {
		log.FromContext(r.Context()).Error(err, "answer a step that waits", "datacache", key)
		http.Error(w, "the manager can't read the DataCache; see its log", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(status) // fails only if the client has left
}

// jobOf returns the TrainJob whose step runs in the pod of the namespace with the UID; "" if there is none.
func (s *statusServer) jobOf(ctx context.Context, namespace string, uid types.UID) (string, error) {
	var pods corev1.PodList
	if err := s.caches.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return "", fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.UID == uid && isStep(pod) {
			return jobOfStep(pod).Name, nil
		}
	}
	return "", nil
}

// status says Ready only when the API server has both in one version of the DataCache: that the cache is ready, and that the job is one of its
// users. A cache with a user is not released, so what the job then mounts stays.
func (s *statusServer) status(ctx context.Context, key types.NamespacedName, job string) (waitStatus, error) {
	answer, err := readStatus(ctx, s.caches, key, job)
	if err == nil && answer.State == v1alpha1.StateReady {
		return readStatus(ctx, s.live, key, job)
	}
	return answer, err
}

func readStatus(ctx context.Context, reader client.Reader, key types.NamespacedName, job string) (waitStatus, error) {
	dc := &v1alpha1.DataCache{}
	err := reader.Get(ctx, key, dc)
	if apierrors.IsNotFound(err) {
		return waitStatus{v1alpha1.StatePending, fmt.Sprintf("DataCache %s does not exist yet", key)}, nil
	}
	if err != nil {
		return waitStatus{}, fmt.Errorf("get DataCache %s: %w", key, err)
	}
	return waitStatusOf(dc, job), nil
}

// waitStatusOf is what a DataCache's status means for a TrainJob that waits for it. A name that is taken does not become free by waiting, so
// the job fails at once.
func waitStatusOf(dc *v1alpha1.DataCache, job string) waitStatus {
	c := readyCondition(&dc.Status)
	out := waitStatus{c.State, c.Message}
	switch {
	case out.State == "":
		return waitStatus{v1alpha1.StatePending, "the controller has not seen it yet"}
	case c.Reason == engine.ReasonNameTaken:
		out.State = v1alpha1.StateFailed
	case out.State == v1alpha1.StateReady && !isUser(dc, job):
		return waitStatus{v1alpha1.StatePending, fmt.Sprintf("DataCache %s is ready and does not know TrainJob %s as its user yet", dc.Name, job)}
	case view.IsObstacle(c.Reason):
		out.Reason = c.Reason + ": " + c.Message
	}
	return out
}

// isUser reports whether the status records the job as a user. It lists only the first users: one with more is not about to be released.
func isUser(dc *v1alpha1.DataCache, job string) bool {
	return int(dc.Status.Users) > len(dc.Status.UsedBy) || slices.Contains(dc.Status.UsedBy, dc.Namespace+"/"+job)
}
