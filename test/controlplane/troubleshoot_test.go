// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

// rejections has the test of each row of docs/troubleshoot.md about TrainJobs that are rejected: a file and its function, whose text has
// the row's words.
var rejections = map[string]string{
	"`storageUri: ... must be cache://<schema>/<table>`":                              "test/controlplane/refuse_test.go TestRefusals",
	"`storageUri: ... there is no DataCache`":                                         "test/controlplane/refuse_test.go TestRefusals",
	"`storageUri: ... takes no datasets from clients`":                                "internal/request/check_test.go TestCheckDataset",
	"`storageUri: ... name 2 of 3`":                                                   "internal/request/refuse_test.go TestParseRefuses",
	"`storageUri: ... can only be named alone`":                                       "internal/request/check_test.go TestCheckReference",
	"`storageUri: ... is not for the namespace`":                                      "test/controlplane/refuse_test.go TestCacheOfANamespaceThatDoesNotAllow",
	"`CLUSTER_SIZE ... must be an integer`":                                           "test/controlplane/refuse_test.go TestRefusals",
	"`HEAD_MEM`, `WORKER_MEM` ... `must be a Kubernetes quantity`":                    "test/controlplane/refuse_test.go TestRefusals",
	"`HEAD_MEM ... must be at least`":                                                 "internal/request/refuse_test.go TestParseRefuses",
	"`numNodes: ... ranks, each of which reads from at least`":                        "internal/request/refuse_test.go TestParseRefuses",
	"`FILTER ... does not parse`":                                                     "test/controlplane/refuse_test.go TestRefusals",
	"`DERIVE ... must be spec.arrow.derive of a DataCache`":                           "internal/request/refuse_test.go TestParseRefuses",
	"`METADATA_LOC must be set`":                                                      "internal/request/refuse_test.go TestParseRefuses",
	"`metadata.name: ... at most 33`":                                                 "test/controlplane/refuse_test.go TestNamesThatAreTooLong",
	"`SPILL_LIMIT ... must be at least`":                                              "internal/request/refuse_test.go TestParseRefuses",
	"`SPILL_STORAGE_CLASS ... only with SPILL_LIMIT`":                                 "internal/request/refuse_test.go TestParseRefuses",
	"`CACHE_IMAGE`, `SPILL_HOST_PATH`, `TRAIN_JOB_NAME` `can't be set by a TrainJob`": "test/controlplane/refuse_test.go TestRefusals",
	"`is no parameter of a cache`":                                                    "test/controlplane/refuse_test.go TestRefusals",
	"`runtimeRef.name: ... can't be used with a cache`":                               "test/controlplane/refuse_test.go TestRuntimesThatCannotServe",
	"`its label ... derive=false forbids a copy`":                                     "test/controlplane/refuse_test.go TestRuntimesThatCannotServe",
	"`the runtime ... is not made yet`":                                               "internal/admit/admit_test.go TestTheTwinIsNotMadeYet",
	"`READERS=Anyone, ... is not allowed by this installation`":                       "internal/admit/admit_test.go TestAnyoneIsNotAllowed",
	"`failed calling webhook \"...datacache.kubeflow.org\"`":                          "test/controlplane/down_test.go TestWebhookIsDown",
}

// waits has the test of each reason for which kubectl datacache why says that a TrainJob waits; those of obstacles are in TestObstacles.
var waits = map[string]string{
	"NodeNotReady":    "test/controlplane/machines_test.go TestMachineOfDataNodesIsLost",
	"PodsStarting":    "test/controlplane/troubleshoot_test.go TestWhyItWaits",
	"Planning":        "test/controlplane/troubleshoot_test.go TestWhyItWaits",
	"Deriving":        "controller/derive/derive_test.go TestCondition",
	"DeriveFailed":    "test/e2e/derive_test.go TestDeriveOnceForASweep",
	"Loading":         "test/controlplane/troubleshoot_test.go TestWhyItWaits",
	"HeadUnreachable": "test/controlplane/job_test.go TestFailureIsHeardLate",
	"NameTaken":       "test/controlplane/job_test.go TestForeignObjectsStay",
}

