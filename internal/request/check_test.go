// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

func dataCache(name string, edit func(*v1alpha1.DataCache)) *v1alpha1.DataCache {
	dc := &v1alpha1.DataCache{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}}
	if edit != nil {
		edit(dc)
	}
	return dc
}

func TestMayUse(t *testing.T) {
	same := v1alpha1.NamespaceAccess{From: v1alpha1.AccessSame}
	names := func(names ...string) v1alpha1.NamespaceAccess {
		return v1alpha1.NamespaceAccess{From: v1alpha1.AccessNames, Names: names}
	}
	selector := func(label, value string) v1alpha1.NamespaceAccess {
		return v1alpha1.NamespaceAccess{From: v1alpha1.AccessSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{label: value}}}
	}
	for name, c := range map[string]struct {
		access    v1alpha1.NamespaceAccess
		namespace string
		may, asks bool
	}{
		"its own namespace":          {same, "team-a", true, false},
		"another":                    {same, "team-b", false, false},
		"one that is listed":         {names("team-c", "team-b"), "team-b", true, false},
		"one that is not":            {names("team-c"), "team-b", false, false},
		"its own, with others too":   {names("team-b"), "team-a", true, false},
		"one with the labels":        {selector("tier", "gold"), "team-b", true, true},
		"one without":                {selector("tier", "lead"), "team-b", false, true},
		"every one":                  {v1alpha1.NamespaceAccess{From: v1alpha1.AccessSelector, Selector: &metav1.LabelSelector{}}, "team-b", true, true},
		"its own, with other labels": {selector("tier", "lead"), "team-a", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			dc := dataCache("reviews", func(dc *v1alpha1.DataCache) { dc.Spec.Access.Namespaces = c.access })
			if got := MayUse(c.namespace, map[string]string{"tier": "gold"}, dc); got != c.may {
				t.Errorf("MayUse(%q) = %v, want %v", c.namespace, got, c.may)
			}
			if got := NeedsLabels(c.namespace, dc); got != c.asks {
				t.Errorf("NeedsLabels(%q) = %v, want %v", c.namespace, got, c.asks)
			}
		})
	}
}

// TestCheckDataset checks that datasets are read of caches that take them.
func TestCheckDataset(t *testing.T) {
	r := Reference{Name: "a/b/tok", Key: types.NamespacedName{Namespace: "a", Name: "b"}, Dataset: "tok"}
	takes := &v1alpha1.DataCache{Spec: v1alpha1.DataCacheSpec{Arrow: &v1alpha1.ArrowCache{Puts: &v1alpha1.Puts{Enabled: true}}}}
	takesNone := &v1alpha1.DataCache{Spec: v1alpha1.DataCacheSpec{Arrow: &v1alpha1.ArrowCache{Puts: &v1alpha1.Puts{}}}}
	if errs := CheckDataset(r, takes); len(errs) > 0 {
		t.Error(errs)
	}
	if errs := CheckDataset(Reference{Name: "b"}, takesNone); len(errs) > 0 {
		t.Error(errs)
	}
	for _, dc := range []*v1alpha1.DataCache{takesNone, {Spec: v1alpha1.DataCacheSpec{Fluid: &v1alpha1.FluidCache{}}}} {
		text := fmt.Sprint(CheckDataset(r, dc))
		for _, part := range []string{`"datacache://a/b/tok"`, "takes no datasets from clients", "spec.arrow.puts.enabled", "datacache://a/b"} {
			if !strings.Contains(text, part) {
				t.Errorf("no %q in %q", part, text)
			}
		}
	}
}

func TestCheckReference(t *testing.T) {
	reviews := types.NamespacedName{Namespace: "team-a", Name: "reviews"}
	files := dataCache("reviews", func(dc *v1alpha1.DataCache) { dc.Spec.Fluid = &v1alpha1.FluidCache{} })
	for name, c := range map[string]struct {
		namespace string
		alone     bool
		cache     *v1alpha1.DataCache
		want      []string // parts of the error message; empty if valid
	}{
		"there and ours":      {"team-a", true, dataCache("reviews", nil), nil},
		"there with others":   {"team-a", false, dataCache("reviews", nil), nil},
		"files":               {"team-a", true, files, nil},
		"files with others":   {"team-a", false, files, []string{`"datacache://team-a/reviews"`, "storageUri: ", "can only be named alone", "leave it out"}},
		"not there":           {"team-a", false, nil, []string{"spec.initializer.dataset.storageUri", "reviews", "kubectl get datacaches -n team-a"}},
		"not for a namespace": {"team-b", true, dataCache("reviews", nil), []string{"team-a/reviews", "team-b", "spec.access.namespaces"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := CheckReference(c.namespace, nil, reviews, c.alone, c.cache).ToAggregate()
			if (got == nil) != (c.want == nil) {
				t.Fatalf("refused with %v", got)
			}
			for _, word := range c.want {
				if !strings.Contains(got.Error(), word) {
					t.Errorf("%v does not say %q", got, word)
				}
			}
		})
	}
}

