// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// TestFailures checks that a cache that can't be loaded fails the TrainJob before it trains, with the reason in all places where
// users look.
func TestFailures(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]struct {
		spoil func(*testing.T, string, *job)
		words []string // parts of the reason
	}{
		"a truncated file": {
			func(t *testing.T, _ string, j *job) {
				j.Dataset["metadata_loc"] = table{Name: "reviews", Rows: 2000, Files: 2, Width: 200, Truncate: true}.write(t)
			}, []string{".parquet", "truncated"},
		},
		"no such metadata": {
			func(_ *testing.T, _ string, j *job) {
				j.Dataset["metadata_loc"] = "s3://tables/reviews/metadata/nowhere.metadata.json"
			},
			[]string{"s3://tables/reviews/metadata/nowhere.metadata.json", "not found"},
		},
		"a wrong key": {
			func(t *testing.T, ns string, j *job) {
				keys := storeKeys(t)
				keys["AWS_SECRET_ACCESS_KEY"] = []byte("wrong")
				cluster.Create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "wrong"}, Data: keys})
				j.Annotations = map[string]string{wellknown.AnnotationSecret: "wrong"}
			}, []string{"SignatureDoesNotMatch"},
		},
		"too little memory": {
			func(t *testing.T, _ string, j *job) {
				j.Dataset["metadata_loc"] = table{Name: "reviews", Rows: 20_000, Files: 2, Width: 10_000}.write(t)
				j.Dataset["worker_mem"] = "96Mi"
			}, []string{"no room ", "are needed beside", "raise --memory-limit"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := namespace(t)
			j := cacheJob("fails", reviews.write(t), 1, "loader")
			failure.spoil(t, ns, &j)
			r := train(t, ns, j)
			r.ends(t, trainer.TrainJobFailed)
			dc := cluster.DataCache(t, ns, r.name, v1alpha1.StateFailed)
			tellsWhy(t, r.look(t), dc, failure.words)
		})
	}
}

// tellsWhy checks that the words are in all places where users look.
func tellsWhy(t *testing.T, s sdkView, dc *v1alpha1.DataCache, words []string) {
	t.Helper()
	if s.Status != "Failed" || s.Steps[wellknown.StepName] != "Failed" {
		t.Errorf("the SDK says that the TrainJob is %s, its steps %v; want both Failed", s.Status, s.Steps)
	}
	reason := ""
	if c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		reason = c.Message
	}
	event := ""
	for _, e := range s.Events {
		if strings.HasPrefix(e, "CacheFailed: ") {
			event = e
		}
	}
	for place, text := range map[string]string{
		"the DataCache's condition Ready":           reason,
		"the event CacheFailed":                     event,
		"the log of the step " + wellknown.StepName: strings.Join(s.Logs[wellknown.StepName], "\n"),
		"what cache_status of our SDK's part gives": s.Cache,
	} {
		for _, word := range words {
			if !strings.Contains(text, word) {
				t.Errorf("%s does not say %q: %s", place, word, text)
			}
		}
	}
}
