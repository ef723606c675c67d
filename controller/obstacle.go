// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// obstacleOf returns the trouble for an error that only people can fix: a name that is taken, a quota, a policy, a webhook; nil for
// any other error.
func obstacleOf(err error) *trouble {
	taken, template, missing := (*foreignError)(nil), (*templateError)(nil), (*fluidMissingError)(nil)
	switch {
	case errors.As(err, &missing):
		return &trouble{reasonFluidMissing, missing.Error()}
	case errors.As(err, &template):
		return &trouble{reasonRefused, template.Error()}
	case errors.As(err, &taken):
		return &trouble{reasonNameTaken, taken.Error()}
	case isRefused(err):
		return &trouble{reasonRefused, err.Error()}
	}
	return nil
}

// isRefused distinguishes errors that people must fix from temporary ones: the API server rejects a request for missing permission,
// quota, validation or an admission policy, and will do so again. A webhook may reject with any code, and one that can't be called
// rejects everything.
func isRefused(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return false
	}
	if strings.Contains(err.Error(), "denied the request") || strings.Contains(err.Error(), "failed calling webhook") { // k8s.io/apiserver webhook/errors/statuserror.go
		return true
	}
	switch status.Status().Code {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}
