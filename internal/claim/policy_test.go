// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// policy evaluates the admission policies of the manifests as the API server does: a MutatingAdmissionPolicy, and a
// ValidatingAdmissionPolicy that checks the result.
type policy struct {
	mutating, validating *plugincel.CompositedCompiler
	patcher              patch.Patcher
	refusals             plugincel.ConditionEvaluator // one per message
	messages             plugincel.ConditionEvaluator
}

// variable is a named CEL expression of any type.
type variable struct{ admissionv1.Variable }

// GetName returns the name by which later expressions refer to it.
func (v variable) GetName() string { return v.Name }

// GetExpression returns its CEL expression.
func (v variable) GetExpression() string { return v.Expression }

// ReturnTypes allows all types.
func (v variable) ReturnTypes() []*cel.Type { return []*cel.Type{cel.AnyType, cel.DynType} }

// message is an expression that yields a string.
type message struct{ variable }

// ReturnTypes allows only strings.
func (message) ReturnTypes() []*cel.Type { return []*cel.Type{cel.StringType} }

func compiler(t testing.TB, variables []admissionv1.Variable) *plugincel.CompositedCompiler {
	t.Helper()
	c, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range variables {
		if result := c.CompileAndStoreVariable(variable{v}, plugincel.OptionalVariableDeclarations{}, environment.StoredExpressions); result.Error != nil {
			t.Fatalf("variable %s: %v", v.Name, result.Error)
		}
	}
	return c
}

// readManifest decodes the first object of a manifest.
func readManifest(t testing.TB, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "manifests", "scratch-volumes", "admission-policy", file))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := bytes.Cut(text, []byte("\n---\n"))
	if err := yaml.UnmarshalStrict(first, into); err != nil {
		t.Fatal(err)
	}
}

func readPolicy(t testing.TB) *policy {
	t.Helper()
	var mutating admissionv1.MutatingAdmissionPolicy
	readManifest(t, "mutate.yaml", &mutating)
	var validating admissionv1.ValidatingAdmissionPolicy
	readManifest(t, "refuse.yaml", &validating)
	p := &policy{mutating: compiler(t, mutating.Spec.Variables), validating: compiler(t, validating.Spec.Variables)}
	mutation := &patch.JSONPatchCondition{Expression: mutating.Spec.Mutations[0].JSONPatch.Expression}
	evaluator := p.mutating.CompileMutatingEvaluator(mutation, plugincel.OptionalVariableDeclarations{HasPatchTypes: true}, environment.StoredExpressions)
	if errs := evaluator.CompilationErrors(); len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	p.patcher = patch.NewJSONPatcher(evaluator)
	var refusals, messages []plugincel.ExpressionAccessor
	for _, v := range validating.Spec.Validations {
		if v.MessageExpression == "" {
			v.MessageExpression = strconv.Quote(v.Message)
		}
		refusals = append(refusals, variable{admissionv1.Variable{Expression: v.Expression}})
		messages = append(messages, message{variable{admissionv1.Variable{Expression: v.MessageExpression}}})
	}
	p.refusals = p.validating.CompileCondition(refusals, plugincel.OptionalVariableDeclarations{}, environment.StoredExpressions)
	p.messages = p.validating.CompileCondition(messages, plugincel.OptionalVariableDeclarations{}, environment.StoredExpressions)
	for _, e := range []plugincel.ConditionEvaluator{p.refusals, p.messages} {
		if errs := e.CompilationErrors(); len(errs) > 0 {
			t.Fatal(errors.Join(errs...))
		}
	}
	return p
}

// request returns the admission request for creating a pod.
func request(pod *corev1.Pod) *admission.VersionedAttributes {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	pod = pod.DeepCopy()
	pod.SetGroupVersionKind(kind)
	attributes := admission.NewAttributesRecord(pod, nil, kind, pod.Namespace, pod.Name, pods, "", admission.Create, &metav1.CreateOptions{}, false, nil)
	return &admission.VersionedAttributes{Attributes: attributes, VersionedObject: pod, VersionedKind: kind}
}

var pods = corev1.SchemeGroupVersion.WithResource("pods")

