// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/overview/reviewed"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/promtest"
)

// TestCertificateInASharedNamespace runs the manager in Trainer's namespace, where it may not read Trainer's Secrets: it must create
// its certificate, pass its CA to the API server, and be ready once the kubelet has mounted the certificate.
func TestCertificateInASharedNamespace(t *testing.T) {
	const shared = "kubeflow-system"
	if err := cluster.Install(t.Context(), rendered(t, repository, "manifests/overlays/kubeflow"), cluster.Address+":1"); err != nil {
		t.Fatal(err)
	}
	restricted := restrictedClient(t, shared)
	if err := restricted.List(t.Context(), &corev1.SecretList{}, client.InNamespace(shared)); !apierrors.IsForbidden(err) {
		t.Errorf("listing the Secrets of %s: %v, want it forbidden", shared, err)
	}
	dir := t.TempDir()
	m := launch(t, program, shared, "--cert-dir="+dir)
	secret := &corev1.Secret{}
	cluster.Become(t, secret, shared, "datacache-webhook-cert", "filled", func() error {
		if len(secret.Data["tls.crt"]) == 0 {
			return errors.New("it has no tls.crt")
		}
		return nil
	})
	for name, data := range secret.Data { // as the kubelet does
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.isReady(t)
	ours := &admissionv1.MutatingWebhookConfiguration{}
	cluster.Become(t, ours, "", wellknown.Group, "told the CA", func() error {
		if !bytes.Equal(ours.Webhooks[0].ClientConfig.CABundle, secret.Data["ca.crt"]) {
			return errors.New("it has another CA")
		}
		return nil
	})
	m.terminate(t)
}

// TestMetricsWantAToken checks that only clients with the role datacache-metrics-reader can read the metrics, and that the page of caches
// is for those with a token.
func TestMetricsWantAToken(t *testing.T) {
	if err := cluster.Install(t.Context(), rendered(t, repository, overlay), cluster.Address+":1"); err != nil {
		t.Fatal(err)
	}
	m := start(t, program, namespace)
	ns := cluster.Namespace(t)
	reader := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ns + "-metrics"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "datacache-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "reader"}},
	}
	cluster.Create(t, reader)
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() { _ = cluster.Client.Delete(ctx, reader) }) // the name is not used elsewhere
	for name, want := range map[string]int{"": http.StatusUnauthorized, "nobody": http.StatusForbidden, "reader": http.StatusOK} {
		token := ""
		if name != "" {
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
			cluster.Create(t, account)
			request := &authenticationv1.TokenRequest{}
			if err := cluster.Client.SubResource("token").Create(t.Context(), account, request); err != nil {
				t.Fatal(err)
			}
			token = request.Status.Token
		}
		kubetest.Eventually(t, fmt.Sprintf("an answer to %q", name), func() error {
			_, err := scrape(t.Context(), m.metrics+"/metrics", token, want)
			return err
		})
		onPage := http.StatusOK
		if token == "" {
			onPage = http.StatusUnauthorized
		}
		if text, err := scrape(t.Context(), m.webhook+reviewed.Path, token, onPage); err != nil || token != "" && !strings.Contains(text, "No caches") {
			t.Errorf("the page of caches for %q: %v, %s", name, err, text)
		}
		if want == http.StatusOK {
			rulesNameRealMetrics(t, m, token)
		}
	}
}

// rulesNameRealMetrics checks that the leading manager exports every metric of managers that an alert names.
func rulesNameRealMetrics(t *testing.T, m *manager, token string) {
	t.Helper()
	ns := cluster.Namespace(t)
	dc := &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "watched"},
		Spec: v1alpha1.DataCacheSpec{Arrow: &v1alpha1.ArrowCache{
			MetadataLocation: new("s3://lake/reviews/metadata/00001.metadata.json"), Table: "demo.reviews", DataNodes: 1, Replicas: 1,
		}},
	}
	cluster.Create(t, dc)
	kubetest.Eventually(t, "all metrics of the rules", func() error {
		// A Pending cache keeps the numbers that it had; the controller may have written it in between.
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(dc), dc); err != nil {
			return err
		}
		if dc.Status.Bytes == nil || dc.Status.LoadedPercent == nil || dc.Status.ReadyTime == nil {
			dc.Status.Bytes, dc.Status.LoadedPercent, dc.Status.ReadyTime = new(int64(1000)), new(int32(50)), new(metav1.Now())
			if err := cluster.Client.Status().Update(t.Context(), dc); err != nil {
				return err
			}
		}
		text, err := scrape(t.Context(), m.metrics+"/metrics", token, http.StatusOK)
		if err != nil {
			return err
		}
		exported := promtest.Names(text)
		for _, rule := range promtest.Read(t, filepath.Join(repository, "manifests/components/monitoring/rules.yaml")).Rules() {
			for _, name := range promtest.Metrics(rule.Expr) {
				if (promtest.OfManager(name) || name == "datacache_build_info") && !exported[name] {
					return fmt.Errorf("%s names the metric %s, which the manager does not export", rule.Alert, name)
				}
			}
		}
		return nil
	})
}