// queued has the test of each row about TrainJobs that Kueue has suspended.
var queued = map[string]string{
	"`Kueue: ...`": "test/kueue/evict_test.go TestEviction",
	"`Kueue has reserved its quota, and waits; AdmissionCheck datacache: DataCache ...: Loading`": "test/kueue/check_test.go TestCheckWhileItLoads",
	"`... AdmissionCheck datacache: DataCache ... waits for quota`":                               "internal/diagnose/queue_test.go TestQueue",
	"`its cache got no quota, so that it gave its own back until ...`":                            "internal/diagnose/queue_test.go TestQueue",
}

// hangs has the test of each row about training that hangs or is killed.
var hangs = map[string]string{
	"`unable to allocate shared memory(shm)` in the log, then no batch any more":    "python/tests/test_torch_shared_memory.py test_full_shared_memory_is_an_error",
	"`this cache takes known readers over TLS`":                                     "python/tests/test_readers.py test_plain_text_is_told_at_once",
	"`... all that NAMESPACE/ACCOUNT may have put: ...`":                            "test/conformance/test_readers.py test_the_limit_of_a_writer",
	"the training container is `OOMKilled`":                                         "test/controlplane/troubleshoot_test.go TestWhyTrainingFailed",
	"`UnreachableError` for a host `<job>-cache-service-` and 8 hexadecimal digits": "python/tests/test_errors.py test_from_env_by_name",
	"`keep: \"disk\", and data node ... has no folder for it`":                      "test/conformance/test_puts.py test_no_disk",
	"`UnreachableError` after 300 s":                                                "python/tests/test_errors.py test_a_server_that_is_gone_for_good",
}

// TestTroubleshooting checks that each row of docs/troubleshoot.md has a test, and each test a row.
func TestTroubleshooting(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/troubleshoot.md")
	if err != nil {
		t.Fatal(err)
	}
	answers := firstCells(t, string(text), "the answer has")
	haveTests(t, answers, rejections)
	for _, row := range answers {
		file, _, _ := strings.Cut(rejections[row], " ")
		for _, quoted := range quotes(row) {
			if err := lacks(read(t, file), fragments(quoted)); err != nil && file != "" {
				t.Errorf("the test of %s does not check it: %.100s", row, err)
			}
		}
	}
	haveTests(t, firstCells(t, string(text), "symptom"), hangs)
	haveTests(t, firstCells(t, string(text), "suspended:"), queued)

	tests := maps.Clone(waits)
	for _, o := range obstacles {
		if o.reason != "" {
			tests[o.reason] = "test/controlplane/obstacle_test.go TestObstacles"
		}
	}
	haveTests(t, quotesOf(firstCells(t, string(text), "reason")), tests)

	tests = map[string]string{ // of files that a TrainJob's diagnosis treats like the others
		"no room to load even one row group at a time": "test/faults/limits_test.go TestMemoryLimitTooSmall",
		"no room for its pages":                        "test/conformance/test_hostile_files.py test_one_large_page",
		"checksum":                                     "test/faults/storage_test.go TestCorruptByteInChecksummedPage",
		"spill folder ...: needed ...":                 "test/conformance/test_spill.py test_too_little_room_is_explained",
		"its footer promises":                          "cacheserver/source/parquet/footer_test.go TestFooters",
	}
	for _, f := range failures {
		for _, said := range f.says {
			tests[said] = "test/controlplane/troubleshoot_test.go TestWhyItFailed"
		}
	}
	haveTests(t, quotesOf(firstCells(t, string(text), "the reason has")), tests)
}

// haveTests checks that tests has exactly the rows, and that the tests exist.
func haveTests(t *testing.T, rows []string, tests map[string]string) {
	t.Helper()
	for _, row := range rows {
		file, name, _ := strings.Cut(tests[row], " ")
		if name == "" {
			t.Errorf("no test of docs/troubleshoot.md's row %s", row)
		} else if source := read(t, file); !strings.Contains(source, "func "+name+"(") && !strings.Contains(source, "def "+name+"(") {
			t.Errorf("the test of docs/troubleshoot.md's row %s is gone: %s has no %s", row, file, name)
		}
	}
	for row := range tests {
		if !slices.Contains(rows, row) {
			t.Errorf("docs/troubleshoot.md has no row %s", row)
		}
	}
}

