// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/internal/tracing"
	"github.com/kubeflow/datacache/internal/view"
	"github.com/kubeflow/datacache/internal/wellknown"
)

const (
	// headTimeout bounds one request to a head; a response takes milliseconds.
	headTimeout = 2 * time.Second
	// maxAnswer bounds the length of a response; with a thousand data nodes it has about 250 KiB.
	maxAnswer = 4 << 20
)

// Dial connects to the HTTP port of a pod: of a head, or of a step that waits for a cache.
type Dial func(ctx context.Context, pod *corev1.Pod) (net.Conn, error)

// dialPod connects to the pod's IP address, ready or not. A DNS name that is queried before it exists would be cached by CoreDNS as
// missing (5 s, or 30 s with kubeadm's configuration), by when a cache may have failed.
func dialPod(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	if pod.Status.PodIP == "" {
		return nil, errors.New("the pod has no address yet")
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(wellknown.HTTPPort)))
}

// heads queries the status of heads. It is safe for concurrent use.
type heads struct {
	dial    Dial
	timeout time.Duration
}

// ask requests the status without data nodes from the head in the pod.
func (h heads) ask(ctx context.Context, pod *corev1.Pod) (*view.HeadStatus, error) {
	return h.get(ctx, pod, "/status?nodes=0") // with a thousand data nodes, the list costs a head 50 ms
}

// get requests a status from the head in the pod.
func (h heads) get(ctx context.Context, pod *corev1.Pod, path string) (_ *view.HeadStatus, err error) {
	ctx, span := tracing.Child(ctx, "ask head")
	defer func() { tracing.End(span, err) }()
	client := http.Client{
		Timeout: h.timeout,
		// There may be many hundreds of heads, each queried every few seconds: connections are not kept. Proxies are not used.
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return h.dial(ctx, pod) }},
	}
	url := fmt.Sprintf("http://%s:%d%s", pod.Name, wellknown.HTTPPort, path)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask head %s: %w", pod.Name, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask head %s: %w", pod.Name, steady(err))
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask head %s: %s answers %s", pod.Name, url, response.Status)
	}
	status := &view.HeadStatus{}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(status); err != nil {
		return nil, fmt.Errorf("ask head %s: read %s: %w", pod.Name, url, err)
	}
	return status, nil
}

// once returns a function that asks each head at most once for the status with data nodes, since one that does not answer takes the whole timeout; nil: it does not answer.
func (h heads) once(ctx context.Context) func(*corev1.Pod) *view.HeadStatus {
	answers := map[string]*view.HeadStatus{}
	return func(head *corev1.Pod) *view.HeadStatus {
		status, asked := answers[head.Name]
		if !asked {
			status, _ = h.get(ctx, head, "/status")
			answers[head.Name] = status
		}
		return status
	}
}

// steady removes from an error what differs between attempts, such as the local port: the error goes into a status, which is only
// written when it changes.
func steady(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}
