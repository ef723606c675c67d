// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"path"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
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
	err := rotator.AddRotator(narrowed{mgr}, &rotator.CertRotator{
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

// names are the only objects of each resource that the rotator may see.
var names = map[string]string{
	"secrets":                         secretName,
	"mutatingwebhookconfigurations":   webhookName,
	"validatingwebhookconfigurations": webhookName,
}

// narrowed is a manager whose Config asks for the objects of names alone. The rotator makes its informers from it, without a way to tell
// them what to list; the manager has no right to list what others have.
type narrowed struct{ ctrl.Manager }

// GetConfig returns a copy of the manager's that adds field selectors.
func (n narrowed) GetConfig() *rest.Config {
	config := rest.CopyConfig(n.Manager.GetConfig())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return selector{next} })
	return config
}

// selector adds a field selector to lists and watches of the resources in names.
type selector struct{ next http.RoundTripper }

// RoundTrip sends the request with its field selector.
func (s selector) RoundTrip(request *http.Request) (*http.Response, error) {
	if name, known := names[path.Base(request.URL.Path)]; known && request.Method == http.MethodGet {
		request = request.Clone(request.Context())
		query := request.URL.Query()
		query.Set("fieldSelector", "metadata.name="+name)
		request.URL.RawQuery = query.Encode()
	}
	return s.next.RoundTrip(request)
}
