// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/controller/fluid"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/controller/workload"
)

// obstacleOf returns the trouble for an error that only people can fix: a name that is taken, a quota, a policy, a webhook; nil for
// any other error.
func obstacleOf(err error) *podstate.Trouble {
	taken, template, missing := (*kube.ForeignError)(nil), (*workload.TemplateError)(nil), (*fluid.MissingError)(nil)
	switch {
	case errors.As(err, &missing):
		return &podstate.Trouble{Reason: fluid.ReasonMissing, Message: missing.Error()}
	case errors.As(err, &template):
		return &podstate.Trouble{Reason: engine.ReasonRefused, Message: template.Error()}
	case errors.As(err, &taken):
		return &podstate.Trouble{Reason: engine.ReasonNameTaken, Message: taken.Error()}
	case isRefused(err):
		return &podstate.Trouble{Reason: engine.ReasonRefused, Message: err.Error()}
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
