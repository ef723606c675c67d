// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// Dial connects to what a pod's program listens on, whatever the port.
type Dial func(ctx context.Context, pod *corev1.Pod) (net.Conn, error)

// Connect sets what 'kubectl port-forward' to any pod reaches.
func (k *Kubelet) Connect(dial Dial) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dial = dial
}

// portForward serves a pod's ports in the protocol portforward.k8s.io over SPDY: each connection is a pair of streams, for data and for
// an error. It returns when the API server closes the connection.
func (k *Kubelet) portForward(w http.ResponseWriter, r *http.Request) {
	pod, err := k.pods.Pods(r.PathValue("namespace")).Get(r.PathValue("pod"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return // it has answered
	}
	streams := make(chan httpstream.Stream)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		select {
		case streams <- stream:
		case <-ctx.Done():
		}
		return nil
	})
	if connection == nil {
		return // it has answered
	}
	defer func() { _ = connection.Close() }()
	type pair struct{ data, failure httpstream.Stream }
	pairs := map[string]pair{} // by request; the two may come in either order
	for {
		select {
		case stream := <-streams:
			id := stream.Headers().Get(corev1.PortForwardRequestIDHeader)
			p := pairs[id]
			if stream.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
				p.failure = stream
			} else {
				p.data = stream
			}
			pairs[id] = p
			if p.data != nil && p.failure != nil {
				delete(pairs, id)
				go k.pipe(ctx, pod, p.data, p.failure)
			}
		case <-connection.CloseChan():
			return
		}
	}
}

// pipe connects a stream to the pod's program until either ends.
func (k *Kubelet) pipe(ctx context.Context, pod *corev1.Pod, data, failure httpstream.Stream) {
	defer func() { _, _ = failure.Close(), data.Close() }()
	k.mu.Lock()
	dial := k.dial
	k.mu.Unlock()
	if dial == nil {
		_, _ = fmt.Fprintf(failure, "pod %s listens nowhere", pod.Name)
		return
	}
	server, err := dial(ctx, pod)
	if err != nil {
		_, _ = io.WriteString(failure, err.Error())
		return
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	go func() {
		_, _ = io.Copy(server, data)
		_ = server.Close()
	}()
	_, _ = io.Copy(data, server)
}
