// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

func TestDerives(t *testing.T) {
	t.Parallel()
	dc := with(cache(v1alpha1.StateReady, metav1.ConditionTrue, "Loaded"), v1alpha1.ConditionDerived, metav1.ConditionFalse, v1alpha1.ReasonDeriveFailed, "no tokenizer")
	dc.Spec.Arrow = &v1alpha1.ArrowCache{Derive: &v1alpha1.Derive{Dataset: "tok"}}
	for uri, want := range map[string]string{
		"datacache://team/train/tok": "WAITS DataCache team/train: Ready: DeriveFailed: no tokenizer; fix: correct spec.arrow.derive, or make a TrainJob with a correct DERIVE; the whole log of the step: kubectl logs job/train-cache-derive",
		"datacache://team/other/tok": "", // another cache
		"datacache://team/train":     "", // the table
		"datacache://team/train/raw": "", // a dataset that clients put, not the step
		"cache://demo/reviews":       "",
	} {
		w := &walk{job: &trainer.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a"}, Spec: trainer.TrainJobSpec{
			Initializer: &trainer.Initializer{Dataset: &trainer.DatasetInitializer{StorageUri: &uri}},
		}}}
		f := Finding{Subject: "DataCache team/train"}
		w.derives(dc, &f)
		got := ""
		if f.Blocks {
			got = "WAITS " + f.Subject + ": " + f.State + "; fix: " + f.Fix
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", uri, got, want)
		}
	}
}