// refuse returns the messages with which the validating policy rejects a pod, which has a name at that stage; none if it is accepted.
func (p *policy) refuse(t testing.TB, pod *corev1.Pod) (why []string) {
	t.Helper()
	if !hasScratchVolume(pod) {
		return nil
	}
	if pod.Name == "" {
		pod = pod.DeepCopy()
		pod.Name = pod.GenerateName + "x7k2p"
	}
	evaluate := func(e plugincel.ConditionEvaluator) []plugincel.EvaluationResult {
		attributes := request(pod)
		asked := plugincel.CreateAdmissionRequest(attributes.Attributes, metav1.GroupVersionResource(pods), metav1.GroupVersionKind(attributes.VersionedKind))
		results, _, err := e.ForInput(p.validating.CreateContext(t.Context()), attributes, asked, plugincel.OptionalVariableBindings{}, nil, celconfig.RuntimeCELCostBudget)
		if err != nil {
			t.Fatal(err)
		}
		return results
	}
	messages := evaluate(p.messages)
	for i, result := range evaluate(p.refusals) {
		if result.Error != nil {
			t.Fatal(result.Error)
		}
		if result.EvalResult == types.True {
			continue
		}
		if messages[i].Error != nil {
			t.Fatal(messages[i].Error)
		}
		text, _ := messages[i].EvalResult.Value().(string)
		why = append(why, text)
	}
	return why
}

// mutate returns a pod with a scratch volume after the mutating policy.
func (p *policy) mutate(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	mutated, err := p.patcher.Patch(p.mutating.CreateContext(t.Context()), patch.Request{
		MatchedResource: pods, VersionedAttributes: request(pod), ObjectInterfaces: admission.NewObjectInterfacesFromScheme(scheme.Scheme),
	}, celconfig.RuntimeCELCostBudget)
	if err != nil {
		t.Fatalf("%v\n%+v", err, pod)
	}
	result, ok := mutated.(*corev1.Pod)
	if !ok {
		t.Fatalf("the policy makes a %T of a pod", mutated)
	}
	result.TypeMeta = metav1.TypeMeta{}
	return result
}

// FuzzPolicy checks that Mutate and the policies either change a pod in the same way, with the same claims, or both reject it.
func FuzzPolicy(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed)
	}
	p := readPolicy(f)
	f.Fuzz(func(t *testing.T, seed uint64) {
		pod := randomPod(rand.New(rand.NewPCG(seed, 0)))
		ours, theirs := pod.DeepCopy(), p.mutate(t, pod)
		errs := Mutate(ours)
		why := p.refuse(t, theirs)
		if hasScratchVolume(theirs) != (len(errs) > 0) || (len(why) > 0) != (len(errs) > 0) {
			t.Fatalf("seed %d: Mutate refuses for %v, the policy for %q", seed, errs, why)
		}
		if len(errs) > 0 {
			if !equality.Semantic.DeepEqual(pod, theirs) {
				t.Fatalf("seed %d: Mutate refuses (%v), the policy changes the pod:\n%s", seed, errs, cmp.Diff(pod, theirs))
			}
			return
		}
		want, err := Wanted(ours)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		got, err := Wanted(theirs)
		if err != nil {
			t.Fatalf("seed %d: by the policy: %v", seed, err)
		}
		if !equality.Semantic.DeepEqual(want, got) {
			t.Fatalf("seed %d: claims (-Mutate +policy):\n%s", seed, cmp.Diff(want, got))
		}
		for _, pod := range []*corev1.Pod{ours, theirs} { // the same JSON with fields in another order
			for _, v := range pod.Spec.Volumes {
				delete(pod.Annotations, TemplateAnnotation(v.Name))
			}
		}
		if !equality.Semantic.DeepEqual(ours, theirs) {
			t.Fatalf("seed %d: pods (-Mutate +policy):\n%s", seed, cmp.Diff(ours, theirs))
		}
	})
}

func hasScratchVolume(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { _, marked := Marked(&v); return marked })
}

