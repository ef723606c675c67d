// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// gate names the step of a TrainJob that waits for its caches, as a server.
const gate = "gate"

// servers returns the pods of a cache that server names, by name: a role, or one pod. There is at least one.
func (c *cluster) servers(ctx context.Context, cache client.ObjectKey, server string) ([]corev1.Pod, error) {
	labels, what := client.MatchingLabels{wellknown.LabelCache: cache.Name}, "DataCache "+cache.String()
	if server == gate {
		labels, what = client.MatchingLabels{wellknown.LabelJobSet: cache.Name, wellknown.LabelReplicatedJob: wellknown.StepName}, "TrainJob "+cache.String()
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(cache.Namespace), labels); err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", what, err)
	}
	var names []string
	chosen := slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
		names = append(names, pod.Name)
		return server != gate && server != pod.Labels[wellknown.LabelRole] && server != pod.Name
	})
	if len(chosen) > 0 {
		slices.SortFunc(chosen, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
		return chosen, nil
	}
	if len(names) == 0 {
		if server != gate {
			if _, err := c.cache(ctx, cache.Name); err != nil {
				return nil, err
			}
		}
		return nil, fmt.Errorf("%s has no pods now: `kubectl datacache why %s` says why", what, cache.Name)
	}
	return nil, fmt.Errorf("--server: %s has no pod %q now: name head, node, or one of %s", what, server, strings.Join(names, ", "))
}

// heads returns the running heads of a cache, one for each replica. There is at least one.
func (c *cluster) heads(ctx context.Context, dc *v1alpha1.DataCache) ([]corev1.Pod, error) {
	if dc.Spec.Arrow == nil {
		return nil, errors.New("it caches files with Fluid and has no head")
	}
	pods, err := c.servers(ctx, client.ObjectKeyFromObject(dc), wellknown.RoleHead)
	if err != nil {
		return nil, err
	}
	pods = slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return pod.Status.Phase != corev1.PodRunning })
	if len(pods) == 0 {
		return nil, errors.New("its head does not run yet")
	}
	return pods, nil
}

// forwarding forwards a local port to the HTTP port of a pod through the API server, which authorizes it.
type forwarding struct {
	address string       // 127.0.0.1:PORT
	ended   <-chan error // why it ended
	stop    func()       // ends it
}

// forward starts to forward a local port; 0 takes a free one. It goes on until the caller calls stop, or until an error. NetworkPolicies
// of the cache admit it: a node's kubelet connects from inside the pod, and not so the API server, which is why pods/proxy is not used.
func (c *cluster) forward(pod *corev1.Pod, local int) (*forwarding, error) {
	dialer, err := c.dialer(pod)
	if err != nil {
		return nil, err
	}
	stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("%d:%d", local, wellknown.HTTPPort)}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return nil, err
	}
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case err := <-ended:
		return nil, notForwarded(pod, err)
	case <-ready:
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		close(stop)
		return nil, err
	}
	return &forwarding{address: fmt.Sprintf("127.0.0.1:%d", ports[0].Local), ended: ended, stop: func() { close(stop) }}, nil
}

// dialer connects to the pod's ports over WebSockets or, if that fails, over SPDY: proxies may pass on only one of them, and the former
// needs the right to get pods/portforward besides that to create it.
func (c *cluster) dialer(pod *corev1.Pod) (httpstream.Dialer, error) {
	url := c.core.RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	if err != nil {
		return nil, err
	}
	websockets, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, c.config)
	if err != nil {
		return nil, err
	}
	fallback := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	return portforward.NewFallbackDialerForStreaming(websockets, fallback, func(error) bool { return true }), nil
}

// notForwarded says what failed, and which right is missing.
func notForwarded(pod *corev1.Pod, err error) error {
	err = fmt.Errorf("forward a port to pod %s/%s: %w", pod.Namespace, pod.Name, err)
	if strings.Contains(err.Error(), "forbidden") { // client-go passes on only the text of the API server's answer
		return fmt.Errorf("%w; you need the right to create pods/portforward in namespace %s, which its role edit has", err, pod.Namespace)
	}
	return err
}