// scrape requests a page at host:port/path. A response with another status than the wanted one is an error.
func scrape(ctx context.Context, page, token string, want int) (text string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+page, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // it is self-signed
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != want {
		return "", fmt.Errorf("%s, want %d", response.Status, want)
	}
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// TestNamespaced checks that with the component namespaced the manager gives caches to TrainJobs of the namespaces that it serves,
// and has no permission to read others, whose TrainJobs it does not modify.
func TestNamespaced(t *testing.T) {
	served, other := cluster.Namespace(t), cluster.Namespace(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Abs(filepath.Join(repository, "manifests"))
	if err != nil {
		t.Fatal(err)
	}
	if manifests, err = filepath.Rel(dir, manifests); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("resources: [%[1]s/base]\ncomponents: [%[1]s/components/namespace, %[1]s/components/namespaced]\n", manifests)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// The binding of an installation for all namespaces would grant the permissions that must be missing.
	if err := client.IgnoreNotFound(cluster.Client.Delete(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "datacache-manager"}})); err != nil {
		t.Fatal(err)
	}
	webhooks := newService(t)
	if err := cluster.Install(t.Context(), rendered(t, dir, "."), webhooks.listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "apply", "-k", filepath.Join(repository, "manifests/namespace-rbac"), "-n", served)
	kubectl(t, "label", "namespace", served, "datacache.kubeflow.org/served=true")
	m := start(t, program, namespace, "--namespaces="+served, "--metrics-from=monitoring/app.kubernetes.io/name=prometheus", "--metrics-from=observability")
	webhooks.set(m.webhook)
	twin(t)
	restricted := restrictedClient(t, namespace)
	if err := restricted.List(t.Context(), &corev1.PodList{}, client.InNamespace(other)); !apierrors.IsForbidden(err) {
		t.Errorf("listing the pods of another namespace: %v, want it forbidden", err)
	}
	cluster.Create(t, cacheJob(served, "train"))
	cluster.Appear(t, &lws.LeaderWorkerSet{}, served, wellknown.CacheName("train"))
	admitsPrometheus(t, served, wellknown.CacheName("train"))
	// It is not pointed at a twin, so Trainer validates it: the stock runtime has no step that initializes a dataset.
	err = cluster.Client.Create(t.Context(), cacheJob(other, "train"), client.DryRunAll)
	if err == nil || !strings.Contains(err.Error(), "must have dataset-initializer job") || !strings.Contains(err.Error(), stock) {
		t.Errorf("creating a TrainJob in another namespace: %v, want Trainer's own refusal of runtime %s", err, stock)
	}
	m.terminate(t)
}

// admitsPrometheus checks that a cache's NetworkPolicy admits those that --metrics-from names to the port of metrics alone.
func admitsPrometheus(t *testing.T, ns, cache string) {
	t.Helper()
	policy := &networkingv1.NetworkPolicy{}
	cluster.Appear(t, policy, ns, cache)
	in := func(name string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: name}}
	}
	want := []networkingv1.NetworkPolicyPeer{
		{NamespaceSelector: in("monitoring"), PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "prometheus"}}},
		{NamespaceSelector: in("observability")},
	}
	last := policy.Spec.Ingress[len(policy.Spec.Ingress)-1]
	if diff := cmp.Diff(want, last.From[1:]); diff != "" || len(last.Ports) != 1 || last.Ports[0].Port.IntValue() != wellknown.HTTPPort {
		t.Errorf("port %+v admits, besides the manager (-want +got):\n%s", last.Ports, diff)
	}
}

// restrictedClient returns a client with the permissions of the namespace's manager.
func restrictedClient(t *testing.T, namespace string) client.Client {
	t.Helper()
	config, err := cluster.ConfigFor("system:serviceaccount:"+namespace+":datacache-manager", "system:serviceaccounts", "system:authenticated")
	if err != nil {
		t.Fatal(err)
	}
	restricted, err := client.New(config, client.Options{Scheme: cluster.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return restricted
}
