// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"testing"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/jobtest"
)

// TestSchemaIsNotBlind checks that refusals detects specs that the API rejects.
func TestSchemaIsNotBlind(t *testing.T) {
	good := func() *v1alpha1.ArrowCache { return plain(nil).Cache.Arrow }
	api := jobtest.DataCacheCRD(t)
	if refused := api.Refusals(t, v1alpha1.DataCacheSpec{Arrow: good()}); len(refused) > 0 {
		t.Fatal(refused)
	}
	for name, spoil := range map[string]func(*v1alpha1.ArrowCache){
		"table":    func(a *v1alpha1.ArrowCache) { a.Table = "a/b" },
		"metadata": func(a *v1alpha1.ArrowCache) { a.MetadataLocation = new("x") },
		"path of files": func(a *v1alpha1.ArrowCache) {
			*a = *folder(nil).Cache.Arrow
			a.Source.Files.URIs[0] = "/train"
		},
		"data nodes":  func(a *v1alpha1.ArrowCache) { a.DataNodes = 1001 },
		"columns":     func(a *v1alpha1.ArrowCache) { a.Columns = []string{""} },
		"filter":      func(a *v1alpha1.ArrowCache) { a.Filter = new("") },
		"environment": func(a *v1alpha1.ArrowCache) { a.Env = []v1alpha1.StoreVariable{{Name: "PATH"}} },
	} {
		t.Run(name, func(t *testing.T) {
			arrow := good()
			spoil(arrow)
			if len(api.Refusals(t, v1alpha1.DataCacheSpec{Arrow: arrow})) == 0 {
				t.Error("not refused")
			}
		})
	}
}
