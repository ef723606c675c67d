// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// TestPolicyOfTheManager checks that the manager's token can't be used for objects that are not of caches, where RBAC allows its verbs.
func TestPolicyOfTheManager(t *testing.T) {
	if err := cluster.Install(t.Context(), rendered(t, repository, overlay), cluster.Address+":1"); err != nil {
		t.Fatal(err)
	}
	ns := cluster.Namespace(t)
	manager := restrictedClient(t, namespace)
	create := func(o client.Object) error { return manager.Create(t.Context(), o, client.DryRunAll) }
	destroy := func(o client.Object) error { return manager.Delete(t.Context(), o, client.DryRunAll) }
	change := func(o client.Object, patch string) error {
		return manager.Patch(t.Context(), o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
	}

	ours := map[string]string{wellknown.LabelManagedBy: wellknown.ManagedBy}
	meta := metav1.ObjectMeta{Namespace: ns, Name: "theirs"}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "db"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "db", Image: "example.com/db"}}},
	}
	pod := &corev1.Pod{ObjectMeta: meta, Spec: template.Spec}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	config, account := &corev1.ConfigMap{ObjectMeta: meta}, &corev1.ServiceAccount{ObjectMeta: meta}
	set := &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(0)), Template: template, Selector: &metav1.LabelSelector{MatchLabels: template.Labels},
	}}
	nodes := set.DeepCopy()
	nodes.Name, nodes.Spec.Template.Labels[wellknown.LabelManagedBy] = "train-cache-0", wellknown.ManagedBy
	for _, o := range []client.Object{pod, service, config, account, set, nodes} {
		cluster.Create(t, o)
	}
	secret := func(name string, kind corev1.SecretType) *corev1.Secret {
		return &corev1.Secret{Type: kind, ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: ours, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "DataCache", Name: "train", UID: "01234567-89ab-cdef-0123-456789abcdef",
		}}, Annotations: map[string]string{corev1.ServiceAccountNameKey: "theirs"}}}
	}
	cache := func(account string) *lws.LeaderWorkerSet {
		spec := template.DeepCopy()
		spec.Spec.ServiceAccountName = account
		return &lws.LeaderWorkerSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "train-cache", Labels: ours},
			Spec: lws.LeaderWorkerSetSpec{
				StartupPolicy:        lws.LeaderCreatedStartupPolicy,
				LeaderWorkerTemplate: lws.LeaderWorkerTemplate{LeaderTemplate: spec, WorkerTemplate: *template.DeepCopy(), Size: new(int32(2)), RestartPolicy: lws.NoneRestartPolicy},
			},
		}
	}
	const key = "train-cache-01234567"
	kubetest.Eventually(t, "the policy to be in force", func() error {
		if destroy(pod) == nil {
			return errors.New("any pod may be deleted")
		}
		return nil
	})
	const only, names, owner, runs = "only objects of caches", "only Secrets <DataCache>-cache-", "only the owner of a StatefulSet", "only with the service account"
	for what, tt := range map[string]struct {
		err error
		why string // "" if it is allowed
	}{
		"delete a pod":                           {destroy(pod), only},
		"redirect a Service":                     {change(service, `{"spec":{"selector":{"app":"mine"}}}`), only},
		"take a Service":                         {change(service, `{"metadata":{"labels":{"app.kubernetes.io/managed-by":"datacache"}}}`), only},
		"delete a Service":                       {destroy(service), only},
		"change a ConfigMap":                     {change(config, `{"data":{"a":"b"}}`), only},
		"change an account":                      {change(account, `{"metadata":{"annotations":{"eks.amazonaws.com/role-arn":"admin"}}}`), only},
		"change a StatefulSet":                   {change(set, `{"spec":{"replicas":0},"metadata":{"labels":{"a":"b"}}}`), only},
		"delete a StatefulSet":                   {destroy(set), only},
		"change data nodes":                      {change(nodes, `{"spec":{"replicas":7}}`), owner},
		"delete data nodes":                      {destroy(nodes), ""},
		"change a runtime":                       {create(&trainer.TrainingRuntime{ObjectMeta: meta}), only},
		"make a Secret of another name":          {create(secret("theirs", corev1.SecretTypeOpaque)), names},
		"make a token of another account":        {create(secret(key, corev1.SecretTypeServiceAccountToken)), names},
		"make a cache's Secret":                  {create(secret(key, corev1.SecretTypeOpaque)), ""},
		"start pods as another account":          {create(cache("theirs")), runs},
		"start a cache's pods":                   {create(cache("train-cache")), ""},
		"make a Service that is not of caches":   {create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "new"}, Spec: service.Spec}), only},
		"make a ConfigMap that is not of caches": {create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "new"}}), only},
	} {
		switch {
		case tt.why == "" && tt.err != nil:
			t.Errorf("%s: %v, want it allowed", what, tt.err)
		case tt.why != "" && (tt.err == nil || !strings.Contains(tt.err.Error(), tt.why)):
			t.Errorf("%s: %v, want it denied with %q", what, tt.err, tt.why)
		}
	}
	if err := manager.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Secret{}); !apierrors.IsForbidden(err) {
		t.Errorf("reading a Secret: %v, want it forbidden", err)
	}
}
