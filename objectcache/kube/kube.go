// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kube reviews tokens, watches the endpoints of the object caches and keeps their authority at a Kubernetes API server.
//
// It is the only package of the object cache that imports Kubernetes (docs/adr/0010-object-cache.md). It uses client-go's
// transport and informer with a scheme of three API groups and no typed clients.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/objectcache/router"
)

// Config configures a Client.
type Config struct {
	// Kubeconfig is the path of a kubeconfig file. Empty: the pod's ServiceAccount.
	Kubeconfig string
	// Audience that tokens must have.
	Audience string
	// Namespace and Service name the Service whose endpoints are the object caches; Port is the name of its port.
	Namespace, Service, Port string
}

// Client is a client of one API server and an identity.Reviewer. Create it with New; it may be shared.
type Client struct {
	cfg                     Config
	reviews, endpoint, core rest.Interface
}

var _ identity.Reviewer = (*Client)(nil)

// LogTo sends the logs of client-go, in the whole process, to log. Call it once, before New.
func LogTo(log *slog.Logger) { klog.SetSlogLogger(log) }

// New returns a Client. It does not connect yet.
func New(cfg Config) (*Client, error) {
	how, err := apiServer(cfg.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("how to reach the API server: %w", err)
	}
	// New tokens come in bursts, when jobs start; each is reviewed at most once a minute.
	how.QPS, how.Burst = 200, 400
	scheme := runtime.NewScheme()
	if err := errors.Join(authenticationv1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg}
	if c.reviews, err = clientFor(how, scheme, authenticationv1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	if c.endpoint, err = clientFor(how, scheme, discoveryv1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	c.core, err = clientFor(how, scheme, corev1.SchemeGroupVersion)
	return c, err
}

func apiServer(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

func clientFor(how *rest.Config, scheme *runtime.Scheme, group schema.GroupVersion) (rest.Interface, error) {
	metav1.AddToGroupVersion(scheme, group)
	cfg := rest.CopyConfig(how)
	cfg.APIPath, cfg.GroupVersion = "/apis", &group
	if group.Group == "" {
		cfg.APIPath = "/api"
	}
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientFor(cfg)
}

// Review posts a TokenReview for a token that may be valid (identity.CheckJWT). The API server checks the signature, the expiry and
// the existence of the pod; the client must check that the audience is among those that the server confirms
// (TokenReviewSpec.Audiences).
func (c *Client) Review(ctx context.Context, token string) (identity.Identity, error) {
	if err := identity.CheckJWT(token, c.cfg.Audience, time.Now()); err != nil {
		return identity.Identity{}, err
	}
	ask := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{c.cfg.Audience}}}
	got := &authenticationv1.TokenReview{}
	if err := c.reviews.Post().Resource("tokenreviews").Body(ask).Do(ctx).Into(got); err != nil {
		return identity.Identity{}, fmt.Errorf("review a token: %w", err)
	}
	if !got.Status.Authenticated || !slices.Contains(got.Status.Audiences, c.cfg.Audience) {
		return identity.Identity{}, fmt.Errorf("%w: %s", identity.ErrUnknown, got.Status.Error)
	}
	return identity.OfUser(got.Status.User.Username), nil
}

// Watch calls changed with the ready object caches and the IP addresses of all of them: once when all of them are known, and after
// changes, until ctx ends. Calls don't overlap, and changes that happen during one are reported together. While the API server is
// unavailable, the last known ones remain in effect.
func (c *Client) Watch(ctx context.Context, changed func(ready []router.Member, hosts []string)) {
	dirty := make(chan struct{}, 1)
	mark := func() {
		select {
		case dirty <- struct{}{}:
		default: // marked already
		}
	}
	selector := discoveryv1.LabelServiceName + "=" + c.cfg.Service
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewFilteredListWatchFromClient(c.endpoint, "endpointslices", c.cfg.Namespace,
			func(o *metav1.ListOptions) { o.LabelSelector = selector }),
		ObjectType: &discoveryv1.EndpointSlice{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { mark() },
			UpdateFunc: func(any, any) { mark() },
			DeleteFunc: func(any) { mark() },
		},
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	defer func() { <-done }()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) { // until then the store has a part of the EndpointSlices
		return
	}
	mark() // even if there are none
	for {
		select {
		case <-ctx.Done():
			return
		case <-dirty:
			slices := store.List()
			changed(c.members(slices), hosts(slices))
		}
	}
}

// members returns the ready endpoints of EndpointSlices.
func (c *Client) members(slices []any) []router.Member {
	var members []router.Member
	for _, each := range slices {
		slice, ok := each.(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		port := portOf(slice, c.cfg.Port)
		for _, e := range slice.Endpoints {
			// A nil Ready means ready (see EndpointConditions.Ready).
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			if !ready || port == 0 || e.NodeName == nil || len(e.Addresses) == 0 {
				continue
			}
			member := router.Member{Name: *e.NodeName, Address: net.JoinHostPort(e.Addresses[0], strconv.Itoa(port))}
			if e.Zone != nil {
				member.Zone = *e.Zone
			}
			members = append(members, member)
		}
	}
	return members
}

// hosts returns the IP addresses of all endpoints of EndpointSlices.
func hosts(slices []any) (hosts []string) {
	for _, each := range slices {
		if slice, ok := each.(*discoveryv1.EndpointSlice); ok {
			for _, e := range slice.Endpoints {
				hosts = append(hosts, e.Addresses...)
			}
		}
	}
	return hosts
}

// portOf returns the number of a slice's named port, 0 if it has none.
func portOf(slice *discoveryv1.EndpointSlice, name string) int {
	for _, p := range slice.Ports {
		if p.Port != nil && p.Name != nil && *p.Name == name {
			return int(*p.Port)
		}
	}
	return 0
}
