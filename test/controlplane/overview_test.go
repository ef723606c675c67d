// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubeflow/datacache/internal/overview/reviewed"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// visitor is who asks a manager for its page of DataCaches.
type visitor struct {
	url    string
	client *http.Client
	token  string // empty: none is sent
}

// visit returns a visitor without a token, of the manager whose webhook listens on the port.
func visit(t *testing.T, port int) *visitor {
	t.Helper()
	client, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: cluster.Config.CAData}})
	if err != nil {
		t.Fatal(err)
	}
	return &visitor{url: fmt.Sprintf("https://%s:%d%s", cluster.Address, port, reviewed.Path), client: client}
}

// as returns the visitor with a token of a new service account of the namespace.
func (v *visitor) as(t *testing.T, namespace, name string) *visitor {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	cluster.Create(t, account)
	request := &authenticationv1.TokenRequest{}
	if err := cluster.Client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return &visitor{v.url, v.client, request.Status.Token}
}

// get asks for the page with a query and returns its text. A response with another status is an error. It asks again while the manager says
// that the API server did not answer it in time, as may be on a busy machine.
func (v *visitor) get(ctx context.Context, query string, want int) (string, error) {
	for {
		text, err := v.once(ctx, query, want)
		if !errors.Is(err, errUnavailable) {
			return text, err
		}
	}
}

var errUnavailable = errors.New("503")

func (v *visitor) once(ctx context.Context, query string, want int) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, v.url+query, nil)
	if err != nil {
		return "", err
	}
	if v.token != "" {
		request.Header.Set("Authorization", "Bearer "+v.token)
	}
	response, err := v.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != want {
		err = fmt.Errorf("GET %s%s: %s, want %d: %s", v.url, query, response.Status, want, text)
	}
	if response.StatusCode == http.StatusServiceUnavailable {
		return "", errUnavailable
	}
	if login := response.Header.Get("WWW-Authenticate"); err == nil && (login == "Bearer") != (want == http.StatusUnauthorized) {
		err = fmt.Errorf("GET %s%s: %s with WWW-Authenticate: %s", v.url, query, response.Status, login)
	}
	return string(text), err
}

// sees waits until the page lists the caches of exactly those namespaces, of the ones that the test made.
func (v *visitor) sees(t *testing.T, within time.Duration, query string, made []string, want ...string) {
	t.Helper()
	kubetest.EventuallyLong(t, within, fmt.Sprintf("the page%s with the caches of %v", query, want), func() error {
		text, err := v.get(t.Context(), query, http.StatusOK)
		var got []string
		for _, namespace := range made {
			if strings.Contains(text, ">"+namespace+"</a>/") {
				got = append(got, namespace)
			} else if strings.Contains(text, namespace) && !strings.Contains(query, namespace) {
				return fmt.Errorf("the page names %s without listing its cache", namespace)
			}
		}
		if !slices.Equal(got, want) {
			err = errors.Join(err, fmt.Errorf("it lists those of %v", got))
		}
		return err
	})
}

// allow binds the view of DataCaches to a service account: in the namespace, or everywhere if that is empty. revoke takes it away.
func allow(t *testing.T, namespace, accountNamespace, account string) (revoke func()) {
	t.Helper()
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "datacache-view"}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: accountNamespace, Name: account}}
	if namespace != "" {
		binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}, RoleRef: role, Subjects: subjects}
		cluster.Create(t, binding)
		return func() { cluster.Delete(t, binding) }
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: accountNamespace + "-" + account}, RoleRef: role, Subjects: subjects}
	cluster.Create(t, binding)
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() { _ = cluster.Client.Delete(ctx, binding) }) // no other test's accounts are its subjects
	return func() { cluster.Delete(t, binding) }
}

