// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"strings"
	"sync"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Warnings collects the warnings in the API server's responses to one client. It is safe for concurrent use.
type Warnings struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *Warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// String returns all warnings, one per line.
func (w *Warnings) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.texts, "\n")
}

// WarnedClient returns an admin's client of its own and the warnings that it gets.
func (c *Cluster) WarnedClient() (client.Client, *Warnings, error) {
	warnings := &Warnings{}
	config := rest.CopyConfig(c.Config)
	config.WarningHandler = warnings
	own, err := client.New(config, client.Options{Scheme: c.Client.Scheme()})
	return own, warnings, err
}
