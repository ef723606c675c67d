// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// Dial connects to the HTTP port of a pod: of a head, or of a step that waits for a cache.
type Dial func(ctx context.Context, pod *corev1.Pod) (net.Conn, error)

// DialPod connects to the pod's IP address, ready or not. A DNS name that is queried before it exists would be cached by CoreDNS as
// missing (5 s, or 30 s with kubeadm's configuration), by when a cache may have failed.
func DialPod(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	if pod.Status.PodIP == "" {
		return nil, errors.New("the pod has no address yet")
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(wellknown.HTTPPort)))
}

// Do sends a request to a pod. There may be many hundreds of pods, each asked every few seconds: connections are not kept. Proxies are not
// used.
func (d Dial) Do(request *http.Request, pod *corev1.Pod, timeout time.Duration) (*http.Response, error) {
	client := http.Client{
		Timeout:   timeout,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d(ctx, pod) }},
	}
	response, err := client.Do(request)
	return response, steady(err)
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
