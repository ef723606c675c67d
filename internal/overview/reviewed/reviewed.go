// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reviewed serves the manager's page of DataCaches to users of the cluster: the API server reviews each one's token, and in which
// namespaces its user may list DataCaches. All else comes from the informer.
package reviewed

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/overview"
	"github.com/kubeflow/datacache/internal/webpage"
)

// Path is where the webhook's server has the page.
const Path = "/caches"

const (
	// MaxAge is how long an answer of the API server is used: the time after which a right that was taken away, or a token that was
	// revoked, shows nothing any more.
	MaxAge = 30 * time.Second
	// answerIn is the time limit of a request with all its reviews.
	answerIn = 10 * time.Second
	// atOnce is the number of reviews of one request that are under way at a time.
	atOnce = 16
	// tokenReviews is the number of TokenReviews a second: whoever reaches the port causes one by a token that is not valid.
	tokenReviews = 20
)

// Setup adds the page to the manager's webhook server, where every replica answers it. The manager's user needs the rights to create
// TokenReviews and SubjectAccessReviews.
func Setup(ctx context.Context, mgr ctrl.Manager) error {
	p, err := New(mgr.GetConfig(), mgr.GetHTTPClient(), mgr.GetClient())
	if err != nil {
		return fmt.Errorf("set up %s: %w", Path, err)
	}
	// Replicas that don't lead have no controller that would start the informer.
	if _, err := mgr.GetCache().GetInformer(ctx, &v1alpha1.DataCache{}, cache.BlockUntilSynced(false)); err != nil {
		return fmt.Errorf("set up %s: watch DataCaches: %w", Path, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, p)
	webpage.Register(mux, Path+"/")
	mgr.GetWebhookServer().Register(Path, mux)
	mgr.GetWebhookServer().Register(Path+"/", mux)
	return nil
}

// Page serves the page of the DataCaches that the sender of a request may list. Make it with New; it is safe for concurrent use.
type Page struct {
	caches client.Reader
	users  authenticator.Request
	rights authorizer.Authorizer
}

// New returns a page that reads DataCaches from caches, which informers back, and sends reviews by the configuration and its HTTP client.
func New(config *rest.Config, reach *http.Client, caches client.Reader) (*Page, error) {
	limited := rest.CopyConfig(config)
	limited.QPS, limited.Burst = tokenReviews, 2*tokenReviews
	tokens, err := authenticationclient.NewForConfigAndClient(limited, reach)
	if err != nil {
		return nil, err
	}
	access, err := authorizationclient.NewForConfigAndClient(config, reach)
	if err != nil {
		return nil, err
	}
	retry := &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 3}
	users, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous: &apiserver.AnonymousAuthConfig{}, CacheTTL: MaxAge,
		TokenAccessReviewClient: tokens, TokenAccessReviewTimeout: answerIn, WebhookRetryBackoff: retry,
	}.New()
	if err != nil {
		return nil, err
	}
	rights, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: access, AllowCacheTTL: MaxAge, DenyCacheTTL: MaxAge, WebhookRetryBackoff: retry,
	}.New()
	return &Page{caches: caches, users: users, rights: rights}, err
}

// ServeHTTP answers 401 to a request without a token that the API server accepts. A user without any right gets a page without caches,
// which is that of a cluster without any.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), answerIn)
	defer cancel()
	who, ok, err := p.users.AuthenticateRequest(r.WithContext(ctx))
	if undecided(err) {
		unavailable(ctx, w, fmt.Errorf("review a token: %w", err), "the API server did not say whose token it is: try again")
		return
	}
	if err != nil || !ok {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "send a token that the cluster's API server accepts: Authorization: Bearer TOKEN", http.StatusUnauthorized)
		return
	}
	filter, err := overview.ParseFilter(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	caches, err := p.list(ctx, who.User, filter.Namespace)
	if err != nil {
		err = fmt.Errorf("list DataCaches for user %s: %w", who.User.GetName(), err)
		unavailable(ctx, w, err, "the API server did not say in time what you may list: try again, or name a namespace: ?namespace=NAME")
		return
	}
	overview.Write(w, filter, "caches/", caches)
}

// undecided reports whether an error of a review says that there was none, and not that the token is not valid.
func undecided(err error) bool {
	var status apierrors.APIStatus
	var unreachable *url.Error
	return errors.As(err, &status) || errors.As(err, &unreachable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

func unavailable(ctx context.Context, w http.ResponseWriter, err error, text string) {
	log.FromContext(ctx).Error(err, "no answer", "path", Path)
	w.Header().Set("Retry-After", "5")
	http.Error(w, text, http.StatusServiceUnavailable)
}

// list returns the DataCaches that a user may list, of the namespace or of all. Callers must not change them.
func (p *Page) list(ctx context.Context, who user.Info, namespace string) ([]v1alpha1.DataCache, error) {
	all, err := p.may(ctx, who, namespace)
	if err != nil || !all && namespace != "" {
		return nil, err
	}
	var list v1alpha1.DataCacheList
	if err := p.caches.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	if all {
		return list.Items, nil
	}
	return p.allowed(ctx, who, list.Items)
}

// allowed returns those of the DataCaches whose namespaces' DataCaches the user may list.
func (p *Page) allowed(ctx context.Context, who user.Info, caches []v1alpha1.DataCache) ([]v1alpha1.DataCache, error) {
	byNamespace := map[string][]v1alpha1.DataCache{}
	for _, dc := range caches {
		byNamespace[dc.Namespace] = append(byNamespace[dc.Namespace], dc)
	}
	var mu sync.Mutex
	var out []v1alpha1.DataCache
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for namespace, its := range byNamespace {
		group.Go(func() error {
			ok, err := p.may(ctx, who, namespace)
			if ok {
				mu.Lock()
				defer mu.Unlock()
				out = append(out, its...)
			}
			return err
		})
	}
	err := group.Wait()
	return out, err
}

// may asks whether a user may list the DataCaches of a namespace; of all, if it is empty.
func (p *Page) may(ctx context.Context, who user.Info, namespace string) (bool, error) {
	decision, _, err := p.rights.Authorize(ctx, authorizer.AttributesRecord{
		User: who, Verb: "list", Namespace: namespace, ResourceRequest: true,
		APIGroup: v1alpha1.GroupVersion.Group, APIVersion: v1alpha1.GroupVersion.Version, Resource: "datacaches",
	})
	return decision == authorizer.DecisionAllow, err
}
