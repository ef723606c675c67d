// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/test/kit/pagetest"
)

const crdFile = "../../manifests/base/crds/datacache.kubeflow.org_datacaches.yaml"

// maxApply is the largest object that kubectl apply accepts: it keeps a copy in an annotation.
const maxApply = 256 << 10

// TestCRDIsTrimmed checks that the CRD's schema of pod templates is the one that `make generate` trims it to, and that the CRD is
// small enough for kubectl apply.
func TestCRDIsTrimmed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(crdFile)
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensions.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		t.Fatal(err)
	}
	arrow := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["arrow"]
	for _, role := range []string{"head", "dataNode"} {
		template := arrow.Properties[role].Properties["template"].Properties["spec"]
		trimTemplate(&template)
		arrow.Properties[role].Properties["template"].Properties["spec"] = template
	}
	trimmed, err := yaml.Marshal(struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`

		Spec apiextensions.CustomResourceDefinitionSpec `json:"spec"`
	}{crd.TypeMeta, crd.ObjectMeta, crd.Spec})
	if err != nil {
		t.Fatal(err)
	}
	if pagetest.Update() {
		if err := os.WriteFile(crdFile, trimmed, 0o644); err != nil {
			t.Fatal(err)
		}
		text = trimmed
	}
	if string(text) != string(trimmed) {
		t.Errorf("%s is not trimmed: run make generate\n%s", crdFile, cmp.Diff(string(text), string(trimmed)))
	}
	whole, err := json.Marshal(&crd)
	if err != nil {
		t.Fatal(err)
	}
	if len(whole) > maxApply*9/10 {
		t.Errorf("the CRD has %d bytes as JSON, kubectl apply takes %d with all annotations", len(whole), maxApply)
	}
}

// trimTemplate removes two things from the schema of a pod's spec: the descriptions, which are Kubernetes' own and make up most of
// it, and the requirement of containers, since a template that is merged over another one need not have any.
func trimTemplate(spec *apiextensions.JSONSchemaProps) {
	spec.Required = nil
	for name, property := range spec.Properties {
		dropDescriptions(&property)
		spec.Properties[name] = property
	}
}

func dropDescriptions(schema *apiextensions.JSONSchemaProps) {
	schema.Description = ""
	for name, property := range schema.Properties {
		dropDescriptions(&property)
		schema.Properties[name] = property
	}
	if schema.Items != nil {
		dropDescriptions(schema.Items.Schema)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		dropDescriptions(schema.AdditionalProperties.Schema)
	}
}
