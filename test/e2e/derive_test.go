// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// tokenise makes rows like those of sdk/tables.py of those rows, and counts them. A function of a module is part of the recipe by its source text,
// which a script that is passed by -c does not have.
const tokenise = `
import os
import pyarrow as pa
from kubeflow_datacache import DataCache, derive
rows = 0
def tokens(batch):
    global rows
    rows += batch.num_rows
    return pa.table({"id": batch["id"], "content": batch["content"]})
if os.environ["HOME"] != "/tmp" or os.getuid() == 0:
    raise SystemExit(f"user {os.getuid()} at {os.environ['HOME']}")
with DataCache.from_env() as cache:
    made = derive(cache, tokens, "tok", columns=["id", "content"], parts=8, recipe=os.environ["RECIPE"])
    print("tokenised", rows, "rows, existed:", made.existed, flush=True)
`

// TestDeriveOnceForASweep has a cache tokenise its rows in a Job of two pods before TrainJobs train, which read what was made. A step that runs again
// tokenises nothing. One that fails says why, in the DataCache and in the log of a TrainJob that waits, and is put right by a change of the spec.
func TestDeriveOnceForASweep(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	dc := sharedCache(ns, reviews.write(t), ns)
	dc.Spec.Retention.IdleTTL = nil
	dc.Spec.Arrow.Puts = &v1alpha1.Puts{Enabled: true}
	dc.Spec.Arrow.Derive = &v1alpha1.Derive{
		Dataset: "tok", Image: trainerImage, Command: []string{"python3", "-c", "raise SystemExit('no tokenizer here')"}, Workers: 2,
		Env: []corev1.EnvVar{{Name: "RECIPE", Value: "one"}},
	}
	cluster.Create(t, dc)
	first := train(t, ns, referring("trial-0", ns, dc.Name+"/tok"))
	derived(t, dc, metav1.ConditionFalse, v1alpha1.ReasonDeriveFailed, "no tokenizer here")
	step := podOf(t, ns, "trial-0-dataset-initializer-0-0", "")
	writes(t, &step, "no tokenizer here")

	changes(t, dc, func() { dc.Spec.Arrow.Derive.Command[2] = tokenise })
	derived(t, dc, metav1.ConditionTrue, v1alpha1.ReasonDerived, fmt.Sprintf("dataset tok has %d rows", reviews.Rows))
	if got, want := tokenised(t, dc), reviews.Rows+2*8; got != want { // eight rows tell each of two pods the columns
		t.Errorf("the step tokenised %d rows, want each of %d once and 8 in each pod", got, reviews.Rows)
	}
	runs := []*run{first}
	for i := 1; i < 3; i++ {
		runs = append(runs, train(t, ns, referring(fmt.Sprintf("trial-%d", i), ns, dc.Name+"/tok")))
	}
	for _, r := range runs {
		r.ends(t, trainer.TrainJobComplete)
		readOnce(t, r, r.look(t), 1, reviews.Rows)
	}

	changes(t, dc, func() { dc.Annotations = map[string]string{"datacache.kubeflow.org/retry": "1"} })
	derived(t, dc, metav1.ConditionFalse, v1alpha1.ReasonDeriving, "")
	derived(t, dc, metav1.ConditionTrue, v1alpha1.ReasonDerived, "dataset tok")
	if got := tokenised(t, dc); got != 0 {
		t.Errorf("a step whose dataset is there tokenised %d rows", got)
	}
	changes(t, dc, func() { dc.Spec.Arrow.Derive = nil })
	cluster.Vanish(t, &batchv1.Job{}, ns, dc.Name+"-cache-derive")
}

// TestDeriveArgument runs a sweep whose TrainJobs say by the SDK what to make of a table: the first one has it made by two pods before it trains,
// and the second one, of other sizes, reads it from the same cache and has nothing made.
func TestDeriveArgument(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	trialOf := func(i int) job {
		j := trial(t, i)
		delete(j.Dataset, "cache_scope") // that of what is made is the namespace
		j.Dataset["derive"] = map[string]any{
			"dataset": "tok", "image": trainerImage, "fn": "tokens", "columns": []string{"id", "content"}, "parameters": map[string]any{"sign": "$(HOME)"},
			"parts": 8, "workers": 2 + 5*i,
		}
		return j
	}
	var made types.UID
	for i := range 2 {
		r := train(t, ns, trialOf(i))
		r.ends(t, trainer.TrainJobComplete)
		readOnce(t, r, r.look(t), 1, reviews.Rows)
		var caches v1alpha1.DataCacheList
		if err := cluster.Client.List(t.Context(), &caches, client.InNamespace(ns)); err != nil || len(caches.Items) != 1 {
			t.Fatalf("there are %d DataCaches (%v), want 1", len(caches.Items), err)
		}
		dc := &caches.Items[0]
		derived(t, dc, metav1.ConditionTrue, v1alpha1.ReasonDerived, fmt.Sprintf("dataset tok has %d rows", reviews.Rows))
		if got, want := tokenised(t, dc), reviews.Rows+2*8; got != want {
			t.Errorf("after TrainJob %d, %d rows were tokenised, want each of %d once and 8 in each pod", i, got, reviews.Rows)
		}
		step := &batchv1.Job{}
		if err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: dc.Name + "-cache-derive"}, step); err != nil {
			t.Fatal(err)
		}
		if i > 0 && step.UID != made {
			t.Errorf("the second TrainJob had the step run again: it is %s, was %s", step.UID, made)
		}
		made = step.UID
	}
}

var tokenisedRows = regexp.MustCompile(`tokenised ([0-9]+) rows`)

// changes changes a DataCache.
func changes(t *testing.T, dc *v1alpha1.DataCache, change func()) {
	t.Helper()
	await(t, "the DataCache to be changed", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(dc), dc); err != nil {
			return err
		}
		change()
		return cluster.Client.Update(t.Context(), dc)
	})
}

// derived waits for the condition Derived of a DataCache.
func derived(t *testing.T, dc *v1alpha1.DataCache, status metav1.ConditionStatus, reason, message string) {
	t.Helper()
	await(t, "the condition Derived: "+reason, func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(dc), dc); err != nil {
			return err
		}
		c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionDerived)
		if c == nil || c.Status != status || c.Reason != reason || c.ObservedGeneration != dc.Generation || !strings.Contains(c.Message, message) {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
}

// tokenised returns how many rows the pods of the step of a DataCache say that they tokenised.
func tokenised(t *testing.T, dc *v1alpha1.DataCache) (rows int) {
	t.Helper()
	var pods corev1.PodList
	if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(dc.Namespace), client.MatchingLabels{"datacache.kubeflow.org/step-of": dc.Name}); err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != 2 {
		t.Fatalf("the step has %d pods, want 2", len(pods.Items))
	}
	for i := range pods.Items {
		for _, said := range tokenisedRows.FindAllStringSubmatch(writes(t, &pods.Items[i], "tokenised "), -1) {
			n, err := strconv.Atoi(said[1])
			if err != nil {
				t.Fatal(err)
			}
			rows += n
		}
	}
	return rows
}
