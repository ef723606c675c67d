// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package objectca reads the certificates of the object cache's authorities, of which caches get a copy.
package objectca

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
	// key is the key of the ConfigMap with the certificates. every is the time between two reads, and pause that while none has succeeded.
	key          = "ca.crt"
	every, pause = time.Minute, 10 * time.Second
)

// Source reads the certificates from a ConfigMap. It asks the API server itself, because the manager's informers may not cover the ConfigMap's
// namespace. It is safe for concurrent use.
type Source struct {
	config types.NamespacedName // zero: caches get no copy
	live   client.Reader
	now    func() time.Time

	mu     sync.Mutex
	text   string
	looked time.Time
}

// New returns the Source of the ConfigMap NAMESPACE/NAME. With a name alone nothing is copied.
func New(name string, live client.Reader, now func() time.Time) *Source {
	s := &Source{live: live, now: now}
	if namespace, name, copied := strings.Cut(name, "/"); copied {
		s.config = types.NamespacedName{Namespace: namespace, Name: name}
	}
	return s
}

// Current returns the certificates, PEM. While they can't be read, it returns the last ones, or before if none were read since the manager started.
func (s *Source) Current(ctx context.Context, before string) string {
	if s.config.Name == "" {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := every
	if s.text == "" {
		wait = pause
	}
	if now := s.now(); now.Sub(s.looked) >= wait {
		s.looked = now
		config := &corev1.ConfigMap{}
		err := s.live.Get(ctx, s.config, config)
		if err == nil && config.Data[key] == "" {
			err = errors.New("it has no key " + key)
		}
		if err != nil {
			log.FromContext(ctx).Error(err, "can't read the authority of the object cache: tables are read from their buckets until caches know it", "configMap", s.config)
		} else {
			s.text = config.Data[key]
		}
	}
	if s.text == "" {
		return before
	}
	return s.text
}