// TestReferencesTellNothing checks that the error for a DataCache of another namespace is the same whether it exists or not.
func TestReferencesTellNothing(t *testing.T) {
	reviews := types.NamespacedName{Namespace: "team-a", Name: "reviews"}
	there := CheckReference("team-b", nil, reviews, true, dataCache("reviews", nil)).ToAggregate()
	not := CheckReference("team-b", nil, reviews, true, nil).ToAggregate()
	if there == nil || not == nil || there.Error() != not.Error() {
		t.Errorf("where there is one: %v\nwhere there is none: %v", there, not)
	}
}

func TestCheckName(t *testing.T) {
	job := trainJob("cache://demo/reviews")
	job.Name = "reviews"
	owned := dataCache("reviews", func(dc *v1alpha1.DataCache) {
		dc.OwnerReferences = []metav1.OwnerReference{{Kind: trainer.TrainJobKind, Name: "reviews", UID: "an earlier one"}}
	})
	for name, c := range map[string]struct {
		asked   Request
		cache   *v1alpha1.DataCache
		refused bool
	}{
		"no cache of its name":        {Request{}, nil, false},
		"its own cache":               {Request{}, owned, false},
		"somebody's cache":            {Request{}, dataCache("reviews", nil), true},
		"the cache that it asks for":  {Request{References: references("reviews", "other")}, dataCache("reviews", nil), false},
		"another's, and asks for one": {Request{References: references("other")}, dataCache("reviews", nil), true},
		"the second that it asks for": {Request{References: references("other", "reviews")}, dataCache("reviews", nil), true},
	} {
		t.Run(name, func(t *testing.T) {
			if errs := CheckName(Read(job, job.Namespace), &c.asked, c.cache); len(errs) > 0 != c.refused {
				t.Errorf("refused with %v, want refused = %v", errs, c.refused)
			}
		})
	}
}

// references are DataCaches of the namespace team-a.
func references(names ...string) []Reference {
	var all []Reference
	for _, name := range names {
		all = append(all, Reference{Name: name, Key: types.NamespacedName{Namespace: "team-a", Name: name}})
	}
	return all
}

// numbered returns n names.
func numbered(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("c%d", i))
	}
	return names
}

// TestUses checks at which Services the caches of a TrainJob are found, each at a name that is valid for the longest TrainJob's.
func TestUses(t *testing.T) {
	longest := strings.Repeat("j", 33) // as package inject allows
	for uri, want := range map[string][]string{
		table:                        nil,
		"datacache://no_name":        nil,
		"datacache://web,web":        nil,
		"datacache://web":            {"-cache-service web team-a/web"},
		"datacache://team-b/web":     {"-cache-service team-b/web team-b/web"},
		"datacache://web,team-a/x,y": {"-cache-service web team-a/web", "-cache-service-4b5e57f6 web team-a/web", "-cache-service-%s team-a/x team-a/x", "-cache-service-%s y team-a/y"},
	} {
		job := trainJob(uri)
		job.Name = longest
		uses := Read(job, job.Namespace).Uses()
		if len(uses) != len(want) {
			t.Fatalf("%s: there are %d uses, want %d: %v", uri, len(uses), len(want), uses)
		}
		for i, use := range uses {
			expected := longest + want[i]
			if strings.Contains(expected, "%s") {
				sum := sha256.Sum256([]byte(use.Name))
				expected = fmt.Sprintf(expected, hex.EncodeToString(sum[:4]))
			}
			if got := use.Service + " " + use.Name + " " + use.Key.String(); got != expected {
				t.Errorf("%s: use %d is %s, want %s", uri, i, got, expected)
			}
			if wrong := validation.IsDNS1035Label(use.Service); wrong != nil {
				t.Errorf("%s: the Service %s: %v", uri, use.Service, wrong)
			}
		}
	}
}
