// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/test/kit/kubetest"
)

var update = flag.Bool("update", false, "write testdata/rights anew") //nolint:forbidigo // a flag of the test binary

// rightsOf are the installations whose rights testdata/rights has, and their service accounts, as <namespace>/<name>. The namespace team is
// a tenant's.
var rightsOf = map[string]struct {
	kustomization string
	bound         string // a folder of manifests to apply in the namespace team; "": none
	accounts      []string
}{
	"base":         {kustomization: "resources: [<datacache>/manifests/base]\n", accounts: managers},
	"fluid":        {kustomization: withComponents("fluid"), accounts: managers},
	"gangs":        {kustomization: withComponents("gangs"), accounts: managers},
	"kueue":        {kustomization: withComponents("kueue"), accounts: managers},
	"cert-manager": {kustomization: withComponents("cert-manager"), accounts: managers},
	"monitoring":   {kustomization: withComponents("monitoring"), accounts: []string{"monitoring/prometheus-k8s"}},
	"namespaced":   {kustomization: withComponents("namespaced"), bound: "manifests/namespace-rbac", accounts: managers},
	"namespaced-fluid": {
		kustomization: withComponents("namespaced", "fluid"), bound: "manifests/namespace-rbac", accounts: managers,
	},
	"object-cache": {
		kustomization: "resources: [<datacache>/manifests/object-cache]\ncomponents: [<datacache>/manifests/components/envoy]\n",
		accounts:      []string{"datacache-object-cache/datacache-object-cache", "datacache-object-cache/default"},
	},
	"scratch-volumes-webhook": {
		kustomization: "resources: [<datacache>/manifests/scratch-volumes/webhook]\n", accounts: scratchManagers,
	},
	"scratch-volumes-admission-policy": {
		kustomization: "resources: [<datacache>/manifests/scratch-volumes/admission-policy]\n", accounts: scratchManagers,
	},
	"trainer-manager":       {kustomization: trainers("trainer-manager"), accounts: trainerManagers},
	"trainer-manager-fluid": {kustomization: trainers("trainer-manager", "trainer-manager-fluid"), accounts: trainerManagers},
}

var (
	managers        = []string{namespace + "/datacache-manager", "team/train-cache"} // the second one is a cache's
	scratchManagers = []string{"datacache-scratch-volumes/datacache-scratch-volumes"}
	trainerManagers = []string{trainerNamespace + "/kubeflow-trainer-controller-manager"}
)

const trainerNamespace = "platform" // not Trainer's own, in which its manager has rights of the cluster that the tests run on

func withComponents(names ...string) string {
	return "resources: [<datacache>/manifests/base]\ncomponents: [<datacache>/manifests/components/" + strings.Join(names, ", <datacache>/manifests/components/") + "]\n"
}

// trainers returns a kustomization of trainer-manager's components over a Deployment that stands for Trainer's manifests.
func trainers(names ...string) string {
	return "namespace: " + trainerNamespace + "\nresources: [trainer.yaml]\ncomponents: [<datacache>/manifests/components/" + strings.Join(names, ", <datacache>/manifests/components/") + "]\n"
}

const trainersOwn = `apiVersion: apps/v1
kind: Deployment
metadata: {name: kubeflow-trainer-controller-manager, namespace: platform}
spec: {template: {spec: {containers: [{name: manager}]}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: kubeflow-trainer-controller-manager, namespace: platform}
`

