// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package heads asks the heads of a cache how it is, and derives one condition of the cache from their answers and its pods.
package heads

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/internal/tracing"
	"github.com/kubeflow/datacache/internal/view"
	"github.com/kubeflow/datacache/internal/wellknown"
)

const (
	// defaultTimeout bounds one request to a head; a response takes milliseconds.
	defaultTimeout = 2 * time.Second
	// maxAnswer bounds the length of a response; with a thousand data nodes it has about 250 KiB.
	maxAnswer = 4 << 20
)

// Client queries the status of heads. It is safe for concurrent use.
type Client struct {
	Dial    Dial
	Timeout time.Duration // of one request; 0: 2 s
}

// Ask requests the status without data nodes from the head in the pod.
func (h Client) Ask(ctx context.Context, pod *corev1.Pod) (*view.HeadStatus, error) {
	return h.get(ctx, pod, "/status?nodes=0") // with a thousand data nodes, the list costs a head 50 ms
}

// get requests a status from the head in the pod.
func (h Client) get(ctx context.Context, pod *corev1.Pod, path string) (_ *view.HeadStatus, err error) {
	ctx, span := tracing.Child(ctx, "ask head")
	defer func() { tracing.End(span, err) }()
	url := fmt.Sprintf("http://%s:%d%s", pod.Name, wellknown.HTTPPort, path)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask head %s: %w", pod.Name, err)
	}
	response, err := h.Dial.Do(request, pod, cmp.Or(h.Timeout, defaultTimeout))
	if err != nil {
		return nil, fmt.Errorf("ask head %s: %w", pod.Name, err)
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

// Once returns a function that asks each head at most once for the status with data nodes, since one that does not answer takes the whole timeout; nil: it does not answer.
func (h Client) Once(ctx context.Context) func(*corev1.Pod) *view.HeadStatus {
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
