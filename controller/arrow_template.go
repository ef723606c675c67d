// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// templateError says that a template of the DataCache can't be used.
type templateError struct {
	field string
	err   error
}

func (e *templateError) Error() string { return e.field + ": " + e.err.Error() }

func (e *templateError) Unwrap() error { return e.err }

// mergeTemplate lays a user's template over ours by strategic merge, and puts back what makes the pod one of the cache's: labels, account,
// and of its first container arguments and environment. ours is not changed.
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
	out.Labels = joined(out.Labels, ours.Labels)
	out.Spec.ServiceAccountName, out.Spec.DeprecatedServiceAccount = ours.Spec.ServiceAccountName, ""
	own := ours.Spec.Containers[0]
	for i := range out.Spec.Containers {
		if c := &out.Spec.Containers[i]; c.Name == own.Name {
			c.Args, c.Env = own.Args, mergeEnv(c.Env, own.Env)
		}
	}
	return out, nil
}

// templatePatch is the user's template as a patch. Go writes a PodSpec's containers as null where there are none, which would delete ours.
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

// mergeEnv is ours and after it what else is there: a variable that the controller sets can't be set by a template.
func mergeEnv(all, ours []corev1.EnvVar) []corev1.EnvVar {
	others := slices.DeleteFunc(slices.Clone(all), func(v corev1.EnvVar) bool {
		return slices.ContainsFunc(ours, func(own corev1.EnvVar) bool { return own.Name == v.Name })
	})
	return slices.Concat(ours, others)
}