// TestRights compares the rights of each service account, as the API server lists them, with those of testdata/rights: what a stolen token
// could do (docs/security.md). Those that every service account has are left out.
func TestRights(t *testing.T) {
	revoke(t)
	for name, tt := range rightsOf {
		t.Run(name, func(t *testing.T) {
			folder := kustomization(t, tt.kustomization)
			write(t, filepath.Join(folder, "trainer.yaml"), trainersOwn)
			t.Cleanup(func() { revoke(t) })
			roles := grant(t, readFile(t, cluster.Render(t, folder)), "")
			if tt.bound != "" {
				roles += grant(t, readFile(t, cluster.Render(t, filepath.Join(repository, tt.bound))), "team")
			}
			if roles == 0 {
				t.Error("the manifests grant nothing")
			}
			golden := filepath.Join("testdata", "rights", name+".txt")
			if *update {
				time.Sleep(2 * time.Second) //nolint:forbidigo // a person writes the file: the API server's authorizer follows by informers
				text, err := listed(t.Context(), tt.accounts)
				if err != nil {
					t.Fatal(err)
				}
				write(t, golden, text)
			}
			want := string(readFile(t, golden))
			kubetest.Eventually(t, "the rights of "+golden+" (go test -run TestRights -update writes it)", func() error {
				got, err := listed(t.Context(), tt.accounts)
				if diff := cmp.Diff(want, got); err == nil && diff != "" {
					return fmt.Errorf("they differ (-golden +API server):\n%s", diff)
				}
				return err
			})
		})
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// grant creates the roles and bindings of a manifest, and nothing else of it, and returns how many there are; in a namespace if one is given.
func grant(t *testing.T, manifest []byte, in string) int {
	t.Helper()
	roles := 0
	for _, fields := range objectsOf(t, manifest) {
		o := &unstructured.Unstructured{Object: fields}
		if o.GroupVersionKind().Group != rbacv1.GroupName {
			continue
		}
		if in != "" {
			o.SetNamespace(in)
		}
		if name := o.GetNamespace(); name != "" {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if err := cluster.Client.Create(t.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
				t.Fatal(err)
			}
		}
		cluster.Create(t, o)
		roles++
	}
	return roles
}

// revoke deletes all roles and bindings of datacache.
func revoke(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, kind := range []string{"ClusterRoleBinding", "RoleBinding", "ClusterRole", "Role"} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind(kind + "List"))
		if err := cluster.Client.List(ctx, list); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			if o := &list.Items[i]; strings.HasPrefix(o.GetName(), "datacache") {
				if err := client.IgnoreNotFound(cluster.Client.Delete(ctx, o)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// listed returns the rights of the accounts: those that they have in every namespace, and what they have besides in their own and in team.
func listed(ctx context.Context, accounts []string) (string, error) {
	const elsewhere = "default"
	everybody, err := rules(ctx, "team/nobody", elsewhere)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, account := range accounts {
		own, _, _ := strings.Cut(account, "/")
		known := everybody
		for _, in := range slices.Compact([]string{elsewhere, own, "team"}) {
			all, err := rules(ctx, account, in)
			if err != nil {
				return "", err
			}
			where := "in " + in
			if in == elsewhere {
				where = "everywhere"
			}
			fmt.Fprintf(&out, "%s, %s:\n", account, where)
			added := slices.DeleteFunc(all, func(rule string) bool { return slices.Contains(known, rule) })
			if len(added) == 0 {
				added = []string{"-"}
			}
			fmt.Fprintf(&out, "  %s\n", strings.Join(added, "\n  "))
			if in == elsewhere {
				known = slices.Concat(known, all)
			}
		}
	}
	return out.String(), nil
}

// rules returns the rights of a service account in a namespace, one for each resource, as kubectl auth can-i --list gets them.
func rules(ctx context.Context, account, in string) ([]string, error) {
	home, name, _ := strings.Cut(account, "/")
	config, err := cluster.ConfigFor("system:serviceaccount:"+home+":"+name, "system:serviceaccounts", "system:serviceaccounts:"+home, "system:authenticated")
	if err != nil {
		return nil, err
	}
	user, err := client.New(config, client.Options{Scheme: cluster.Client.Scheme()})
	if err != nil {
		return nil, err
	}
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: in}}
	if err := user.Create(ctx, review); err != nil {
		return nil, err
	}
	if review.Status.Incomplete {
		return nil, fmt.Errorf("the API server lists only some rights of %s: %s", account, review.Status.EvaluationError)
	}
	verbs := map[string][]string{} // by what they are for
	for _, rule := range review.Status.ResourceRules {
		names := ""
		if len(rule.ResourceNames) > 0 {
			names = " " + strings.Join(rule.ResourceNames, " ")
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				what := strings.TrimSuffix(resource+"."+group, ".") + names
				verbs[what] = append(verbs[what], rule.Verbs...)
			}
		}
	}
	for _, rule := range review.Status.NonResourceRules {
		for _, url := range rule.NonResourceURLs {
			verbs[url] = append(verbs[url], rule.Verbs...)
		}
	}
	var out []string
	for what, may := range verbs {
		slices.Sort(may)
		out = append(out, what+": "+strings.Join(slices.Compact(may), " "))
	}
	slices.Sort(out)
	return out, nil
}