// TestOverviewShowsWhatOneMayList asks a manager for its page as users with different rights.
func TestOverviewShowsWhatOneMayList(t *testing.T) {
	t.Parallel()
	made := []string{cluster.Namespace(t), cluster.Namespace(t)}
	for _, namespace := range made {
		cluster.Create(t, byHand(namespace))
	}
	a, b := made[0], made[1]
	revoke := allow(t, a, a, "of-a")
	allow(t, b, a, "of-b")
	allow(t, "", a, "of-all")
	door := visit(t, webhookPort)
	ofA, ofB, ofAll, nobody := door.as(t, a, "of-a"), door.as(t, a, "of-b"), door.as(t, a, "of-all"), door.as(t, a, "nobody")

	ofA.sees(t, kubetest.Deadline, "", made, a)
	ofB.sees(t, kubetest.Deadline, "", made, b)
	ofAll.sees(t, kubetest.Deadline, "", made, a, b)
	ofAll.sees(t, kubetest.Deadline, "?namespace="+b, made, b)
	ofA.sees(t, kubetest.Deadline, "?namespace="+a, made, a)
	ofA.sees(t, kubetest.Deadline, "?namespace="+a+"&state=Failed&state=Degraded", made)
	for _, query := range []string{"?namespace=" + b, "?namespace=no-such-namespace"} { // one does not learn whether it is there
		text, err := ofA.get(t.Context(), query, http.StatusOK)
		if err := errors.Join(err, lacks(text, []string{"No caches", "There is none that you may list."})); err != nil {
			t.Errorf("%s without rights: %v", query, err)
		}
	}
	text, err := nobody.get(t.Context(), "", http.StatusOK)
	if err := errors.Join(err, lacks(text, []string{"No caches", "There is none that you may list."})); err != nil {
		t.Errorf("who has no rights: %v", err)
	}
	for name, token := range map[string]string{"no token": "", "a made-up token": "abc", "a forged token": ofAll.token[:len(ofAll.token)-8] + "AAAAAAAA"} {
		if _, err := (&visitor{door.url, door.client, token}).get(t.Context(), "", http.StatusUnauthorized); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for query, want := range map[string]string{"?state=Good": `state: "Good" is none of Failed, Degraded, `, "?namespace=../x": `namespace: "../x"`} {
		text, err := ofA.get(t.Context(), query, http.StatusBadRequest)
		if err := errors.Join(err, lacks(text, []string{want})); err != nil {
			t.Error(err)
		}
	}
	assets := &visitor{door.url, door.client, ""}
	if text, err := assets.get(t.Context(), "/page.css", http.StatusOK); err != nil || !strings.Contains(text, ".caches") {
		t.Errorf("the page's style: %v, %s", err, text)
	}

	revoke()
	ofA.sees(t, reviewed.MaxAge+kubetest.Deadline, "", made)
}

// TestOverviewAsksForNothingTwice counts the requests to the API server for a page: one review of the token, one of the right, and both
// are used again.
func TestOverviewAsksForNothingTwice(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	cluster.Create(t, byHand(ns))
	allow(t, ns, ns, "reader")
	config, err := cluster.ConfigFor("system:serviceaccount:"+systemNamespace+":datacache-manager", "system:serviceaccounts", "system:authenticated")
	if err != nil {
		t.Fatal(err)
	}
	var requests kubetest.Requests
	config.Wrap(requests.Count)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	page, err := reviewed.New(config, client, other.GetClient())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(page)
	defer server.Close()
	reader := (&visitor{url: server.URL, client: server.Client()}).as(t, ns, "reader")
	reader.sees(t, kubetest.Deadline, "?namespace="+ns, []string{ns}, ns) // the rights have taken effect
	first := requests.Take()
	if first["POST tokenreviews"] == 0 || first["POST subjectaccessreviews"] == 0 || len(first) != 2 {
		t.Errorf("the first pages took %v, want only reviews", first)
	}
	began := time.Now()
	for range 100 {
		if _, err := reader.get(t.Context(), "?namespace="+ns, http.StatusOK); err != nil {
			t.Fatal(err)
		}
	}
	most := int(time.Since(began)/reviewed.MaxAge) + 1 // on a machine that is very busy
	for what, n := range requests.Take() {
		if n > most || !slices.Contains([]string{"POST tokenreviews", "POST subjectaccessreviews"}, what) {
			t.Errorf("100 pages within %v took %d %s, want at most %d reviews", time.Since(began), n, what, most)
		}
	}
}
