// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// accessFile is what the servers of a cache are told of who reads it.
type accessFile struct {
	Readers, Rows         string
	Audiences, Namespaces []string
	Accounts              []string
	Jobs                  map[string]string
	Issuers               []struct {
		URL  string
		Keys struct{ Keys []accessKey }
	}
}

type accessKey struct{ Kid, Kty string }

// access waits until the ConfigMap of a cache's readers passes the check.
func access(t *testing.T, dc *v1alpha1.DataCache, what string, check func(accessFile) error) accessFile {
	t.Helper()
	config, got := &corev1.ConfigMap{}, accessFile{}
	cluster.Become(t, config, dc.Namespace, dc.Name+"-cache-access", what, func() error {
		got = accessFile{}
		if err := json.Unmarshal([]byte(config.Data["ACCESS"]), &got); err != nil {
			return err
		}
		return check(got)
	})
	return got
}

// saysReaders waits until the condition ReadersKnown has the status and the reason.
func saysReaders(t *testing.T, dc *v1alpha1.DataCache, status metav1.ConditionStatus, reason string) {
	t.Helper()
	cluster.Become(t, dc, dc.Namespace, dc.Name, "ReadersKnown="+string(status)+" for "+reason, func() error {
		c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionReadersKnown)
		if c == nil || c.Status != status || c.Reason != reason {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
}

// authorityOf checks that the Secret that a cache's pods mount has the private key of the authority in its status.
func authorityOf(t *testing.T, dc *v1alpha1.DataCache) {
	t.Helper()
	set := appears(t, &lws.LeaderWorkerSet{}, dc.Namespace, dc.Name+"-cache")
	for _, template := range []*corev1.PodTemplateSpec{set.Spec.LeaderWorkerTemplate.LeaderTemplate, &set.Spec.LeaderWorkerTemplate.WorkerTemplate} {
		mounted := secretOf(template.Spec)
		secret := appears(t, &corev1.Secret{}, dc.Namespace, mounted)
		if !strings.HasPrefix(string(secret.Data["CACHE_CA"]), dc.Status.CABundle) || dc.Status.CABundle == "" {
			t.Fatalf("Secret %s has not the certificate of the status %q", mounted, dc.Status.CABundle)
		}
		block, rest := pem.Decode(secret.Data["CACHE_CA"])
		private, _ := pem.Decode(rest)
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		key, err := x509.ParsePKCS8PrivateKey(private.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		signer, ok := key.(*ecdsa.PrivateKey)
		if !ok || !signer.PublicKey.Equal(certificate.PublicKey) || !certificate.IsCA {
			t.Errorf("the private key is a %T, which is not that of the certificate, or that is no authority's: %v", key, certificate.IsCA)
		}
	}
}

// TestAccess checks what the servers of a cache are told of its readers, the API server's own keys among it, and that changes reach them while
// the cache runs.
func TestAccess(t *testing.T) {
	t.Parallel()
	ns, other := cluster.Namespace(t), cluster.Namespace(t)
	served(t, ns, "reviews")
	dc := named(ns, "reviews")
	dc.Spec.Access = v1alpha1.Access{Accounts: []string{other + "/etl", other + "/batch"},
		Namespaces: v1alpha1.NamespaceAccess{From: v1alpha1.AccessNames, Names: []string{other}}}
	cluster.Create(t, dc)
	cluster.DataCache(t, ns, "reviews", v1alpha1.StateReady)
	audience := "datacache.kubeflow.org/namespaces/" + ns + "/datacaches/reviews"
	got := access(t, dc, "complete", func(a accessFile) error {
		if len(a.Issuers) != 1 {
			return fmt.Errorf("it has issuers %v", a.Issuers)
		}
		return nil
	})
	claims, kid := tokenFor(t, ns, "default", audience)
	// Another test gives the API server a second key.
	at := slices.IndexFunc(got.Issuers[0].Keys.Keys, func(key accessKey) bool { return key.Kid == kid && key.Kty != "" })
	if got.Issuers[0].URL != claims["iss"] || at < 0 {
		t.Errorf("issuers %+v, but a token has issuer %v and key %s", got.Issuers, claims["iss"], kid)
	}
	got.Issuers = nil
	namespaces := slices.Sorted(slices.Values([]string{ns, other}))
	want := accessFile{Readers: "Known", Rows: "TLS", Audiences: []string{audience}, Namespaces: namespaces, Accounts: []string{other + "/batch", other + "/etl"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("access (-want +got):\n%s", diff)
	}
	if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(dc), dc); err != nil {
		t.Fatal(err)
	}
	authorityOf(t, dc)
	endpoint := func(scheme string) {
		t.Helper()
		cluster.Become(t, dc, ns, "reviews", "at "+scheme, func() error {
			if want := scheme + "://reviews-cache-service." + ns + ":50051"; dc.Status.Endpoint != want {
				return fmt.Errorf("its endpoint is %s", dc.Status.Endpoint)
			}
			return nil
		})
	}
	endpoint("grpc+tls")
	before := appears(t, &lws.LeaderWorkerSet{}, ns, "reviews-cache")

	change(t, dc, func(dc *v1alpha1.DataCache) {
		dc.Spec.Access.Issuers = []v1alpha1.Issuer{{URL: "https://sso.example.com", Keys: "none", Audience: "datacache", Claim: "groups", Values: []string{"ml"}}}
	})
	cluster.Become(t, dc, ns, "reviews", "with an issuer whose tokens can't be checked", func() error {
		c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionTokensUnverifiable)
		if c == nil || c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "access.issuers[0].keys: want a JWKS") {
			return fmt.Errorf("its condition is %+v", c)
		}
		return nil
	})
	change(t, dc, func(dc *v1alpha1.DataCache) {
		dc.Spec.Access.Accounts, dc.Spec.Access.Issuers, dc.Spec.TLS.Rows = nil, nil, v1alpha1.RowsPlain
		dc.Spec.Access.Namespaces = v1alpha1.NamespaceAccess{From: v1alpha1.AccessSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": other}}}
	})
	access(t, dc, "as changed", func(a accessFile) error {
		if a.Rows != "Plain" || len(a.Accounts) > 0 || !slices.Equal(a.Namespaces, namespaces) {
			return fmt.Errorf("it is %+v", a)
		}
		return nil
	})
	change(t, dc, func(dc *v1alpha1.DataCache) {
		dc.Spec.Access, dc.Spec.TLS = v1alpha1.Access{Readers: v1alpha1.ReadersAnyone}, v1alpha1.TLS{}
	})
	saysReaders(t, dc, metav1.ConditionFalse, v1alpha1.ReasonAnyone)
	endpoint("grpc")
	access(t, dc, "for anyone", func(a accessFile) error {
		if a.Readers != "Anyone" || a.Rows != "TLS" || !slices.Equal(a.Namespaces, []string{ns}) {
			return fmt.Errorf("it is %+v", a)
		}
		return nil
	})
	if after := appears(t, &lws.LeaderWorkerSet{}, ns, "reviews-cache"); after.Generation != before.Generation {
		t.Errorf("the pods were changed: generation %d, before %d", after.Generation, before.Generation)
	}
}

// tokenFor returns the claims and the key ID of a token for the audience.
func tokenFor(t *testing.T, namespace, account, audience string) (claims map[string]any, key string) {
	t.Helper()
	owner := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	kubetest.Eventually(t, "a token of "+account, func() error { // the account may not be made yet
		return cluster.Client.SubResource("token").Create(t.Context(), owner, request)
	})
	header := map[string]any{}
	for i, into := range []*map[string]any{&header, &claims} {
		text, err := base64.RawURLEncoding.DecodeString(strings.Split(request.Status.Token, ".")[i])
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	key, _ = header["kid"].(string)
	return claims, key
}

// TestAccessIsValidated checks that the API server rejects settings that contradict each other, by the name of the field.
func TestAccessIsValidated(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	for want, spec := range map[string]v1alpha1.DataCacheSpec{
		"accounts must be unset with readers: Anyone":          {Access: v1alpha1.Access{Readers: v1alpha1.ReadersAnyone, Accounts: []string{"team/etl"}}},
		`spec.access.readers: Unsupported value: "Everybody"`:  {Access: v1alpha1.Access{Readers: "Everybody"}},
		`spec.access.accounts[0]: Invalid value: "etl"`:        {Access: v1alpha1.Access{Accounts: []string{"etl"}}},
		`spec.access.accounts[1]: Duplicate value: "team/etl"`: {Access: v1alpha1.Access{Accounts: []string{"team/etl", "team/etl"}}},
		"spec.access.issuers[0].url: Invalid value":            {Access: v1alpha1.Access{Issuers: []v1alpha1.Issuer{{URL: "sso.example.com", Keys: "{}", Audience: "a", Claim: "c", Values: []string{"v"}}}}},
		"spec.access.issuers[0].values: Invalid value":         {Access: v1alpha1.Access{Issuers: []v1alpha1.Issuer{{URL: "https://sso", Keys: "{}", Audience: "a", Claim: "c", Values: []string{}}}}},
		`spec.tls.rows: Unsupported value: "Encrypted"`:        {TLS: v1alpha1.TLS{Rows: "Encrypted"}},
	} {
		dc := named(ns, "reviews")
		spec.Arrow = dc.Spec.Arrow
		dc.Spec = spec
		if err := cluster.Client.Create(t.Context(), dc); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestCredentials checks that the pods of TrainJobs mount a token for each of their caches and, from the beginning, the certificates of their
// authorities: of a cache whose TrainJob gets its name after admission, and of the greatest number of caches.
func TestCredentials(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act { return kubetest.Act{Unready: isCachePod(pod)} })
	job := cacheJob(ns, "", table, tableEnv()...)
	job.GenerateName = "train-"
	cluster.Create(t, job)
	dc := &v1alpha1.DataCache{}
	cluster.Become(t, dc, ns, job.Name, "with an authority", func() error {
		if dc.Status.CABundle == "" {
			return errors.New("it has none")
		}
		return nil
	})
	unique := job.Annotations[wellknown.AnnotationPlacement]
	audience := "datacache.kubeflow.org/placements/" + unique
	access(t, dc, "for the job's tokens", func(a accessFile) error {
		if !slices.Contains(a.Audiences, audience) || a.Readers != "Known" || a.Jobs[unique] != job.Name {
			return fmt.Errorf("it is %+v", a)
		}
		return nil
	})
	if got := tokensOf(t, ns, job.Name); !slices.Equal(got, []string{"own/token " + audience + "/trainjobs/" + unique}) {
		t.Errorf("its pods have tokens %q", got)
	}
	trusts(t, ns, unique, map[string]string{"own": dc.Status.CABundle})

	var names []string
	for i := range 16 {
		cache := named(ns, fmt.Sprint("c", i))
		cache.Spec.Access.Readers = v1alpha1.ReadersAnyone
		if i == 0 {
			cache.Spec.TLS.Rows = v1alpha1.RowsTLS
		}
		cluster.Create(t, cache)
		names = append(names, cache.Name)
	}
	many := cacheJob(ns, "many", "datacache://"+strings.Join(names, ","))
	cluster.Create(t, many)
	if got := tokensOf(t, ns, "many"); len(got) != 17 || got[16] != "f37415af/token datacache.kubeflow.org/namespaces/"+ns+"/datacaches/c15/trainjobs/many" {
		t.Errorf("the pods of a TrainJob with 16 caches have tokens %q", got)
	}
	first := &v1alpha1.DataCache{}
	cluster.Become(t, first, ns, "c0", "with an authority", func() error {
		if first.Status.CABundle == "" {
			return errors.New("it has none")
		}
		return nil
	})
	trusts(t, ns, "many", map[string]string{"own": first.Status.CABundle, "122c5970": first.Status.CABundle})
}

// tokensOf returns the paths and audiences of the tokens that the pods of a TrainJob mount.
func tokensOf(t *testing.T, namespace, job string) (tokens []string) {
	t.Helper()
	set := appears(t, &jobset.JobSet{}, namespace, job)
	for _, replicated := range set.Spec.ReplicatedJobs {
		pod := replicated.Template.Spec.Template.Spec
		for _, v := range pod.Volumes {
			if v.Name != "datacache-credentials" {
				continue
			}
			for _, source := range v.Projected.Sources {
				if token := source.ServiceAccountToken; token != nil {
					tokens = append(tokens, token.Path+" "+token.Audience)
				}
			}
			mounted := slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
				return m.MountPath == "/var/run/secrets/datacache" && m.Name == v.Name
			})
			if replicated.Name != wellknown.NodeName || !mounted {
				t.Errorf("the volume is in %s, mounted: %v", replicated.Name, mounted)
			}
		}
	}
	return tokens
}

// trusts waits until a TrainJob's ConfigMap has these certificates.
func trusts(t *testing.T, namespace, id string, want map[string]string) {
	t.Helper()
	config := &corev1.ConfigMap{}
	cluster.Become(t, config, namespace, id+"-cache-ca", "complete", func() error {
		if diff := cmp.Diff(want, config.Data); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// TestAuthorityWithoutSecret checks that a cache whose controller was stopped between the authority's certificate and its Secret, which a quota
// does here, gets both again, and so does one whose Secret was deleted.
func TestAuthorityWithoutSecret(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	var missing atomic.Value // name of a Secret that a pod's program waits for
	missing.Store("")
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		name, _ := missing.Load().(string)
		if name != "" && secretOf(pod.Spec) == name {
			return kubetest.Act{Waiting: "CreateContainerConfigError", Message: fmt.Sprintf("secret %q not found", name)}
		}
		return kubetest.Act{Unready: true}
	})
	quota(t, ns, "count/secrets", "0")
	kubetest.Eventually(t, "the quota to be in force", func() error {
		probe := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "probe-"}}
		if err := cluster.Client.Create(t.Context(), probe, client.DryRunAll); !apierrors.IsForbidden(err) {
			return fmt.Errorf("making a Secret: %w", err)
		}
		return nil
	})
	dc := named(ns, "reviews")
	cluster.Create(t, dc)
	cluster.Become(t, dc, ns, "reviews", "with an authority and without the Secret", func() error {
		ready := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionReady)
		if dc.Status.CABundle == "" || ready == nil || !strings.Contains(ready.Message, "exceeded quota") {
			return fmt.Errorf("it has %q and is %+v", dc.Status.CABundle, ready)
		}
		return nil
	})
	first := dc.Status.CABundle
	cluster.Delete(t, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "small"}})
	cluster.Become(t, dc, ns, "reviews", "with another authority", func() error {
		if dc.Status.CABundle == first {
			return errors.New("it has the first one")
		}
		return nil
	})
	authorityOf(t, dc)

	second := dc.Status.CABundle
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: secretOf(appears(t, &lws.LeaderWorkerSet{}, ns, "reviews-cache").Spec.LeaderWorkerTemplate.WorkerTemplate.Spec)}}
	cluster.Delete(t, secret)
	missing.Store(secret.Name)
	for i := range cachePods(t, ns, 2) { // which find out when they start
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: []string{"reviews-cache-0", "reviews-cache-0-1"}[i]}}
		cluster.Delete(t, pod)
	}
	cluster.Become(t, dc, ns, "reviews", "with a third authority", func() error {
		if dc.Status.CABundle == second {
			return errors.New("it has the second one")
		}
		return nil
	})
	kubetest.Eventually(t, "pods with the Secret of the third authority", func() error {
		set := &lws.LeaderWorkerSet{}
		if err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "reviews-cache"}, set); err != nil {
			return err
		}
		if secretOf(set.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec) == secret.Name {
			return errors.New("they have that of the second")
		}
		return nil
	})
	authorityOf(t, dc)
}

