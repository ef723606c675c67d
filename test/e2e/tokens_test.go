// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// account is the default ServiceAccount of every namespace, whose tokens the tests request.
const account = "default"

// tokenOf requests a token of the namespace's account, as the kubelet does for a projected volume; pod may be nil.
func tokenOf(t *testing.T, namespace, audience string, pod *corev1.Pod) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	await(t, "a token of namespace "+namespace, func() error { // the account is created a moment after the namespace
		made, err := cluster.logs.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
		if err == nil {
			request = made
		}
		return err
	})
	return request.Status.Token
}

// endingAt returns the token with another expiry, signed with the cluster's own key: what the API server would have issued at another
// time. The API server itself issues none that lives less than ten minutes.
func endingAt(t *testing.T, token string, end time.Time) string {
	t.Helper()
	if cluster.folder == "" {
		t.Skip("needs the key that signs tokens, which a cluster of hack/cluster has in its folder: set DATACACHE_CLUSTER")
	}
	private, err := keyutil.PrivateKeyFromFile(filepath.Join(cluster.folder, "pki", "service-accounts.key"))
	if err != nil {
		t.Fatal(err)
	}
	part := strings.Split(token, ".")
	text, err := base64.RawURLEncoding.DecodeString(part[1])
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&claims); err != nil {
		t.Fatal(err)
	}
	claims["exp"], claims["iat"], claims["nbf"] = end.Unix(), end.Add(-2*time.Hour).Unix(), end.Add(-2*time.Hour).Unix()
	if text, err = json.Marshal(claims); err != nil {
		t.Fatal(err)
	}
	signed := part[0] + "." + base64.RawURLEncoding.EncodeToString(text)
	digest := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, private.(*rsa.PrivateKey), crypto.SHA256, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// holder creates a pod with a token mounted as described in docs/object-cache.md. It stores an object, reads it back through the
// Service's name over TLS, verified by the ConfigMap's certificate, and keeps running.
func holder(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	const visit = `
import ssl, sys, time, urllib.request
trust = ssl.create_default_context(cadata=sys.argv[2])
for method, body in ("PUT", b"from a pod"), ("GET", None):
    token = open("/var/run/object-cache/token").read()
    request = urllib.request.Request(sys.argv[1], body, {"Authorization": "Bearer " + token}, method=method)
    with urllib.request.urlopen(request, timeout=60, context=trust) as answer:
        print(method, answer.status, answer.read().decode(), flush=True)
time.sleep(1e6)`
	authority := &corev1.ConfigMap{}
	await(t, "the certificate of the object caches' authority", func() error {
		return cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: objectsNamespace, Name: "datacache-object-cache-ca"}, authority)
	})
	secure := strings.Replace(objectsService, "http://", "https://", 1) + "/v1/objects/team/" + name
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(1)),
			RestartPolicy:                 corev1.RestartPolicyOnFailure, // a moment without a response does not fail the test
			Containers: []corev1.Container{{
				Name: "visit", Image: trainerImage, Command: []string{"python3", "-c", visit, secure, authority.Data["ca.crt"]},
				VolumeMounts: []corev1.VolumeMount{{Name: "object-cache", MountPath: "/var/run/object-cache"}},
			}},
			Volumes: []corev1.Volume{objectsToken()},
		},
	}
	cluster.Create(t, pod)
	await(t, "pod "+name+" to have stored and read an object", func() error {
		text, err := cluster.logs.CoreV1().Pods(namespace).GetLogs(name, &corev1.PodLogOptions{}).DoRaw(t.Context())
		if want := "GET 200 from a pod"; err == nil && !strings.Contains(string(text), want) {
			err = fmt.Errorf("it wrote %q, want %q", text, want)
		}
		return err
	})
	return pod
}

// objectsToken is the volume object-cache with a token for object caches.
func objectsToken() corev1.Volume {
	token := &corev1.ServiceAccountTokenProjection{Audience: objectsAudience, Path: "token", ExpirationSeconds: new(int64(3600))}
	return corev1.Volume{Name: "object-cache", VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: token}}},
	}}
}

// deleteNow deletes a pod and waits until it is gone.
func deleteNow(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if err := cluster.Client.Delete(context.WithoutCancel(t.Context()), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	cluster.Vanish(t, &corev1.Pod{}, pod.Namespace, pod.Name)
}
