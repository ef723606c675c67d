// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"slices"
	"testing"

	"github.com/kubeflow/datacache/cacheserver/objstore"
)

// FuzzCard checks that cards of data sets, which strangers write, break nothing, and that a split has each of its files once.
func FuzzCard(f *testing.F) {
	for _, seed := range []string{
		"configs:\n- config_name: a\n  default: true\n  data_files: \"*.parquet\"",
		"configs:\n- config_name: b\n  data_dir: data\n  data_files: [ \"**\", train* ]\n- config_name: c",
		"configs:\n- config_name: d\n  data_files:\n  - {split: train, path: data/**/*.parquet}\n  - {split: test, path: [ \"te?t*\", x ]}",
		"x: &x [1, 2]\nconfigs: {config_name: *x}",
	} {
		f.Add([]byte("---\n" + seed + "\n---\n# A data set"))
	}
	r := &repository{root: "hf://a/b/"}
	for _, p := range []string{"data/train-00000-of-00001.parquet", "data/x/0.parquet", "test.parquet", "train.csv"} {
		r.files = append(r.files, objstore.Entry{URI: r.root + p, Path: p})
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		configs, err := parseCard(text)
		if err != nil {
			return
		}
		for _, d := range configs {
			c, err := r.describe(d)
			if err != nil {
				continue
			}
			for _, s := range c.splits {
				seen := map[string]bool{}
				for _, e := range s.files {
					if seen[e.URI] || !slices.Contains(r.files, e) {
						t.Errorf("split %q has file %s twice, or it is no file of the data set", s.name, e.URI)
					}
					seen[e.URI] = true
				}
			}
		}
	})
}