// firstCells returns the first column of the table whose header begins with a cell.
func firstCells(t *testing.T, text, header string) []string {
	t.Helper()
	_, table, found := strings.Cut(text, "\n| "+header+" | ")
	if !found {
		t.Fatalf("docs/troubleshoot.md has no table with the column %q", header)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	var cells []string
	for _, row := range strings.Split(table, "\n")[2:] { // after the rest of the header, and the line below it
		cell, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		cells = append(cells, cell)
	}
	return cells
}

// quotes are the texts between backticks.
func quotes(cell string) (quoted []string) {
	for _, match := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		quoted = append(quoted, match[1])
	}
	return quoted
}

func quotesOf(cells []string) (quoted []string) {
	for _, cell := range cells {
		quoted = append(quoted, quotes(cell)...)
	}
	return quoted
}

// fragments are the parts of a text between its ellipses.
func fragments(text string) []string {
	var parts []string
	for part := range strings.SplitSeq(text, "...") {
		if part = strings.Trim(part, ` "`); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestWhyItWaits checks the diagnosis of TrainJobs that need nothing but time.
func TestWhyItWaits(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		if pod.Labels[wellknown.LabelCache] == "starting" {
			return kubetest.Act{Waiting: "ContainerCreating"}
		}
		return kubetest.Act{}
	})
	store := s3test.Start(t)
	store.Bucket("lake")
	metadata := icetest.OnS3(t, store, "lake").Plain("events", 2, 1, 10, 10).Metadata()
	store.Inject(s3test.Match{}, s3test.Stall(-1))
	_, planning := runLocal(t, onS3(t, store, metadata))
	leads(t, planning, ns, "planning")
	leads(t, alone(t, time.Hour), ns, "loading")
	for name, want := range map[string]string{
		"starting": "Pending: PodsStarting: 0 of 3 pods run",
		"planning": "Planning: Planning: planning",
		"loading":  "Loading: Loading: loading 0% (0/1 splits); waiting for data node 0, 1 to join",
	} {
		job := cacheJob(ns, name, table, tableEnv()...)
		cluster.Create(t, job)
		kubetest.Eventually(t, "the diagnosis of "+name, func() error { return blocks(t, client.ObjectKeyFromObject(job), []string{want}) })
	}
}

// alone runs a head whose data nodes do not come, and returns where its status is.
func alone(t *testing.T, joinTimeout time.Duration) (web string) {
	t.Helper()
	store := objstore.New(objstore.Config{})
	location := iceberg.Location{Metadata: icetest.Local(t).Plain("events", 2, 1, 10, 10).Metadata()}
	_, web = runServer(t, func(_ context.Context, flight, web net.Listener) (proctest.Server, error) {
		return head.New(head.Config{Nodes: 2, JoinTimeout: joinTimeout, Config: role.Config{
			Flight: flight, HTTP: web, Budget: offheap.NewBudget(1 << 28), Grace: time.Millisecond, Store: store,
			Source: &iceberg.Source{Store: store, Location: location}, Log: slog.New(slog.DiscardHandler), Metrics: ops.NewMetrics(),
		}})
	})
	awaitPlan(t, web)
	return web
}

// onS3 is the configuration of a cache of a table on S3.
func onS3(t *testing.T, server *s3test.Server, metadata string) role.Config {
	t.Helper()
	config, err := objstore.Config{}.WithProperties(server.Properties())
	if err != nil {
		t.Fatal(err)
	}
	store := objstore.New(config)
	return role.Config{Store: store, Source: &iceberg.Source{Store: store, Location: iceberg.Location{Metadata: metadata}}}
}

// failure is a way in which a cache fails.
type failure struct {
	open func(t *testing.T) (web string) // runs such a cache
	says []string                        // what docs/troubleshoot.md says that the reason has
}