// randomPod returns a pod with at least one scratch volume. Half of these pods are valid.
func randomPod(r *rand.Rand) *corev1.Pod {
	pod := scratchPod()
	pod.Spec.Volumes = nil
	some := func() bool { return r.IntN(2) == 0 }
	rarely := func() bool { return r.IntN(8) == 0 }
	if some() {
		ofIndexedJob(pod)
	}
	if some() {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "example.com/a", oddText(r))
		metav1.SetMetaDataLabel(&pod.ObjectMeta, "team", "a")
	}
	if some() {
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}}
	}
	if rarely() {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: Gate})
	}
	if rarely() {
		pod.OwnerReferences = nil
	}
	if rarely() { // owned by it, but not controlled
		pod.OwnerReferences = append([]metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "x", UID: "x"}}, pod.OwnerReferences...)
	}
	if rarely() {
		delete(pod.Annotations, batchv1.JobCompletionIndexAnnotation)
	}
	if rarely() {
		pod.Name, pod.GenerateName = "", "web-"
	}
	if rarely() {
		pod.Spec.Hostname = ""
	}
	if rarely() {
		pod.Name = strings.Repeat("n", 240+r.IntN(12))
	}
	if r.IntN(64) == 0 {
		pod.Spec.NodeName = "n1"
	}
	for i := range 1 + r.IntN(4) {
		v := scratchVolume(fmt.Sprintf("v%d", i), PerReplica)
		v.Ephemeral.VolumeClaimTemplate = randomTemplate(r)
		switch {
		case i > 0 && some():
			delete(v.Ephemeral.VolumeClaimTemplate.Annotations, Mark)
		case rarely():
			v.Ephemeral.VolumeClaimTemplate.Annotations[Mark] = "shared"
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("e%d", i)}, v)
	}
	return pod
}

func randomTemplate(r *rand.Rand) *corev1.PersistentVolumeClaimTemplate {
	some := func() bool { return r.IntN(2) == 0 }
	template := &corev1.PersistentVolumeClaimTemplate{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{Mark: PerReplica}}}
	spec := &template.Spec
	if some() {
		template.Labels = map[string]string{"team": "a", "example.com/x": ""}
		template.Annotations["example.com/note"] = oddText(r)
	}
	if some() {
		spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteOncePod}[:1+r.IntN(2)]
		spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Gi")}
	}
	if some() {
		spec.Resources.Limits = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1.5Ti"), "example.com/x": resource.MustParse("7")}
	}
	if some() {
		spec.StorageClassName = new([]string{"", "fast"}[r.IntN(2)])
		spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	}
	if some() {
		spec.VolumeName, spec.VolumeAttributesClassName = "pv-1", new("gold")
	}
	if some() {
		spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "golden"}
		if some() {
			spec.DataSource.APIGroup = new("snapshot.storage.k8s.io")
		}
	}
	if some() {
		spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: new("example.com"), Kind: "Image", Name: "golden"}
		if some() {
			spec.DataSourceRef.Namespace = new("images")
		}
	}
	if some() {
		spec.Selector = &metav1.LabelSelector{}
	}
	if some() {
		spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "nvme"}, MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "rack", Operator: metav1.LabelSelectorOpIn, Values: []string{"1", "2"}}, {Key: "old", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	}
	return template
}

// oddText returns a random text for an annotation, with characters that need escaping.
func oddText(r *rand.Rand) string {
	const runes = "a\"\\\n\r\t\b\f/<>&'{}[],:%\u0085\u2028é世🙂\u007f"
	text := make([]rune, r.IntN(12))
	for i := range text {
		all := []rune(runes)
		text[i] = all[r.IntN(len(all))]
	}
	return string(text)
}

// TestPolicyRefuses checks that the policy rejects what it can't encode as JSON, and that the message says when the mutating policy
// was not applied.
func TestPolicyRefuses(t *testing.T) {
	p := readPolicy(t)
	control := scratchPod(func(pod *corev1.Pod) {
		pod.Spec.Volumes[1].Ephemeral.VolumeClaimTemplate.Annotations["example.com/note"] = "\x1b"
	})
	if got := p.mutate(t, control); !equality.Semantic.DeepEqual(control, got) {
		t.Errorf("the pod was changed:\n%s", cmp.Diff(control, got))
	}
	for want, pod := range map[string]*corev1.Pod{"has a control character": control, "did not change this pod": scratchPod()} {
		if why := p.refuse(t, pod); len(why) != 1 || !strings.Contains(why[0], want) {
			t.Errorf("refused for %q, want %q", why, want)
		}
	}
}

// TestRandomTemplatesHaveAllFields checks that the generator sets every field: FuzzPolicy can't notice that the policy drops a field
// that is never set.
func TestRandomTemplatesHaveAllFields(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	set := map[string]bool{}
	for range 100 {
		spec := reflect.ValueOf(randomTemplate(r).Spec)
		for i := range spec.NumField() {
			if !spec.Field(i).IsZero() {
				set[spec.Type().Field(i).Name] = true
			}
		}
	}
	if want := reflect.TypeFor[corev1.PersistentVolumeClaimSpec]().NumField(); len(set) != want {
		t.Errorf("of %d fields of a claim's spec %v are set", want, slices.Sorted(maps.Keys(set)))
	}
}
