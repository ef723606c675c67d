// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMetrics(t *testing.T) {
	tests := map[string][]string{
		`up`: {"up"},
		`max by (namespace, name) (a{state="x(y)", other=~"b|c"}) == 1 unless on (name) changes(b_total[5m]) > 0`: {"a", "b_total"},
		`sum(rate(x[1h])) or 0 * sum without(pod) (rate(x[15m] offset 1h))`:                                       {"x"},
		`absent(i{c="m"}) and on() vector(1)`:                                                                     {"i"},
	}
	for expr, want := range tests {
		if diff := cmp.Diff(want, Metrics(expr)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", expr, diff)
		}
	}
}
