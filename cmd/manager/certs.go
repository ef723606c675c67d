// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Names that manifests/base give.
const (
	webhookName = "datacache.kubeflow.org" // both webhook configurations
	serviceName = "datacache-webhook"
	secretName  = "datacache-webhook-cert"
)

// certificate is closed once the webhook has one. With --rotate-certs every manager keeps a CA and a serving certificate in the Secret, and
// the CA in both webhook configurations: whoever comes first writes, the others read.
func certificate(mgr ctrl.Manager, cfg config) (<-chan struct{}, error) {
	ready := make(chan struct{})
	if !cfg.rotate {
		close(ready)
		return ready, nil
	}
	err := rotator.AddRotator(mgr, &rotator.CertRotator{
		SecretKey:      types.NamespacedName{Namespace: cfg.caches.Namespace(), Name: secretName},
		CertDir:        cfg.certDir,
		CAName:         "datacache-ca",
		CAOrganization: "datacache",
		DNSName:        fmt.Sprintf("%s.%s.svc", serviceName, cfg.caches.Namespace()),
		IsReady:        ready,
		Webhooks: []rotator.WebhookInfo{
			{Type: rotator.Mutating, Name: webhookName},
			{Type: rotator.Validating, Name: webhookName},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("--rotate-certs: %w", err)
	}
	return ready, nil
}