var failures = map[string]failure{
	"credentials that are refused": {func(t *testing.T) string {
		t.Helper()
		store := s3test.Start(t)
		store.Inject(s3test.Match{}, s3test.Deny())
		_, web := runLocal(t, onS3(t, store, "s3://lake/events/metadata/00001.metadata.json"))
		return web
	}, []string{"access denied", "403"}},
	"no metadata": {func(t *testing.T) string {
		t.Helper()
		store := s3test.Start(t)
		store.Bucket("lake")
		_, web := runLocal(t, onS3(t, store, "s3://lake/events/metadata/00001.metadata.json"))
		return web
	}, []string{"NoSuchKey", "not found"}},
	"a small limit":            {limited, []string{"no room for the rows of all ... splits"}},
	"a file of another length": {spoiled(func(data []byte) []byte { return data[:len(data)-300] }), []string{"truncated or replaced"}},
	"a file of other bytes":    {spoiled(func(data []byte) []byte { return make([]byte, len(data)) }), []string{"footer cannot be read"}},
	"a column that is not there": {
		selecting(iceberg.Selection{Columns: []string{"nope"}}), []string{"the table has no such ... column"},
	},
	"a filter by such a column": {selecting(iceberg.Selection{Filter: "nope = 1"}), []string{"unknown column"}},
	"no data nodes": {
		func(t *testing.T) string { t.Helper(); return alone(t, time.Nanosecond) }, []string{"... of ... data nodes joined within"},
	},
}

// limited opens a cache that may use fewer bytes than its rows take.
func limited(t *testing.T) string {
	t.Helper()
	store := objstore.New(objstore.Config{})
	location := iceberg.Location{Metadata: icetest.Local(t).Plain("events", 2, 4, 20_000, 1000).Metadata()}
	_, web := runLocal(t, role.Config{Store: store, Budget: offheap.NewBudget(1 << 20), Source: &iceberg.Source{Store: store, Location: location}})
	return web
}

// selecting opens a cache of a part of a table.
func selecting(selection iceberg.Selection) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		store := objstore.New(objstore.Config{})
		location := iceberg.Location{Metadata: icetest.Local(t).Plain("events", 2, 1, 10, 10).Metadata()}
		_, web := runLocal(t, role.Config{Store: store, Source: &iceberg.Source{Store: store, Location: location, Selection: selection}})
		return web
	}
}

// spoiled opens a cache of a table whose data file was changed.
func spoiled(change func(data []byte) []byte) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		dir := t.TempDir()
		metadata := icetest.In(t, dir).Plain("events", 2, 1, 100, 100).Metadata()
		files, err := filepath.Glob(filepath.Join(dir, "events/data/*.parquet"))
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		data, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(files[0], change(bytes.Clone(data)), 0o600); err != nil {
			t.Fatal(err)
		}
		store := objstore.New(objstore.Config{})
		_, web := runLocal(t, role.Config{Store: store, Source: &iceberg.Source{Store: store, Location: iceberg.Location{Metadata: metadata}}})
		return web
	}
}

// TestWhyItFailed checks the diagnosis of TrainJobs whose cache failed.
func TestWhyItFailed(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	for i, name := range slices.Sorted(maps.Keys(failures)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := cacheJob(ns, fmt.Sprintf("train-%d", i), table, tableEnv()...)
			leads(t, failures[name].open(t), ns, job.Name)
			cluster.Create(t, job)
			want := []string{"Failed: LoadFailed: ", "; fix: correct what the message names"}
			for _, said := range failures[name].says {
				want = append(want, fragments(said)...)
			}
			kubetest.Eventually(t, "the diagnosis", func() error { return blocks(t, client.ObjectKeyFromObject(job), want) })
		})
	}
}

// TestWhyTrainingFailed checks the diagnosis of TrainJobs that fail although their cache was Ready, and is released now.
func TestWhyTrainingFailed(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		switch {
		case isCachePod(pod):
			return kubetest.Act{}
		case pod.Labels["jobset.sigs.k8s.io/replicatedjob-name"] == wellknown.StepName:
			return kubetest.Act{Exit: new(int32(0))}
		case pod.Labels["jobset.sigs.k8s.io/jobset-name"] == "large":
			return kubetest.Act{Exit: new(int32(137)), Reason: "OOMKilled"}
		}
		return kubetest.Act{Exit: new(int32(3))}
	})
	served(t, ns, "large", "wrong")
	for name, want := range map[string][]string{
		"large": {"container node is OOMKilled", "; fix: raise its memory, or lower prefetch_bytes"},
		"wrong": {"container node ended with exit code 3 (Error)", "; fix: kubectl -n " + ns + " logs wrong-node-0-0-"},
	} {
		job := cacheJob(ns, name, table, tableEnv()...)
		cluster.Create(t, job)
		kubetest.Eventually(t, "the diagnosis of "+name, func() error { return blocks(t, types.NamespacedName{Namespace: ns, Name: name}, want) })
	}
}
