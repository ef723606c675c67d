// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fluid

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	fluid "github.com/fluid-cloudnative/fluid/api/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/test/kit/goldentest"
	"github.com/kubeflow/datacache/test/kit/stocktest"
)

// fluidCRDs are the CRDs of the release of Fluid in go.mod, by kind.
func fluidCRDs(t *testing.T) map[string]*apiextensionsv1.JSONSchemaProps {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(stocktest.ModuleDir(t, "github.com/fluid-cloudnative/fluid"), "charts", "fluid", "fluid", "crds", "*.yaml"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no CRD in Fluid's module: %v", err)
	}
	schemas := map[string]*apiextensionsv1.JSONSchemaProps{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, crd); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		schemas[crd.Spec.Names.Kind] = crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	}
	return schemas
}

// tree returns an object as the API server gets it, without the status, which it ignores.
func tree(t *testing.T, object client.Object) map[string]any {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{batchv1.AddToScheme, fluid.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	gvk, err := apiutil.GVKForObject(object, scheme)
	if err != nil {
		t.Fatal(err)
	}
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		t.Fatal(err)
	}
	out["apiVersion"], out["kind"] = gvk.ToAPIVersionAndKind()
	delete(out, "status")
	return out
}

// conform checks an object against the CRD of its kind: no field may be unknown to it, or have a value that it rejects.
func conform(t *testing.T, schemas map[string]*apiextensionsv1.JSONSchemaProps, object map[string]any) {
	t.Helper()
	kind, _ := object["kind"].(string)
	schema := schemas[kind]
	if schema == nil {
		t.Fatalf("Fluid has no kind %s", kind)
	}
	if err := against(t, schema, object); err != nil {
		t.Errorf("%s: %v", kind, err)
	}
	fields := schema.Properties["spec"]
	unknown(t, kind+".spec", &fields, object["spec"])
}

// against validates an object by the schema, as the API server would.
func against(t *testing.T, schema *apiextensionsv1.JSONSchemaProps, object map[string]any) error {
	t.Helper()
	text, err := json.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	openapi := &spec.Schema{}
	if err := json.Unmarshal(text, openapi); err != nil {
		t.Fatal(err)
	}
	return validate.AgainstSchema(openapi, object, strfmt.Default)
}

func unknown(t *testing.T, at string, schema *apiextensionsv1.JSONSchemaProps, value any) {
	t.Helper()
	switch value := value.(type) {
	case map[string]any:
		for name, item := range value {
			property, known := schema.Properties[name]
			switch {
			case known:
				unknown(t, at+"."+name, &property, item)
			case schema.AdditionalProperties == nil:
				t.Errorf("%s.%s is no field of the CRD", at, name)
			}
		}
	case []any:
		for _, item := range value {
			unknown(t, at+"[]", schema.Items.Schema, item)
		}
	}
}

// TestFluidObjects compares the objects for each kind of runtime with golden files, and holds them against Fluid's CRDs.
func TestFluidObjects(t *testing.T) {
	schemas := fluidCRDs(t)
	for _, kind := range fluidKindsKnown {
		t.Run(string(kind), func(t *testing.T) {
			dc := files()
			files := dc.Spec.Fluid
			files.Runtime.Kind, files.WarmUp = kind, kind != v1alpha1.FluidThin
			files.Runtime.Properties = map[string]v1alpha1.FluidOption{"some.property": "value"}
			files.Runtime.Tiers = append(files.Runtime.Tiers, v1alpha1.FluidTier{Medium: v1alpha1.FluidSSD, Path: "/mnt/a,/mnt/b", Quota: resource.MustParse("100Gi")})
			files.EncryptOptions = []v1alpha1.FluidEncryptOption{{Name: "aws.secretKey", SecretName: "s3", Key: "AWS_SECRET_ACCESS_KEY"}}
			files.Mounts = append(files.Mounts, v1alpha1.FluidMount{
				Name: "labels", MountPoint: "https://example.com/labels", ReadOnly: new(false), Options: map[string]v1alpha1.FluidOption{"a": "b"},
			})
			if kind == v1alpha1.FluidThin {
				files.Runtime.Profile = "nfs"
			}
			set := dataset(dc)
			objects := []client.Object{set}
			named := &fluid.Dataset{ObjectMeta: set.ObjectMeta, Spec: set.Spec}
			named.UID = "5e7d"
			gate := inject.Gate{Image: "example.com/cacheserver:1", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}}}
			objects = append(objects, runtimeOfCache(dc, named), fluidProbe(dc, named, gate, trainingPods()))
			if files.WarmUp {
				objects = append(objects, dataLoad(dc, named))
			}
			var text strings.Builder
			for _, object := range objects {
				out := tree(t, object)
				if _, isProbe := object.(*batchv1.Job); !isProbe {
					conform(t, schemas, out)
				}
				part, err := yaml.Marshal(out)
				if err != nil {
					t.Fatal(err)
				}
				text.WriteString("---\n" + string(part))
			}
			goldentest.Compare(t, filepath.Join("testdata", strings.ToLower(string(kind))+".yaml"), []byte(text.String()))
		})
	}
}

// trainingPods are pods that ask for nodes with GPUs.
func trainingPods() *corev1.PodSpec {
	return &corev1.PodSpec{
		NodeSelector: map[string]string{"gpu": "h100"},
		Tolerations:  []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
		Affinity: &corev1.Affinity{
			NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}},
			}}},
			PodAntiAffinity: &corev1.PodAntiAffinity{}, // not for the probe: it is about the job's other pods
		},
	}
}

// TestOperationNames checks that the names that Fluid derives from those of operations fit: 53 bytes for a Helm release.
func TestOperationNames(t *testing.T) {
	dc := files()
	if got := probeName(dc); got != "pictures-probe" {
		t.Errorf("the probe is called %q", got)
	}
	dc.Name = strings.Repeat("a", 53)
	other := files()
	other.Name = strings.Repeat("a", 52) + "b"
	if release := warmUpName(dc) + "-loader"; len(release) > 53 {
		t.Errorf("the release %q has %d bytes", release, len(release))
	}
	if probeName(dc) == probeName(other) {
		t.Errorf("two caches have the same probe %s", probeName(dc))
	}
}

// TestConformIsNotBlind checks that the CRDs reject what is wrong.
func TestConformIsNotBlind(t *testing.T) {
	set := dataset(files())
	set.Spec.Mounts[0].MountPoint = "s3:"
	out := tree(t, set)
	if err := against(t, fluidCRDs(t)["Dataset"], out); err == nil {
		t.Error("a mount point of three characters is accepted")
	}
}

func TestClaimSize(t *testing.T) {
	dc := files()
	if got := claimSize(&dc.Spec.Fluid.Runtime); got != "8Gi" {
		t.Errorf("two workers of 4Gi make a claim of %s", got)
	}
	dc.Spec.Fluid.Runtime.Tiers = nil
	if got := claimSize(&dc.Spec.Fluid.Runtime); got != "1Gi" {
		t.Errorf("a cache without quota makes a claim of %s", got)
	}
}
