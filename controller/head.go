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

// Dial opens a connection, as net.Dialer.DialContext does. The address of a head is <pod>.<LeaderWorkerSet>.<namespace>.svc:8080.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

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
type heads struct{ client *http.Client }

// newHeads asks by the dialer, or by the cluster's DNS where that is nil.
func newHeads(dial Dial, timeout time.Duration) heads {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return heads{&http.Client{
		Timeout: timeout,
		// A head is asked every few seconds, from many hundreds of heads on: connections are not kept, nor is a proxy asked.
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
	}}
}

// ask reads the /status of the head in the pod, by the name that LWS's headless Service gives it whether it is ready or not.
func (h heads) ask(ctx context.Context, pod *corev1.Pod) (*headStatus, error) {
	host := fmt.Sprintf("%s.%s.%s.svc", pod.Name, inject.CacheName(pod.Labels[inject.LabelCache]), pod.Namespace)
	url := "http://" + net.JoinHostPort(host, strconv.Itoa(inject.HTTPPort)) + "/status"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask head %s: %w", pod.Name, err)
	}
	response, err := h.client.Do(request)
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
	if dns := (*net.DNSError)(nil); errors.As(err, &dns) {
		return fmt.Errorf("the name %s does not resolve", dns.Name)
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}
