// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestJobNames counts 100 jobs: 64 have a line of their own, and the others share one.
func TestJobNames(t *testing.T) {
	m := NewMetrics()
	for range 2 {
		for i := range 100 {
			m.JobBytes.Of(fmt.Sprintf("job-%d", i)).Add(1)
			m.JobWait.Of(fmt.Sprintf("job-%d", 99-i)).Add(1)
		}
	}
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	text := answer.Body.String()
	for _, name := range []string{"datacache_job_bytes_total", "datacache_job_wait_seconds_total"} {
		if n := strings.Count(text, "\n"+name+"{"); n != maxJobNames+1 {
			t.Errorf("%s has %d lines, want %d", name, n, maxJobNames+1)
		}
		if line := "\n" + name + `{job="other"} 72` + "\n"; !strings.Contains(text, line) {
			t.Errorf("there is no line %q", line)
		}
	}
}
