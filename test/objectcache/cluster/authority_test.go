// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeflow/datacache/internal/authority"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

const authorityName = "datacache-object-cache-ca" // Secret and ConfigMap of manifests/object-cache

// keepers run KeepAuthority as n object caches do until the test stops them, and return the certificates that each has.
func keepers(t *testing.T, n int) (have func() []string, failures func() error, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var failed []error
	found := make([]string, n)
	var running sync.WaitGroup
	for i := range n {
		keeper := client(t, home)
		running.Go(func() {
			keeper.KeepAuthority(ctx, authorityName, func(ca *authority.Authority) {
				mu.Lock()
				defer mu.Unlock()
				found[i] = ca.PEM()
			}, func(err error) {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, err)
			})
		})
	}
	have = func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), found...)
	}
	failures = func() error {
		mu.Lock()
		defer mu.Unlock()
		return errors.Join(failed...)
	}
	return have, failures, func() {
		cancel()
		running.Wait()
	}
}

// as returns the API of a ServiceAccount, <namespace>:<name>.
func as(t *testing.T, account string) corev1client.CoreV1Interface {
	t.Helper()
	file, err := cluster.Kubeconfig("system:serviceaccount:" + account)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return api.CoreV1()
}

// agree waits until all keepers and the ConfigMap have one certificate, which it returns.
func agree(t *testing.T, have func() []string) (certificate string) {
	t.Helper()
	somebody := as(t, account(t)+":worker")
	deadline.Eventually(t, func() error {
		config, err := somebody.ConfigMaps(home).Get(t.Context(), authorityName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got := config.Data["ca.crt"]
		for i, each := range have() {
			if each == "" || each != got {
				return fmt.Errorf("object cache %d has %q, the ConfigMap %q", i, each, got)
			}
		}
		certificate = got
		return nil
	})
	return certificate
}

// TestAuthority checks, with the rights of manifests/object-cache, that object caches which start together agree on one authority, that any account
// reads its certificate and nobody else the key, and what becomes of a deleted Secret, of a deleted or changed ConfigMap, and of a bad Secret.
func TestAuthority(t *testing.T) {
	have, failures, stop := keepers(t, 4)
	first := agree(t, have)
	stop()
	if err := failures(); err != nil {
		t.Error(err)
	}
	for who, may := range map[string]bool{home + ":" + home: true, home + ":default": false, account(t) + ":worker": false} {
		if got := mayReadSecret(t, who, authorityName); got != may {
			t.Errorf("%s may read the authority's key: %v, want %v", who, got, may)
		}
	}
	if mayReadSecret(t, home+":"+home, "datacache-hub-tokens") {
		t.Error("the object cache may read another Secret")
	}
	config, err := clients.CoreV1().ConfigMaps(home).Get(t.Context(), authorityName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config.Data["ca.crt"] = "of somebody else"
	if _, err := clients.CoreV1().ConfigMaps(home).Update(t.Context(), config, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	have, _, stop = keepers(t, 1)
	if again := agree(t, have); again != first {
		t.Error("another authority is in use after the ConfigMap was changed")
	}
	stop()
	if err := errors.Join( // as if the one that made a new Secret had been killed before it wrote the ConfigMap
		clients.CoreV1().Secrets(home).Delete(t.Context(), authorityName, metav1.DeleteOptions{}),
		clients.CoreV1().ConfigMaps(home).Delete(t.Context(), authorityName, metav1.DeleteOptions{}),
	); err != nil {
		t.Fatal(err)
	}
	have, _, stop = keepers(t, 2)
	if again := agree(t, have); again == first {
		t.Error("the authority of the deleted Secret is still in use")
	}
	stop()
	secret, err := clients.CoreV1().Secrets(home).Get(t.Context(), authorityName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret.Data = map[string][]byte{"authority.pem": []byte("nothing")}
	if _, err := clients.CoreV1().Secrets(home).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, failures, stop = keepers(t, 1)
	defer stop()
	deadline.Eventually(t, func() error {
		if err := failures(); err == nil || !strings.Contains(err.Error(), "Secret "+authorityName+", key authority.pem: want PEM") {
			return fmt.Errorf("a bad Secret: %w", errors.Join(errors.New("want an error that names it"), err))
		}
		return nil
	})
	if err := clients.CoreV1().Secrets(home).Delete(t.Context(), authorityName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestProgramByTLS runs the program with the environment that manifests/object-cache gives it, and stores an object over TLS as a pod does that has the
// ConfigMap's certificate and the Service's name.
func TestProgramByTLS(t *testing.T) {
	file, err := cluster.Kubeconfig("system:serviceaccount:" + home + ":" + home)
	if err != nil {
		t.Fatal(err)
	}
	objects, _ := build(t)
	env := []string{"POD_NAMESPACE=" + home, "KUBECONFIG=" + file}
	for _, e := range get[appsv1.DaemonSet](t, objects, "DaemonSet datacache-object-cache").Spec.Template.Spec.Containers[0].Env {
		if strings.HasPrefix(e.Name, "TLS_") || e.Name == "PLAIN_TEXT" {
			env = append(env, e.Name+"="+e.Value)
		}
	}
	dir := t.TempDir()
	buckets := filepath.Join(dir, "buckets.json")
	if err := os.WriteFile(buckets, []byte(`{"TotalLimit": "64Mi", "Bucket": [{"Name": "open", "Public": true, "BucketQuota": "64Mi"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	server := proctest.Start(t, "the object cache", env, binary, "--name", "here", "--min-free", "0", "--dir", filepath.Join(dir, "objects"),
		"--buckets", buckets, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
	address := ""
	deadline.Eventually(t, func() error {
		server.Alive()
		_, rest, _ := strings.Cut(server.Output.String(), "ready https://")
		found, _, ok := strings.Cut(rest, " ")
		if address = found; !ok {
			return errors.New("it is not ready")
		}
		return nil
	})
	namespace := account(t)
	roots := x509.NewCertPool()
	deadline.Eventually(t, func() error {
		config, err := as(t, namespace+":worker").ConfigMaps(home).Get(t.Context(), authorityName, metav1.GetOptions{})
		if err == nil && !roots.AppendCertsFromPEM([]byte(config.Data["ca.crt"])) {
			err = errors.New("the ConfigMap has no certificate")
		}
		return err
	})
	service := get[corev1.Service](t, objects, "Service "+home)
	name := service.Name + "." + service.Namespace + ".svc"
	if at := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == 443 && p.TargetPort.String() == "objects" }); at < 0 {
		t.Errorf("the Service has ports %v, want 443 to the port for objects", service.Spec.Ports)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	of := token(t, namespace, audience, nil)
	for _, scheme := range []string{"https", "http"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, scheme+"://"+name+"/v1/objects/open/key", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+of)
		response, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			t.Fatalf("%s: %v", scheme, err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusCreated {
			t.Errorf("%s: %s", scheme, response.Status)
		}
	}
}

func mayReadSecret(t *testing.T, account, name string) bool {
	t.Helper()
	_, err := as(t, account).Secrets(home).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return !apierrors.IsForbidden(err)
}
