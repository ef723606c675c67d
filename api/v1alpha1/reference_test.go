// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/test/kit/pagetest"
)

// kubernetesTypes are fields whose type is Kubernetes' own: the page names it and leaves out its fields.
var kubernetesTypes = map[string]string{
	"metadata": "ObjectMeta", "resources": "ResourceRequirements", "selector": "LabelSelector", "conditions": "[]Condition", "template.spec": "PodSpec",
}

// TestCRDReference checks docs/reference/datacache.md: each field of the CRD with type, limits, default and description.
func TestCRDReference(t *testing.T) {
	text, err := os.ReadFile(crdFile)
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensions.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		t.Fatal(err)
	}
	version := crd.Spec.Versions[0]
	root := version.Schema.OpenAPIV3Schema
	page := &reference{}
	page.printf("<!-- Made by make generate. -->\n# %s\n\n", crd.Spec.Names.Kind)
	page.printf("`apiVersion: %s/%s`, `kind: %s`, %s.\n", crd.Spec.Group, version.Name, crd.Spec.Names.Kind, strings.ToLower(string(crd.Spec.Scope)))
	page.printf("[Use a cache from a TrainJob](../use.md#a-cache-that-outlives-its-jobs) has an example, and [files](../fluid.md) one of files.\n")
	page.printf("\n%s\n\n", pagetest.Prose(root.Description))
	page.rules(root)
	page.object("spec", root.Properties["spec"])
	page.object("status", root.Properties["status"])
	pagetest.Check(t, "../../docs/reference/datacache.md", page.String())
}

// reference is a page about an API.
type reference struct{ strings.Builder }

func (r *reference) printf(format string, args ...any) { fmt.Fprintf(r, format, args...) }

// object writes the section of an object at a path, and those of the objects in it.
func (r *reference) object(path string, schema apiextensions.JSONSchemaProps) {
	r.printf("## `%s`\n\n", path)
	if schema.Description != "" {
		r.printf("%s\n\n", pagetest.Prose(schema.Description))
	}
	r.rules(&schema)
	r.printf("| field | type | default | meaning |\n|---|---|---|---|\n")
	names := slices.Sorted(maps.Keys(schema.Properties))
	for _, name := range names {
		field := schema.Properties[name]
		meaning := []string{pagetest.Prose(field.Description)}
		if inner, _ := objectIn(path+"."+name, field); inner == nil {
			for _, rule := range field.XValidations {
				meaning = append(meaning, "("+pagetest.Prose(rule.Message)+")")
			}
		}
		fallback := ""
		switch {
		case slices.Contains(schema.Required, name):
			fallback = "required"
		case field.Default != nil:
			fallback = pagetest.Code(strings.Trim(string(field.Default.Raw), `"`))
		}
		r.printf("| %s | %s | %s | %s |\n", pagetest.Code(name), typeOf(path+"."+name, field), fallback, strings.TrimSpace(strings.Join(meaning, " ")))
	}
	r.printf("\n")
	for _, name := range names {
		if inner, suffix := objectIn(path+"."+name, schema.Properties[name]); inner != nil {
			r.object(path+"."+name+suffix, *inner)
		}
	}
}

// rules lists what the API server checks of an object as a whole, and what it does not let change.
func (r *reference) rules(schema *apiextensions.JSONSchemaProps) {
	for i, rule := range schema.XValidations {
		if i == 0 {
			r.printf("The API server rejects what breaks one of these rules:\n\n")
		}
		r.printf("- %s\n", pagetest.Prose(rule.Message))
	}
	if len(schema.XValidations) > 0 {
		r.printf("\n")
	}
}

// objectIn returns the object that has a section of its own: the field's, or that of its items, with the suffix of its path.
func objectIn(path string, field apiextensions.JSONSchemaProps) (inner *apiextensions.JSONSchemaProps, suffix string) {
	switch {
	case kubernetesType(path) != "":
		return nil, ""
	case len(field.Properties) > 0:
		return &field, ""
	case field.Items != nil && len(field.Items.Schema.Properties) > 0:
		return field.Items.Schema, "[]"
	}
	return nil, ""
}

func kubernetesType(path string) string {
	for end, name := range kubernetesTypes {
		if strings.HasSuffix(path, "."+end) && (end != "metadata" || !strings.Contains(path, "template")) {
			return name
		}
	}
	return ""
}

// typeOf returns a field's type and limits as Markdown.
func typeOf(path string, field apiextensions.JSONSchemaProps) string {
	name := scalar(field)
	inner, suffix := objectIn(path, field)
	switch {
	case kubernetesType(path) != "":
		return "Kubernetes' " + pagetest.Code(kubernetesType(path))
	case inner != nil && suffix == "":
		return fmt.Sprintf("[object](#%s)", anchor(path))
	case inner != nil:
		return fmt.Sprintf("[list of objects](#%s)%s", anchor(path+suffix), limits(field))
	case field.Items != nil:
		name = "list of " + scalar(*field.Items.Schema)
		if each := limits(*field.Items.Schema); each != "" {
			return name + limits(field) + "; each" + each[1:]
		}
	case field.AdditionalProperties != nil:
		name = "map to " + scalar(*field.AdditionalProperties.Schema)
	}
	return name + limits(field)
}

// anchor is the anchor of the section of a path.
func anchor(path string) string {
	return strings.ToLower(strings.NewReplacer(".", "", "[", "", "]", "").Replace(path))
}

func scalar(schema apiextensions.JSONSchemaProps) string {
	switch {
	case schema.XIntOrString:
		return "quantity"
	case schema.Format == "date-time":
		return "time"
	}
	return schema.Type
}

// limits returns the bounds of a value: ", 1 to 1000", or "".
func limits(schema apiextensions.JSONSchemaProps) string {
	var all []string
	between := func(low, high *int64, of string) {
		switch {
		case low != nil && high != nil:
			all = append(all, fmt.Sprintf("%d to %d%s", *low, *high, of))
		case high != nil:
			all = append(all, fmt.Sprintf("at most %d%s", *high, of))
		case low != nil:
			all = append(all, fmt.Sprintf("at least %d%s", *low, of))
		}
	}
	between(integer(schema.Minimum), integer(schema.Maximum), "")
	between(schema.MinLength, schema.MaxLength, " characters")
	between(schema.MinItems, schema.MaxItems, " items")
	between(schema.MinProperties, schema.MaxProperties, " entries")
	if len(schema.Enum) > 0 {
		values := make([]string, len(schema.Enum))
		for i, value := range schema.Enum {
			values[i] = pagetest.Code(strings.Trim(string(value.Raw), `"`))
		}
		all = append(all, "one of "+strings.Join(values, ", "))
	}
	if schema.Pattern != "" && !schema.XIntOrString {
		all = append(all, pagetest.Code(schema.Pattern))
	}
	if len(all) == 0 {
		return ""
	}
	return ", " + strings.Join(all, ", ")
}

func integer(bound *float64) *int64 {
	if bound == nil {
		return nil
	}
	whole := int64(*bound)
	return &whole
}
