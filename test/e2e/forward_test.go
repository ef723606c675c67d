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
	local, stop, err := forward(namespace, pod, wellknown.HTTPPort)
	if err != nil {
		return nil, err
	}
	defer stop()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	status, text, err := proctest.Request(t.Context(), client, http.MethodGet, fmt.Sprintf("http://localhost:%d/%s", local, page))
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("GET /%s of pod %s: %d: %s", page, pod, status, text)
	}
	return []byte(text), err
}

// forward forwards a local port to a pod's until stop is called.
func forward(namespace, pod string, port int) (local int, stop func(), err error) {
	transport, upgrader, err := spdy.RoundTripperFor(cluster.config)
	if err != nil {
		return 0, nil, err
	}
	to := cluster.logs.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("portforward").URL()
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, to)
	over, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.New(dialer, []string{fmt.Sprintf("0:%d", port)}, over, ready, io.Discard, io.Discard)
	if err != nil {
		return 0, nil, err
	}
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case err := <-ended:
		return 0, nil, fmt.Errorf("forward a port of pod %s: %w", pod, err)
	case <-ready:
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		close(over)
		return 0, nil, err
	}
	return int(ports[0].Local), func() { close(over) }, nil
}
