// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// TestPatience checks when Workloads give their quota back: after 5 to 10 minutes, each after another time, the same in each reconciliation.
func TestPatience(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	times := map[time.Time]bool{}
	for i := range 100 {
		w := &Workload{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i))}}
		w.Status.Conditions = []metav1.Condition{{Type: quotaReserved, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon)}}
		at := w.patience(Wait{Since: noon.Add(-time.Hour)}, 0, DefaultPatience)
		if after := at.Sub(noon); after < DefaultPatience || after >= 2*DefaultPatience {
			t.Errorf("Workload %d gives its quota back after %s", i, after)
		}
		if again := w.patience(Wait{}, 0, DefaultPatience); !again.Equal(at) {
			t.Errorf("Workload %d: %s, and %s when asked again", i, at, again)
		}
		if later := w.patience(Wait{Since: noon.Add(time.Minute)}, 0, DefaultPatience); !later.Equal(at.Add(time.Minute)) {
			t.Errorf("Workload %d: %s if its cache waits a minute later, want %s", i, later, at.Add(time.Minute))
		}
		times[at] = true
	}
	if len(times) < 50 {
		t.Errorf("100 Workloads have only %d times", len(times))
	}
}

// TestPause checks how long a Workload wants no quota, and that one which somebody else deactivated is left alone.
func TestPause(t *testing.T) {
	t.Parallel()
	for times, want := range []time.Duration{150 * time.Second, 5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute, time.Hour, time.Hour} {
		if got := pauseAfter(times, DefaultPatience); got != want {
			t.Errorf("the pause after %d is %s, want %s", times, got, want)
		}
	}
	until := time.Date(2026, 1, 1, 10, 20, 30, 0, time.UTC)
	for name, tt := range map[string]struct {
		annotation string
		active     bool
		times      int
		until      time.Time
	}{
		"never":                           {"", true, 0, time.Time{}},
		"deactivated by somebody":         {"", false, 0, time.Time{}},
		"paused":                          {"2 2026-01-01T10:20:30Z", false, 2, until},
		"activated by somebody":           {"2 2026-01-01T10:20:30Z", true, 2, time.Time{}},
		"after a pause":                   {"2", true, 2, time.Time{}},
		"deactivated by somebody later":   {"2", false, 2, time.Time{}},
		"an annotation that somebody set": {"often soon", false, 0, time.Time{}},
	} {
		w := &Workload{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{wellknown.AnnotationPause: tt.annotation}}}
		w.Spec.Active = new(tt.active)
		if times, until := pauseOf(w); times != tt.times || !until.Equal(tt.until) {
			t.Errorf("%s: %d times, until %s; want %d, %s", name, times, until, tt.times, tt.until)
		}
	}
}
