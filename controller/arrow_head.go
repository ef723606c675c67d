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

	"github.com/kubeflow/datacache/internal/inject"
)

const (
	// headTimeout bounds one question to a head; an answer takes milliseconds.
	headTimeout = 2 * time.Second
	// maxAnswer bounds what is read of an answer: a thousand data nodes take about 250 KiB.
	maxAnswer = 4 << 20
)

// Dial opens a connection to the HTTP port of the head, or of the step that waits, that runs in the pod.
type Dial func(ctx context.Context, pod *corev1.Pod) (net.Conn, error)

// dialPod goes to the pod's own address, ready or not. Its name, asked for before it was there, would stay unknown for as long as
// CoreDNS keeps a no (5 s, 30 s where kubeadm set it up), and a cache may have failed by then.
func dialPod(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	if pod.Status.PodIP == "" {
		return nil, errors.New("the pod has no address yet")
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(inject.HTTPPort)))
}

// headStatus is what the controller wants of a head's /status (docs/contract.md).
type headStatus struct {
	State    string `json:"state"`
	Reason   string `json:"reason"`
	Snapshot int64  `json:"snapshot"`
	Rows     int64  `json:"rows"`
	Bytes    int64  `json:"bytes"`
	Splits   struct {
		Done  int64 `json:"done"`
		Total int64 `json:"total"`
	} `json:"splits"`
}

// percent of the splits that are in memory; a table without rows is whole.
func (h *headStatus) percent() int32 {
	if h.Splits.Total == 0 {
		return 100
	}
	return int32(100 * h.Splits.Done / h.Splits.Total) // at most 100
}

// heads asks heads how they are doing. It is safe for concurrent use.
type heads struct {
	dial    Dial
	timeout time.Duration
}

// ask reads the /status of the head in the pod.
func (h heads) ask(ctx context.Context, pod *corev1.Pod) (*headStatus, error) {
	client := http.Client{
		Timeout: h.timeout,
		// A head is asked every few seconds, from many hundreds of heads on: connections are not kept, nor is a proxy asked.
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return h.dial(ctx, pod) }},
	}
	url := fmt.Sprintf("http://%s:%d/status", pod.Name, inject.HTTPPort)
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
	status := &headStatus{}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(status); err != nil {
		return nil, fmt.Errorf("ask head %s: read %s: %w", pod.Name, url, err)
	}
	return status, nil
}

// steady leaves out of an error what differs from try to try, such as our own port: it goes into a status, which is written when it
// differs.
func steady(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}
