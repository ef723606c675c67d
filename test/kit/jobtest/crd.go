// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package jobtest

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

// CRD is the DataCache's schema, reduced to its limits on lengths, numbers and patterns. The API server's own validation, which the
// integration tests use, would make the fuzzed binary too large.
type CRD struct{ spec apiextensions.JSONSchemaProps }

// DataCacheCRD reads the schema, for a test of a package of the second level.
func DataCacheCRD(t testing.TB) *CRD {
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
	return &CRD{spec}
}

// Refusals returns the schema's objections to a spec.
func (c *CRD) Refusals(t testing.TB, spec v1alpha1.DataCacheSpec) []string {
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
		wrong = checkText(at, schema, value)
	case int64:
		if schema.Minimum != nil && float64(value) < *schema.Minimum || schema.Maximum != nil && float64(value) > *schema.Maximum {
			refuse("%d is out of range", value)
		}
	}
	return wrong
}

func checkText(at string, schema apiextensions.JSONSchemaProps, text string) []string {
	var wrong []string
	if length := utf8.RuneCountInString(text); outside(int64(length), schema.MinLength, schema.MaxLength) {
		wrong = append(wrong, fmt.Sprintf("%s: %d characters", at, length))
	}
	patterns := []string{schema.Pattern}
	for _, rule := range schema.XValidations {
		if form := matchesRule.FindStringSubmatch(rule.Rule); form != nil {
			patterns = append(patterns, form[1])
		}
	}
	for _, pattern := range patterns {
		if !regexp.MustCompile(pattern).MatchString(text) {
			wrong = append(wrong, fmt.Sprintf("%s: %q does not match %s", at, text, pattern))
		}
	}
	return wrong
}

func outside(n int64, least, most *int64) bool {
	return least != nil && n < *least || most != nil && n > *most
}
