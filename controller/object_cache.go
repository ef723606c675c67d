// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// caKey is the key of the ConfigMap with the certificates. caEvery is the time between two looks at it, and caPause while none was seen.
	caKey            = "ca.crt"
	caEvery, caPause = time.Minute, 10 * time.Second
)

// copiedCA has the certificates of the object cache's authorities, from a ConfigMap of which caches get a copy. The manager's informers don't have
// it, since its namespace need not be one that the manager serves. It is safe for concurrent use.
type copiedCA struct {
	config types.NamespacedName // zero: none is copied
	live   client.Reader
	now    func() time.Time

	mu     sync.Mutex
	text   string
	looked time.Time
}

// newCopiedCA returns that of the ConfigMap NAMESPACE/NAME; of a name alone, nothing is copied.
func newCopiedCA(name string, live client.Reader, now func() time.Time) *copiedCA {
	c := &copiedCA{live: live, now: now}
	if namespace, name, copied := strings.Cut(name, "/"); copied {
		c.config = types.NamespacedName{Namespace: namespace, Name: name}
	}
	return c
}

// current returns the certificates, PEM. While they can't be read, the last ones stay, which after a start of the manager are before.
func (c *copiedCA) current(ctx context.Context, before string) string {
	if c.config.Name == "" {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	every := caEvery
	if c.text == "" {
		every = caPause
	}
	if now := c.now(); now.Sub(c.looked) >= every {
		c.looked = now
		config := &corev1.ConfigMap{}
		err := c.live.Get(ctx, c.config, config)
		if err == nil && config.Data[caKey] == "" {
			err = errors.New("it has no key " + caKey)
		}
		if err != nil {
			log.FromContext(ctx).Error(err, "can't read the authority of the object cache: tables are read from their buckets until caches know it", "configMap", c.config)
		} else {
			c.text = config.Data[caKey]
		}
	}
	if c.text == "" {
		return before
	}
	return c.text
}
