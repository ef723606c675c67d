// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"os"
	"regexp"
	"testing"
	"unicode/utf8"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// crd is the DataCache's schema, reduced to its limits on lengths, numbers and patterns. The API server's own validation, which the
// integration tests use, would make the fuzzed binary too large.
type crd struct{ spec apiextensions.JSONSchemaProps }

func dataCacheCRD(t testing.TB) *crd {
	t.Helper()
	text, err := os.ReadFile("../../manifests/base/crds/datacache.kubeflow.org_datacaches.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var definition apiextensions.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &definition); err != nil {
		t.Fatal(err)
	}
	spec, ok := definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	if !ok {
		t.Fatal("the CRD has no spec")
	}
	return &crd{spec}
}

// refusals returns the schema's objections to a spec.
func (c *crd) refusals(t testing.TB, spec v1alpha1.DataCacheSpec) []string {
	t.Helper()
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		t.Fatal(err)
	}
	return check("spec", c.spec, tree)
}

// matchesRule matches the only form of CEL rule that is used instead of a pattern.
var matchesRule = regexp.MustCompile(`^self\.matches\('(.*)'\)$`)

func check(at string, schema apiextensions.JSONSchemaProps, value any) []string {
	var wrong []string
	refuse := func(format string, args ...any) { wrong = append(wrong, at+": "+fmt.Sprintf(format, args...)) }
	switch value := value.(type) {
	case map[string]any:
		for _, name := range schema.Required {
			if _, set := value[name]; !set {
				refuse("%s is missing", name)
			}
		}
		for name, item := range value {
			property, known := schema.Properties[name]
			if !known && schema.AdditionalProperties == nil {
				refuse("%s is unknown", name)
			}
			wrong = append(wrong, check(at+"."+name, property, item)...)
		}
	case []any:
		if outside(int64(len(value)), schema.MinItems, schema.MaxItems) {
			refuse("%d items", len(value))
		}
		for i, item := range value {
			wrong = append(wrong, check(fmt.Sprintf("%s[%d]", at, i), *schema.Items.Schema, item)...)
		}
	case string:
		if outside(int64(utf8.RuneCountInString(value)), schema.MinLength, schema.MaxLength) {
			refuse("%d characters", utf8.RuneCountInString(value))
		}
		patterns := []string{schema.Pattern}
		for _, rule := range schema.XValidations {
			if form := matchesRule.FindStringSubmatch(rule.Rule); form != nil {
				patterns = append(patterns, form[1])
			}
		}
		for _, pattern := range patterns {
			if !regexp.MustCompile(pattern).MatchString(value) {
				refuse("%q does not match %s", value, pattern)
			}
		}
	case int64:
		if schema.Minimum != nil && float64(value) < *schema.Minimum || schema.Maximum != nil && float64(value) > *schema.Maximum {
			refuse("%d is out of range", value)
		}
	}
	return wrong
}

func outside(n int64, least, most *int64) bool {
	return least != nil && n < *least || most != nil && n > *most
}

// TestSchemaIsNotBlind checks that refusals detects specs that the API rejects.
func TestSchemaIsNotBlind(t *testing.T) {
	good := func() *v1alpha1.ArrowCache { return plain(nil).Cache.Arrow }
	api := dataCacheCRD(t)
	if refused := api.refusals(t, v1alpha1.DataCacheSpec{Arrow: good()}); len(refused) > 0 {
		t.Fatal(refused)
	}
	for name, spoil := range map[string]func(*v1alpha1.ArrowCache){
		"table":       func(a *v1alpha1.ArrowCache) { a.Table = "a/b" },
		"metadata":    func(a *v1alpha1.ArrowCache) { a.MetadataLocation = new("x") },
		"data nodes":  func(a *v1alpha1.ArrowCache) { a.DataNodes = 1001 },
		"columns":     func(a *v1alpha1.ArrowCache) { a.Columns = []string{""} },
		"filter":      func(a *v1alpha1.ArrowCache) { a.Filter = new("") },
		"environment": func(a *v1alpha1.ArrowCache) { a.Env = []v1alpha1.StoreVariable{{Name: "PATH"}} },
	} {
		t.Run(name, func(t *testing.T) {
			arrow := good()
			spoil(arrow)
			if len(api.refusals(t, v1alpha1.DataCacheSpec{Arrow: arrow})) == 0 {
				t.Error("not refused")
			}
		})
	}
}
