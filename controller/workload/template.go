// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
)

// TemplateError says that a template of the DataCache is invalid.
type TemplateError struct {
	field string
	err   error
}

func (e *TemplateError) Error() string { return e.field + ": " + e.err.Error() }

func (e *TemplateError) Unwrap() error { return e.err }

// mergeTemplate merges a user's template into ours by strategic merge, then restores what the cache depends on: labels, service
// account, and the first container's arguments and environment. It does not modify ours.
func mergeTemplate(ours corev1.PodTemplateSpec, user *v1alpha1.PodTemplate) (corev1.PodTemplateSpec, error) {
	if user == nil {
		return ours, nil
	}
	patch, err := templatePatch(user)
	if err != nil {
		return ours, fmt.Errorf("write the template as JSON: %w", err)
	}
	base, err := json.Marshal(ours)
	if err != nil {
		return ours, fmt.Errorf("write the pod template as JSON: %w", err)
	}
	merged, err := strategicpatch.StrategicMergePatch(base, patch, corev1.PodTemplateSpec{})
	if err != nil {
		return ours, fmt.Errorf("merge the template: %w", err)
	}
	var out corev1.PodTemplateSpec
	if err := json.Unmarshal(merged, &out); err != nil {
		return ours, fmt.Errorf("read the merged template: %w", err)
	}
	out.Labels = kube.Joined(out.Labels, ours.Labels)
	out.Spec.ServiceAccountName, out.Spec.DeprecatedServiceAccount = ours.Spec.ServiceAccountName, ""
	own := ours.Spec.Containers[0]
	for i := range out.Spec.Containers {
		if c := &out.Spec.Containers[i]; c.Name == own.Name {
			c.Args, c.Env = own.Args, mergeEnv(c.Env, own.Env)
		}
	}
	return out, nil
}

// templatePatch encodes the user's template as a patch. Go encodes missing containers of a PodSpec as null, which would delete ours,
// so it is removed.
func templatePatch(user *v1alpha1.PodTemplate) ([]byte, error) {
	text, err := json.Marshal(user)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	if spec, ok := tree["spec"].(map[string]any); ok && spec["containers"] == nil {
		delete(spec, "containers")
	}
	return json.Marshal(tree)
}

// mergeEnv returns ours followed by the other variables: a template can't override variables that the controller sets.
func mergeEnv(all, ours []corev1.EnvVar) []corev1.EnvVar {
	others := slices.DeleteFunc(slices.Clone(all), func(v corev1.EnvVar) bool {
		return slices.ContainsFunc(ours, func(own corev1.EnvVar) bool { return own.Name == v.Name })
	})
	return slices.Concat(ours, others)
}
