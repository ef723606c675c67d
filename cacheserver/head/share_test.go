// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"encoding/json"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/source"
)

// TestCutsKeepTheDataset divides a table among different numbers of nodes. Cutting row groups does not change the row indices, so it
// must not change the fingerprint of the dataset, but it must change that of the plan.
func TestCutsKeepTheDataset(t *testing.T) {
	splits := []source.Split{
		{File: "f", RowGroup: 0, Rows: 3_000_000, Bytes: 24_000_000},
		{File: "f", RowGroup: 1, Rows: 1_000_000, Bytes: 8_000_000},
		{File: "g", RowGroup: 0, Rows: 10, Bytes: 80},
	}
	dataset, plans := "", map[string]int{}
	for nodes := 1; nodes <= 4; nodes++ {
		cut := CutSplits(splits, nodes)
		p, err := newPlan(&source.Plan{Splits: cut, Version: source.Version{Pin: json.RawMessage(`{}`)}, Schema: arrow.NewSchema(nil, nil)}, nodes)
		if err != nil {
			t.Fatal(err)
		}
		if dataset == "" {
			dataset = p.dataset.Fingerprint
		}
		if p.dataset.Fingerprint != dataset {
			t.Errorf("%d nodes: dataset %s, on one node %s", nodes, p.dataset.Fingerprint, dataset)
		}
		if other, ok := plans[p.fingerprint]; ok {
			t.Errorf("%d and %d nodes have one plan, %s", other, nodes, p.fingerprint)
		}
		plans[p.fingerprint] = nodes
		for i, run := range p.runs {
			var rows int64
			for _, s := range cut[run.First:run.End] {
				rows += s.Rows
			}
			if equal := int64(4_000_010 / nodes); rows < equal*99/100 || rows > equal*101/100 {
				t.Errorf("%d nodes: node %d has %d rows, an equal share is %d", nodes, i, rows, equal)
			}
		}
	}
}
