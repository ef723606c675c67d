// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"no CRD": {
			fmt.Errorf("list DataCaches: %w", &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "datacache.kubeflow.org", Kind: "DataCache"}}),
			"the cluster has no kind DataCache: datacache or Kubeflow Trainer isn't installed there (docs/install.md)",
		},
		"a misspelt cache": {
			fmt.Errorf("get DataCache a/trian: %w", apierrors.NewNotFound(schema.GroupResource{Resource: "datacaches"}, "trian")),
			`get DataCache a/trian: datacaches "trian" not found: ` + "`kubectl datacache list -A` shows all caches",
		},
		"a misspelt TrainJob": {
			apierrors.NewNotFound(schema.GroupResource{Resource: "trainjobs"}, "trian"), `trainjobs "trian" not found: ` + "`kubectl get trainjobs -A` shows",
		},
		"another error": {apierrors.NewBadRequest("no"), "no"},
	} {
		if got := explain(tt.err).Error(); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestWrongNumberOfNames(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"why":         "why: name one TrainJob, there are 0 names: kubectl datacache why TRAINJOB",
		"status a b":  "status: name one cache, there are 2 names: kubectl datacache status NAME",
		"logs":        "logs: name one cache, there are 0 names",
		"events":      "events: name one cache, there are 0 names",
		"list unused": "unknown command",
	} {
		root := command()
		root.SetArgs(strings.Fields(args))
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&out)
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}
