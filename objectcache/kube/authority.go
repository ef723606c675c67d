// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubeflow/datacache/internal/authority"
)

const (
	// authorityKey is the key of the Secret that has the authority's certificate and private key, and certificateKey that of the ConfigMap
	// with the certificate.
	authorityKey, certificateKey = "authority.pem", "ca.crt"
	// authorityEvery is the time between two looks at both, and authorityPause that after a failure.
	authorityEvery, authorityPause = time.Minute, 5 * time.Second
)

// KeepAuthority reads the authority from a Secret of the Service's namespace until ctx ends, and calls found with the first one and with each other
// one. It makes the Secret if there is none, and keeps the certificate in the ConfigMap of the same name, for clients. failed is called with each error. While
// the API server is unavailable, the last one remains in effect.
func (c *Client) KeepAuthority(ctx context.Context, name string, found func(*authority.Authority), failed func(error)) {
	var last string
	for {
		pause := authorityEvery
		ca, err := c.authority(ctx, name)
		if err == nil {
			if ca.PEM() != last {
				last = ca.PEM()
				found(ca)
			}
			err = c.publish(ctx, name, last)
		}
		if err != nil && ctx.Err() == nil {
			failed(err)
			pause = authorityPause
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// authority returns the authority in the Secret. It makes the Secret if there is none; if several object caches do so at once, all get the same.
func (c *Client) authority(ctx context.Context, name string) (*authority.Authority, error) {
	secret := &corev1.Secret{}
	err := c.get(ctx, "secrets", name, secret)
	if apierrors.IsNotFound(err) {
		if err = c.makeSecret(ctx, name); err == nil || apierrors.IsAlreadyExists(err) {
			err = c.get(ctx, "secrets", name, secret)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the authority in Secret %s: %w", name, err)
	}
	ca, err := authority.Parse(secret.Data[authorityKey])
	if err != nil {
		return nil, fmt.Errorf("the authority in Secret %s, key %s: %w: correct it, or delete the Secret so that another one is made", name, authorityKey, err)
	}
	return ca, nil
}

func (c *Client) makeSecret(ctx context.Context, name string) error {
	certificate, key, err := authority.New(name, time.Now())
	if err != nil {
		return err
	}
	made := &corev1.Secret{ObjectMeta: c.object(name), Type: corev1.SecretTypeOpaque, Data: map[string][]byte{authorityKey: authority.Join(certificate, key)}}
	return c.core.Post().Namespace(c.cfg.Namespace).Resource("secrets").Body(made).Do(ctx).Error()
}

// publish writes the certificate to the ConfigMap, if it isn't there.
func (c *Client) publish(ctx context.Context, name, certificate string) error {
	config := &corev1.ConfigMap{}
	err := c.get(ctx, "configmaps", name, config)
	switch {
	case apierrors.IsNotFound(err):
		config = &corev1.ConfigMap{ObjectMeta: c.object(name), Data: map[string]string{certificateKey: certificate}}
		err = c.core.Post().Namespace(c.cfg.Namespace).Resource("configmaps").Body(config).Do(ctx).Error()
		if apierrors.IsAlreadyExists(err) { // another object cache was faster; the next look compares
			err = nil
		}
	case err == nil && config.Data[certificateKey] != certificate:
		config.Data = map[string]string{certificateKey: certificate}
		err = c.core.Put().Namespace(c.cfg.Namespace).Resource("configmaps").Name(name).Body(config).Do(ctx).Error()
		if apierrors.IsConflict(err) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("the certificate of the authority in ConfigMap %s: %w", name, err)
	}
	return nil
}

func (c *Client) get(ctx context.Context, resource, name string, into runtime.Object) error {
	return c.core.Get().Namespace(c.cfg.Namespace).Resource(resource).Name(name).Do(ctx).Into(into)
}

func (c *Client) object(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: c.cfg.Namespace, Labels: map[string]string{"app.kubernetes.io/name": "datacache", "app.kubernetes.io/component": "object-cache"},
	}
}
