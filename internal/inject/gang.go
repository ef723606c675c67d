// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"errors"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/internal/request"
)

// checkGang returns an error for a runtime whose pods start together, if the installation doesn't serve gangs: nobody would take the waiting
// step out of the gang, which would wait for itself.
func checkGang(rt *request.Runtime, settings Settings) *field.Error {
	policy := rt.Spec.PodGroupPolicy
	if settings.Gangs || policy == nil || policy.Coscheduling == nil && policy.Volcano == nil {
		return nil
	}
	return unusable(rt, errors.New("spec.podGroupPolicy is set, and this installation of datacache serves no gangs: "+
		"its owner must add the component gangs (value gangs.enabled of the chart), or use a runtime without podGroupPolicy"))
}
