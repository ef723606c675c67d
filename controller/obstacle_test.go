// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeflow/datacache/controller/kube"
)

func webhookSays(code int32, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Message: message}}
}

func TestObstacleOf(t *testing.T) {
	t.Parallel()
	services := schema.GroupResource{Resource: "services"}
	terminating := apierrors.NewForbidden(services, "s", errors.New("because it is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, c := range map[string]struct {
		err  error
		want string // the reason
	}{
		"none":                      {nil, ""},
		"passes":                    {apierrors.NewServiceUnavailable("etcd"), ""},
		"goes by itself":            {fmt.Errorf("Service: %w", kube.ErrGoing), ""},
		"the namespace goes":        {fmt.Errorf("create: %w", terminating), ""},
		"a name is taken":           {fmt.Errorf("keep: %w", &kube.ForeignError{Kind: "Service", Name: "a/b", Owner: "nobody"}), "NameTaken"},
		"a quota":                   {fmt.Errorf("create: %w", apierrors.NewForbidden(services, "s", errors.New("exceeded quota"))), "Refused"},
		"a webhook says no":         {fmt.Errorf("create: %w", webhookSays(http.StatusConflict, `admission webhook "a.b" denied the request: no`)), "Refused"},
		"a webhook does not answer": {fmt.Errorf("create: %w", webhookSays(http.StatusInternalServerError, `failed calling webhook "a.b": no endpoints`)), "Refused"},
		"another write came first":  {fmt.Errorf("patch: %w", apierrors.NewConflict(services, "s", errors.New("modified"))), ""},
		"the API server's checking": {apierrors.NewInvalid(schema.GroupKind{Kind: "LeaderWorkerSet"}, "s", nil), "Refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reason := ""
			if got := obstacleOf(c.err); got != nil {
				reason = got.Reason
			}
			if reason != c.want {
				t.Errorf("obstacle %q, want %q", reason, c.want)
			}
		})
	}
}