// secretOf is the Secret that a cache's pods mount.
func secretOf(pod corev1.PodSpec) string {
	at := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "access" })
	if at < 0 {
		return ""
	}
	return pod.Volumes[at].Projected.Sources[1].Secret.Name
}

// TestRunningCachesKeepWhatTheyBeganWith checks that a cache whose pods an earlier release started, which know no readers, keeps them, says so, and
// gives its users no certificate; and that its next pods serve known readers.
func TestRunningCachesKeepWhatTheyBeganWith(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	cluster.Kubelet.Play(ns, func(*corev1.Pod) kubetest.Act { return kubetest.Act{Unready: true} })
	dc := named(ns, "reviews")
	cluster.Create(t, dc)
	saysReaders(t, dc, metav1.ConditionTrue, v1alpha1.ReasonKnown)
	set := appears(t, &lws.LeaderWorkerSet{}, ns, "reviews-cache")
	change(t, set, func(set *lws.LeaderWorkerSet) { // as an earlier release made it
		env := set.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Env
		at := slices.IndexFunc(env, func(v corev1.EnvVar) bool { return v.Name == "CACHE_SECRET" })
		env[at].ValueFrom.SecretKeyRef.Name = "reviews-cache-" + string(dc.UID)[:8]
	})
	saysReaders(t, dc, metav1.ConditionFalse, v1alpha1.ReasonStartedBefore)
	cluster.Create(t, cacheJob(ns, "train", "datacache://reviews"))
	appears(t, &corev1.Service{}, ns, "train-cache-service")
	kubetest.Eventually(t, "no certificate: the TrainJob's clients would connect by TLS, which these pods don't know", func() error {
		config := &corev1.ConfigMap{}
		err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "train-cache-ca"}, config)
		if len(config.Data) > 0 {
			return fmt.Errorf("it has %v", config.Data)
		}
		return client.IgnoreNotFound(err)
	})
	change(t, dc, func(dc *v1alpha1.DataCache) { dc.Spec.Suspend = true })
	cluster.Vanish(t, &lws.LeaderWorkerSet{}, ns, "reviews-cache")
	change(t, dc, func(dc *v1alpha1.DataCache) { dc.Spec.Suspend = false })
	saysReaders(t, dc, metav1.ConditionTrue, v1alpha1.ReasonKnown)
	authorityOf(t, dc)
	trusts(t, ns, "train", map[string]string{"own": dc.Status.CABundle})
}
