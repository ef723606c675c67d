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

// parts are the names that the manifests give to a manager and to the objects of its webhook.
type parts struct {
	manager     string // of the Deployment, the service account and the Lease
	webhook     string // of the webhook configurations
	webhooks    []rotator.WebhookType
	service     string
	certificate string // of the Secret
}

// certificate returns a channel that is closed when the webhook has a certificate. With --rotate-certs the managers keep a CA and a
// serving certificate in the Secret, and the CA in the webhook configurations: the first manager writes them, the others read them.
func certificate(mgr ctrl.Manager, p parts, namespace string, cfg serving) (<-chan struct{}, error) {
	ready := make(chan struct{})
	if !cfg.rotate {
		close(ready)
		return ready, nil
	}
	r := &rotator.CertRotator{
		SecretKey:      types.NamespacedName{Namespace: namespace, Name: p.certificate},
		CertDir:        cfg.certDir,
		CAName:         "datacache-ca",
		CAOrganization: "datacache",
		DNSName:        fmt.Sprintf("%s.%s.svc", p.service, namespace),
		IsReady:        ready,
	}
	for _, kind := range p.webhooks {
		r.Webhooks = append(r.Webhooks, rotator.WebhookInfo{Type: kind, Name: p.webhook})
	}
	if err := rotator.AddRotator(narrowed{mgr, p}, r); err != nil {
		return nil, fmt.Errorf("--rotate-certs: %w", err)
	}
	return ready, nil
}

// narrowed is a manager whose Config restricts requests to the objects in parts. The certificate rotator makes its informers from
// this Config and lists all objects of a type; the manager has no permission for the others.
type narrowed struct {
	ctrl.Manager
	parts parts
}

// GetConfig returns a copy of the manager's config that adds field selectors.
func (n narrowed) GetConfig() *rest.Config {
	config := rest.CopyConfig(n.Manager.GetConfig())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return selector{next, n.parts} })
	return config
}

// selector adds a field selector to lists and watches of Secrets and webhook configurations.
type selector struct {
	next  http.RoundTripper
	parts parts
}

// RoundTrip sends the request, with its field selector if it has one.
func (s selector) RoundTrip(request *http.Request) (*http.Response, error) {
	if name := s.name(path.Base(request.URL.Path)); name != "" && request.Method == http.MethodGet {
		request = request.Clone(request.Context())
		query := request.URL.Query()
		query.Set("fieldSelector", "metadata.name="+name)
		request.URL.RawQuery = query.Encode()
	}
	return s.next.RoundTrip(request)
}

// name is the name of the only object of a resource that the rotator may see; empty for other resources.
func (s selector) name(resource string) string {
	switch resource {
	case "secrets":
		return s.parts.certificate
	case "mutatingwebhookconfigurations", "validatingwebhookconfigurations":
		return s.parts.webhook
	}
	return ""
}
