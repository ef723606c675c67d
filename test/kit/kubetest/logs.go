// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// serve serves, only to the API server, pods' logs, which 'kubectl logs' and the Kubeflow SDK's get_job_logs read, and their ports.
func (k *Kubelet) serve(ctx context.Context, c *Cluster) (io.Closer, error) {
	certificate, err := tls.LoadX509KeyPair(filepath.Join(c.CertDir, "tls.crt"), filepath.Join(c.CertDir, "tls.key"))
	if err != nil {
		return nil, err
	}
	known := x509.NewCertPool()
	known.AppendCertsFromPEM(c.ca.pem)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(c.Address, strconv.Itoa(kubeletPort)))
	if err != nil {
		return nil, fmt.Errorf("the kubelet: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/portForward/{namespace}/{pod}", k.portForward)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.logs)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: known,
			MinVersion: tls.VersionTLS12,
		},
	}
	go func() { _ = server.ServeTLS(listener, "", "") }() // ends with Close
	return server, nil
}

// logs writes a pod's log so far, which is the same for all its containers; with follow=true it continues until the pod has ended. Of
// the other options it supports tailLines.
func (k *Kubelet) logs(w http.ResponseWriter, r *http.Request) {
	namespace, name := r.PathValue("namespace"), r.PathValue("pod")
	pod, err := k.pods.Pods(namespace).Get(name)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	log, over, err := k.logOf(pod.UID)
	if err != nil {
		http.Error(w, fmt.Sprintf("container %q in pod %q %v", r.PathValue("container"), name, err), http.StatusBadRequest)
		return
	}
	written := len(log)
	if n, err := strconv.Atoi(r.FormValue("tailLines")); err == nil {
		log = lastLines(log, n)
	}
	for {
		if _, err := io.WriteString(w, log); err != nil || over || r.FormValue("follow") != "true" {
			return
		}
		_ = http.NewResponseController(w).Flush() // the next write reports errors
		select {
		case <-r.Context().Done():
			return
		case <-time.After(askEvery):
		}
		var all string
		if all, over, err = k.logOf(pod.UID); err != nil {
			return // the pod is gone
		}
		log = all[min(written, len(all)):]
		written = len(all)
	}
}

// logOf returns a pod's log so far, and whether it is complete.
func (k *Kubelet) logOf(pod types.UID) (log string, over bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.lives[pod]
	if l == nil || !l.started {
		return "", false, errors.New("is waiting to start: ContainerCreating")
	}
	return l.log, l.ended, nil
}

func lastLines(text string, n int) string {
	lines := slices.Collect(strings.Lines(text))
	return strings.Join(lines[max(0, len(lines)-n):], "")
}
