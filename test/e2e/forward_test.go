// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// podPage requests a page from a pod's port for probes and metrics, by way of its kubelet: NetworkPolicies let neither this process nor
// the API server connect.
func podPage(t *testing.T, namespace, pod, page string) ([]byte, error) {
	t.Helper()
	transport, upgrader, err := spdy.RoundTripperFor(cluster.config)
	if err != nil {
		return nil, err
	}
	to := cluster.logs.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("portforward").URL()
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, to)
	stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	forward, err := portforward.New(dialer, []string{fmt.Sprintf("0:%d", wellknown.HTTPPort)}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return nil, err
	}
	defer close(stop)
	go func() { ended <- forward.ForwardPorts() }()
	select {
	case err := <-ended:
		return nil, fmt.Errorf("forward a port of pod %s: %w", pod, err)
	case <-ready:
	}
	ports, err := forward.GetPorts()
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	status, text, err := proctest.Request(t.Context(), client, http.MethodGet, fmt.Sprintf("http://localhost:%d/%s", ports[0].Local, page))
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("GET /%s of pod %s: %d: %s", page, pod, status, text)
	}
	return []byte(text), err
}
