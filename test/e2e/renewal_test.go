// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

const (
	// shortest is how long the tokens of the test live: the API server issues none that lives for less.
	shortest = 10 * time.Minute
	// renewal is how long the next token may take: kubelets renew tokens after 80 % of their life, when they next look at the pod.
	renewal = shortest + 5*time.Minute
	// longest is how many seconds an epoch may take, which takes about 5.
	longest = 60
)

// TestTokensAreRenewed trains with tokens that live for ten minutes, without a NetworkPolicy that protects the cache, until the kubelet has
// renewed them E2E_RENEWALS times. Training must go on: each epoch has each row once, and epochs follow each other. The first token has
// expired by then, and the head must refuse it. A pod of another namespace gets nothing, at the beginning and at the end.
func TestTokensAreRenewed(t *testing.T) {
	renewals, err := strconv.Atoi(os.Getenv("E2E_RENEWALS"))
	if err != nil || renewals < 2 { // the first token expires after the second renewal at the latest
		t.Skip("takes 8 minutes a renewal: make token-renewals, or E2E_RENEWALS=3")
	}
	own, stranger := namespace(t), namespace(t)
	dc := sharedCache(own, reviews.write(t), own)
	dc.Spec.Access.Readers = v1alpha1.ReadersKnown
	cluster.Create(t, dc)
	cluster.Create(t, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: "open"}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, Ingress: []networkingv1.NetworkPolicyIngressRule{{}},
	}})
	shortenTokens(t, own)
	j := referring("renewals", own, dc.Name)
	j.Func, j.Args = "renewals", map[string]any{"count": renewals}
	r := train(t, own, j)

	var lines []outputLine
	for i := range renewals + 1 {
		kubetest.EventuallyLong(t, renewal, fmt.Sprintf("token %d", i+1), func() (err error) {
			time.Sleep(5 * time.Second) //nolint:forbidigo // the whole log is read each time
			if lines, err = r.now(t, 0); err == nil && len(expiries(lines)) <= i {
				err = fmt.Errorf("tokens end %v, and it has written %d lines", expiries(lines), len(lines))
			}
			return err
		})
		if i == 0 {
			cluster.Become(t, dc, own, dc.Name, "with an authority", func() error {
				if dc.Status.CABundle == "" {
					return errors.New("it has none")
				}
				return nil
			})
			strangersLearn(t, stranger, "stranger-0", dc)
		}
	}
	r.ends(t, trainer.TrainJobComplete)
	strangersLearn(t, stranger, "stranger-1", dc)

	lines = parse(t, r.look(t).Logs["node-0"])
	last, refused := lines[0].At, ""
	for _, line := range lines {
		if line.Text != "" {
			refused = line.Text
			continue
		}
		if line.Rows != reviews.Rows {
			t.Errorf("epoch %d has %d rows, want %d", line.Epoch, line.Rows, reviews.Rows)
		}
		if pause := line.At - last; pause > longest {
			t.Errorf("epoch %d took %.1f s, want at most %d", line.Epoch, pause, longest)
		}
		last = line.At
	}
	if !strings.Contains(refused, "it expired 20") {
		t.Errorf("with the first token the head says %q, want that it expired", refused)
	}
	t.Logf("%d epochs in %.0f s, tokens that end %v", lines[len(lines)-2].Epoch+1, last-lines[0].At, expiries(lines))
}

// expiries are the times at which the tokens of a training end.
func expiries(lines []outputLine) (all []time.Time) {
	for _, line := range lines {
		if end := time.Unix(line.Expires, 0); line.Expires > 0 && (len(all) == 0 || !all[len(all)-1].Equal(end)) {
			all = append(all, end)
		}
	}
	return all
}

// shortenTokens has the API server shorten the life of tokens for caches in pods of the namespace.
func shortenTokens(t *testing.T, namespace string) {
	t.Helper()
	const spec = `
failurePolicy: Fail
reinvocationPolicy: Never
matchConstraints:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}
  resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
matchConditions:
- name: volumes
  expression: has(object.spec.volumes)
mutations:
- patchType: JSONPatch
  jsonPatch:
    expression: >-
      [0, 1, 2, 3, 4, 5, 6, 7].filter(i, i < size(object.spec.volumes) && object.spec.volumes[i].name == "datacache-credentials").map(i,
      JSONPatch{op: "replace", path: "/spec/volumes/" + string(i) + "/projected/sources/0/serviceAccountToken/expirationSeconds", value: %d})
`
	policy := &admission.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "short-tokens." + namespace}}
	if err := yaml.UnmarshalStrict(fmt.Appendf(nil, spec, namespace, int(shortest.Seconds())), &policy.Spec); err != nil {
		t.Fatal(err)
	}
	binding := &admission.MutatingAdmissionPolicyBinding{
		ObjectMeta: policy.ObjectMeta, Spec: admission.MutatingAdmissionPolicyBindingSpec{PolicyName: policy.Name},
	}
	ctx := context.WithoutCancel(t.Context())
	for _, object := range []client.Object{policy, binding} {
		cluster.Create(t, object)
		t.Cleanup(func() { _ = cluster.Client.Delete(ctx, object) })
	}
	await(t, "the API server to follow the policy", func() error {
		token := &corev1.ServiceAccountTokenProjection{Audience: "any", Path: "token", ExpirationSeconds: new(int64(3600))}
		probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "probe-"}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "probe", Image: trainerImage}},
			Volumes: []corev1.Volume{{Name: "datacache-credentials", VolumeSource: corev1.VolumeSource{
				Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: token}}},
			}}},
		}}
		if err := cluster.Client.Create(t.Context(), probe, client.DryRunAll); err != nil {
			return err
		}
		if got := *probe.Spec.Volumes[0].Projected.Sources[0].ServiceAccountToken.ExpirationSeconds; got != int64(shortest.Seconds()) {
			return fmt.Errorf("a token lives for %d s", got)
		}
		return nil
	})
}
