// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/test/kit/pagetest"
)

// otherWaits are the waits that have tests of their own: what is said of them, and the test.
var otherWaits = map[string]struct{ why, condition, event, test string }{
	"it is suspended":                            {"TrainJob ...: suspended: its cache starts when it runs", "", "CacheUserWaits", "test/controlplane/diagnose_test.go TestWhy"},
	"Kueue has no quota for it":                  {"TrainJob ...: suspended: Kueue: ...", "", "CacheUserWaits", "test/kueue/evict_test.go TestEviction"},
	"Kueue waits for its cache":                  {"TrainJob ...: suspended: Kueue has reserved its quota, and waits; AdmissionCheck datacache: ...", "Ready: Loading", "", "test/kueue/check_test.go TestCheckWhileItLoads"},
	"its cache has no quota":                     {"TrainJob ...: suspended: Kueue has reserved its quota, and waits; AdmissionCheck datacache: DataCache ... waits for quota", "", "CacheUserWaits", "internal/diagnose/queue_test.go TestQueue"},
	"it gave its quota back":                     {"TrainJob ...: suspended: its cache got no quota, so that it gave its own back until ...", "", "CacheUserWaits", "internal/diagnose/queue_test.go TestQueue"},
	"the cache's name is taken":                  {"DataCache ...: NameTaken: ...", "Ready: NameTaken", "CacheFailed", "test/controlplane/job_test.go TestForeignObjectsStay"},
	"the cache's pods start":                     {"DataCache ...: PodsStarting: 0 of 3 pods run", "Ready: PodsStarting", "CacheProvisioning", "test/controlplane/troubleshoot_test.go TestWhyItWaits"},
	"the cache plans":                            {"DataCache ...: Planning: planning", "Ready: Planning", "CacheLoading", "test/controlplane/troubleshoot_test.go TestWhyItWaits"},
	"the cache loads":                            {"DataCache ...: Loading: loading 0% (0/1 splits)", "Ready: Loading", "CacheLoading", "test/controlplane/troubleshoot_test.go TestWhyItWaits"},
	"the cache failed":                           {"DataCache ...: LoadFailed: ...", "Ready: LoadFailed", "CacheFailed", "test/controlplane/troubleshoot_test.go TestWhyItFailed"},
	"the manager can't reach the head":           {"DataCache ...: HeadUnreachable: ...", "Ready: HeadUnreachable", "", "test/controlplane/job_test.go TestFailureIsHeardLate"},
	"a machine of the cache is lost":             {"DataCache ...: NodeNotReady: Kubernetes node ... has not answered since ...", "Ready: NodeNotReady", "CacheDegraded", "test/controlplane/machines_test.go TestMachineOfDataNodesIsLost"},
	"a data node loads its rows again":           {"DataCache ...: Degraded: Reloading: ...", "Ready: Reloading", "CacheDegraded", "internal/diagnose/start_test.go TestStates"},
	"Trainer has made no JobSet":                 {"JobSet ...: does not exist: Trainer has not created it", "Read: TrainJobWaits", "CacheUserWaits", "internal/diagnose/start_test.go TestStates"},
	"JobSet has made no Job":                     {"JobSet ...: has created no Job", "Read: TrainJobWaits", "CacheUserWaits", "internal/diagnose/start_test.go TestStates"},
	"no scheduler takes the training's pod":      {"pod ...: no scheduler has looked at it", "Read: TrainJobWaits", "CacheUserWaits", "internal/diagnose/start_test.go TestStates"},
	"an init container of the training runs":     {"pod ...: its container ... runs before the others", "Read: TrainJobWaits", "CacheUserWaits", "internal/diagnose/start_test.go TestStates"},
	"a pod of the training was evicted":          {"pod ...: failed: Evicted: ...", "Read: TrainJobWaits", "CacheUserWaits", "internal/diagnose/start_test.go TestStates"},
	"a machine of the training is lost":          {"pod ...: should have ended at ...: its node ... does not answer", "Read: TrainJobWaits", "CacheUserWaits", "internal/diagnose/start_test.go TestStates"},
	"no rank asks for rows":                      {"? pods of the TrainJob: ... run; DataCache ...: no rank has asked for rows since ...", "Read: NotRead", "CacheNotRead", "test/controlplane/training_waits_test.go TestTrainingStandsStill"},
	"the ranks take no rows from their streams":  {"? pods of the TrainJob: ... run; DataCache ...: no rank has taken rows from its ... open streams since ...", "Read: NotRead", "CacheNotRead", "controller/reading_test.go TestPulse"},
	"the cache sends nothing to ranks that wait": {"DataCache ...: Ready: RanksWait: ...", "Read: RanksWait", "CacheNotRead", "controller/reading_test.go TestPulse"},
}

// TestPageOfWaits checks that docs/reference/waits.md has what the tests of waits hold: go test -update writes it.
func TestPageOfWaits(t *testing.T) {
	t.Parallel()
	var rows []string
	row := func(name, why, condition, event string) {
		cell := func(text string) string {
			if text == "" {
				return "–"
			}
			return pagetest.Code(text)
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s |\n", pagetest.Prose(name), cell(why), cell(condition), cell(event)))
	}
	for name, w := range trainingWaits {
		condition := "Read: TrainJobWaits"
		if w.fails {
			condition = ""
		}
		row(name, strings.Join(w.want, " ... "), condition, "CacheUserWaits")
	}
	for name, o := range obstacles {
		condition := ""
		if o.reason != "" {
			condition = "Ready: " + o.reason
		}
		row("the cache: "+name, strings.Join(o.want, " ... "), condition, o.event)
	}
	for name, w := range otherWaits {
		row(name, w.why, w.condition, w.event)
		file, test, _ := strings.Cut(w.test, " ")
		if !strings.Contains(read(t, file), "func "+test+"(") {
			t.Errorf("the test of %q is gone: %s has no %s", name, file, test)
		}
	}
	slices.Sort(rows)
	if len(rows) < 30 {
		t.Errorf("%d waits, want at least 30", len(rows))
	}
	pagetest.Check(t, "../../docs/reference/waits.md", waitsIntro+strings.Join(rows, ""))
}

const waitsIntro = `<!-- Made by go test ./test/controlplane -run TestPageOfWaits -update, from the tables of its tests. -->
# What a TrainJob waits for

From admission to its last pod. The tests of test/controlplane bring about each wait on a real API server, as far as one can, and compare
what is said of it: by [` + "`kubectl datacache why`" + `](../kubectl.md#why), by a condition of the DataCache, and by an event of the TrainJob.
The [page of all caches](../watch.md#all-caches) shows the reason and the message of that condition.

- The condition Ready says why a cache has not all rows in memory.
- The condition Read says of a cache that is Ready and used why its rows are not read. ` + "`TrainJobWaits`" + ` has the sentence of ` + "`why`" + ` with what to
  do, of at most three TrainJobs; of a TrainJob in another namespace it says only that it waits. ` + "`NotRead`" + ` appears after 5 minutes
  without a row: a long evaluation looks like that too. A cache that is not Ready, or not used, has no condition Read.
- The event CacheUserWaits has the same sentence. It comes 10 s after a TrainJob could go on and does not, and again if it waits for something
  else: after 10, 20, 40 s and so on, at most every 2 minutes. A TrainJob that fails gets it once more.

` + "`–`" + `: there is none, since no DataCache exists or it is not used any more.

| it waits for | ` + "`why`" + ` says | condition | event |
|---|---|---|---|
`
