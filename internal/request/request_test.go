// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/jobtest"
)

func TestKinds(t *testing.T) {
	tests := []struct {
		name string
		job  *trainer.TrainJob
		want bool
	}{
		{"SDK", trainJob("cache://s/t"), true},
		{"reference", trainJob("datacache://reviews"), true},
		{"files", trainJob("cache+s3://b/train/"), true},
		{"malformed, but meant for us", trainJob("cache://"), true},
		{"KEP", trainJob("", "SCHEMA_NAME=s", "TABLE_NAME=t"), true},
		{"KEP, values to be refused", trainJob("", "SCHEMA_NAME=", "TABLE_NAME="), true},
		{"KEP, URI empty", func() *trainer.TrainJob {
			job := trainJob("", "SCHEMA_NAME=s", "TABLE_NAME=t")
			job.Spec.Initializer.Dataset.StorageUri = new("")
			return job
		}(), true},
		{"half a KEP form", trainJob("", "TABLE_NAME=t"), false},
		{"another URI with a table", trainJob("s3://b/k", "SCHEMA_NAME=s", "TABLE_NAME=t"), false},
		{"Hugging Face", trainJob("hf://tatsu-lab/alpaca"), false},
		{"another scheme that begins alike", trainJob("cached://s/t"), false},
		{"other letters", trainJob("CACHE://s/t"), false},
		{"no dataset", &trainer.TrainJob{Spec: trainer.TrainJobSpec{Initializer: &trainer.Initializer{}}}, false},
		{"no initializer", &trainer.TrainJob{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Read(tt.job, "").Kind != Nothing; got != tt.want {
				t.Errorf("our kind = %v, want %v", got, tt.want)
			}
		})
	}
}

// plain returns the request of a TrainJob that only sets its table and the table's metadata.
func plain(edit func(*Request, *v1alpha1.ArrowCache)) *Request {
	arrow := &v1alpha1.ArrowCache{
		Table: "demo.reviews", MetadataLocation: new("s3://bucket/reviews/metadata/00003.metadata.json"), DataNodes: 2, Replicas: 1,
	}
	request := &Request{Cache: v1alpha1.DataCacheSpec{Arrow: arrow}}
	if edit != nil {
		edit(request, arrow)
	}
	return request
}

// folder returns the request of a TrainJob that only names a folder of files.
func folder(edit func(*Request, *v1alpha1.ArrowCache)) *Request {
	request := plain(func(_ *Request, a *v1alpha1.ArrowCache) {
		a.Table, a.MetadataLocation = "", nil
		a.Source = &v1alpha1.Source{Files: &v1alpha1.FilesSource{URIs: []string{"s3://bucket/train/"}}}
	})
	if edit != nil {
		edit(request, request.Cache.Arrow)
	}
	return request
}

func TestParse(t *testing.T) {
	catalog := func(warehouse *string) func(*Request, *v1alpha1.ArrowCache) {
		return func(_ *Request, a *v1alpha1.ArrowCache) {
			a.MetadataLocation, a.Catalog = nil, &v1alpha1.Catalog{URI: "https://catalog.example.com", Warehouse: warehouse}
		}
	}
	tests := []struct {
		name     string
		job      *trainer.TrainJob
		defaults []corev1.EnvVar
		want     *Request
	}{
		{"SDK, least", trainJob(table, location, "CLUSTER_SIZE="), nil, plain(nil)},
		{"SDK, all that 0.5.0 sends",
			trainJob(table, "CLUSTER_SIZE=5", location, "HEAD_CPU=1", "HEAD_MEM=1Gi", "WORKER_CPU=500m", "WORKER_MEM=64Gi", "IAM_ROLE=arn:aws:iam::1:role/x"), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.DataNodes = 4
				a.Head.Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}
				a.DataNode.Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("64Gi")}
				a.ServiceAccount.Annotations = map[string]string{
					"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x", "eks.amazonaws.com/sts-regional-endpoints": "true",
				}
			})},
		{"KEP", trainJob("", "SCHEMA_NAME=demo", "TABLE_NAME=reviews", location, "CLUSTER_SIZE=2"), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) { a.DataNodes = 1 })},
		{"schema of several levels", trainJob("cache://lake.demo/reviews", location), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) { a.Table = "lake.demo.reviews" })},
		{"escaped letters", trainJob("cache://d%C3%A9mo/re-views_2", location), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) { a.Table = "démo.re-views_2" })},
		{"query", trainJob("cache://demo/reviews?columns=content,label&filter=label%3E%3D1%20AND%20path=%27a%2Fb%27&snapshot=9223372036854775807", location), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Columns, a.Filter = []string{"content", "label"}, new("label>=1 AND path='a/b'")
				a.Snapshot = &v1alpha1.Snapshot{ID: new("9223372036854775807")}
			})},
		{"query, branch", trainJob(table+"?snapshot=main", location), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) { a.Snapshot = &v1alpha1.Snapshot{Ref: new("main")} })},
		{"query, time", trainJob(table+"?snapshot=2026-01-31T12:00:00.500%2B02:00", location), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Snapshot = &v1alpha1.Snapshot{AsOf: new("2026-01-31T10:00:00.5Z")}
			})},
		{"query, empty values are none", trainJob(table+"?columns=&filter=&snapshot=", location, "COLUMNS=", "FILTER= "), nil, plain(nil)},
		{"rows on the machines' disks", trainJob(table, location, "SPILL_LIMIT=200Gi"), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Spill = &v1alpha1.Spill{Limit: resource.MustParse("200Gi")}
			})},
		{"rows in the runtime's folder", trainJob(table, location, "SPILL_LIMIT=2Gi"), variables("SPILL_LIMIT=200Gi", "SPILL_HOST_PATH=/mnt/nvme"),
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Spill = &v1alpha1.Spill{Limit: resource.MustParse("2Gi"), HostPath: &v1alpha1.SpillFolder{Path: "/mnt/nvme"}}
			})},
		{"rows on claims instead", trainJob(table, location, "SPILL_STORAGE_CLASS=fast", "SPILL_LIMIT="), variables("SPILL_LIMIT=2Gi", "SPILL_HOST_PATH=/mnt/nvme"),
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Spill = &v1alpha1.Spill{Limit: resource.MustParse("2Gi"), Ephemeral: &v1alpha1.SpillClaim{StorageClassName: new("fast")}}
			})},
		{"a runtime's class, and no limit", trainJob(table, location), variables("SPILL_STORAGE_CLASS=fast"), plain(nil)},
		{"files", trainJob("cache+s3://bucket/train/", "CLUSTER_SIZE=3", "METADATA_LOC="), nil, folder(nil)},
		{"files, the runtime's table is for others", trainJob("cache+s3://bucket/train/"), variables(location, "SNAPSHOT_ID=7", "CATALOG_WAREHOUSE=w", "SCHEMA_NAME=s"), folder(nil)},
		{"files, query", trainJob("cache+s3://bucket/train/?columns=a,b&filter=a%3E1&partitions=off"), nil,
			folder(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Columns, a.Filter, a.Source.Files.Partitions = []string{"a", "b"}, new("a>1"), v1alpha1.PartitionsIgnore
			})},
		{"files, partitions as by default", trainJob("cache+s3://bucket/train/?partitions=auto"), nil, folder(nil)},
		{"files, a list", trainJob("cache+s3://bucket/train.txt?list=1&columns=a"), nil,
			folder(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Source.Files.URIs[0], a.Columns = "s3://bucket/train.txt?list=1", []string{"a"}
			})},
		{"files, a glob with what looks like an escape", trainJob("cache+gs://b/x=a%2Fb/*.parquet"), nil,
			folder(func(_ *Request, a *v1alpha1.ArrowCache) { a.Source.Files.URIs[0] = "gs://b/x=a%2Fb/*.parquet" })},
		{"a data set on a hub", trainJob("cache+hf://acme/books@v1?split=train&columns=a&config=en", "HF_ENDPOINT=http://hub"), nil,
			folder(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Source.Files.URIs[0], a.Columns = "hf://acme/books@v1?config=en&split=train", []string{"a"}
				a.Env = []v1alpha1.StoreVariable{{Name: "HF_ENDPOINT", Value: "http://hub"}}
			})},
		{"a Delta table", trainJob("cache+delta+s3://bucket/events", "SNAPSHOT_ID=0"), nil,
			folder(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Source = &v1alpha1.Source{Delta: &v1alpha1.DeltaSource{URI: "s3://bucket/events"}}
				a.Snapshot = &v1alpha1.Snapshot{ID: new("0")}
			})},
		{"a Delta table, query", trainJob("cache+delta+gs://b/t?version=2026-01-31T00:00:00Z&columns=a&filter=a%3E1"), variables(location, "SNAPSHOT_ID=7"),
			folder(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Source = &v1alpha1.Source{Delta: &v1alpha1.DeltaSource{URI: "gs://b/t"}}
				a.Snapshot, a.Columns, a.Filter = &v1alpha1.Snapshot{AsOf: new("2026-01-31T00:00:00Z")}, []string{"a"}, new("a>1")
			})},
		{"a Delta table, the runtime's table is for others", trainJob("cache+delta+s3://b/t"), variables(location, "SNAPSHOT_ID=7"),
			folder(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Source = &v1alpha1.Source{Delta: &v1alpha1.DeltaSource{URI: "s3://b/t"}}
			})},
		{"columns with commas", trainJob(table, location, `COLUMNS=["a,b"," c ","[d]"]`), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) { a.Columns = []string{"a,b", " c ", "[d]"} })},
		{"columns with commas in the URI", trainJob(table+"?columns=%5B%22a%2Cb%22%5D", location), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) { a.Columns = []string{"a,b"} })},
		{"selection by variables", trainJob(table, location, "COLUMNS=content, label ,odd name", "FILTER=label IN (1, 2)", "SNAPSHOT_ID=7"), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Columns, a.Filter, a.Snapshot = []string{"content", "label", "odd name"}, new("label IN (1, 2)"), &v1alpha1.Snapshot{ID: new("7")}
			})},
		{"trusted manifests", trainJob(table, location, "TRUST_MANIFESTS=true"), nil, plain(func(_ *Request, a *v1alpha1.ArrowCache) { a.TrustManifests = true })},
		{"manifests not trusted", trainJob(table, location, "TRUST_MANIFESTS=false"), nil, plain(nil)},
		{"catalog", trainJob(table, "CATALOG_URI=https://catalog.example.com", "METADATA_LOC="), nil, plain(catalog(nil))},
		{"catalog with a warehouse and credentials", withSecret(trainJob(table, "CATALOG_URI=https://catalog.example.com", "CATALOG_WAREHOUSE=w"), "keys"), nil,
			plain(func(r *Request, a *v1alpha1.ArrowCache) {
				catalog(new("w"))(r, a)
				r.Cache.Credentials = keys()
				a.Catalog.Credentials = keys()
			})},
		{"credentials before admission", withSecret(trainJob(table, location), "keys"), nil,
			plain(func(r *Request, _ *v1alpha1.ArrowCache) {
				r.Cache.Credentials = keys()
			})},
		{"credentials after admission", func() *trainer.TrainJob {
			job := trainJob(table, location)
			job.Annotations = map[string]string{wellknown.AnnotationSecret: "keys"}
			return job
		}(), nil, plain(func(r *Request, _ *v1alpha1.ArrowCache) {
			r.Cache.Credentials = keys()
		})},
		{"Google's role", trainJob(table, location, "IAM_ROLE=reader@project.iam.gserviceaccount.com"), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.ServiceAccount.Annotations = map[string]string{"iam.gke.io/gcp-service-account": "reader@project.iam.gserviceaccount.com"}
			})},
		{"store variables, by name", trainJob(table, location, "S3_ENDPOINT=x", "AWS_REGION=eu-1"), variables("AWS_REGION=us-1", "AZURE_TENANT_ID=t"),
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Env = []v1alpha1.StoreVariable{{Name: "AWS_REGION", Value: "eu-1"}, {Name: "AZURE_TENANT_ID", Value: "t"}, {Name: "S3_ENDPOINT", Value: "x"}}
			})},
		{"the first epoch", trainJob(table, location, "FIRST_EPOCH={\"seed\": 7,\n\"global_batch\":256}"), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.FirstEpoch = `{"seed":7,"global_batch":256}`
			})},
		{"readiness", trainJob(table, location, "READINESS_INITIAL_DELAY_SECONDS=0", "READINESS_PERIOD_SECONDS=20", "READINESS_FAILURE_THRESHOLD=9"), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Readiness = &v1alpha1.Readiness{PeriodSeconds: 20, FailureThreshold: 9}
			})},
		{"the gate's own", trainJob(table, location, "READY_TIMEOUT=2h", "PROGRESS_INTERVAL=5s", "GATE=counted"), nil, plain(nil)},
		{"the platform's defaults", trainJob(table, location, "CLUSTER_SIZE=4", "WORKER_CPU="),
			append(variables("CLUSTER_SIZE=9", "WORKER_CPU=3", "CACHE_IMAGE=x", "STORAGE_URI=hf://x", "IDLE_TTL=5m", "OTHER=y"),
				corev1.EnvVar{Name: "TRAIN_JOB_NAME", ValueFrom: &corev1.EnvVarSource{}}),
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.DataNodes = 3
				a.DataNode.Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("3")}
			})},
		{"own metadata beats the platform's catalog", trainJob(table, location), variables("CATALOG_URI=https://catalog.example.com"), plain(nil)},
		{"own catalog beats the platform's metadata", trainJob(table, "CATALOG_URI=https://catalog.example.com"), variables(location), plain(catalog(nil))},
		{"own query beats the platform's filter", trainJob(table+"?filter=a=1", location), variables("FILTER=b=2"),
			plain(func(_ *Request, a *v1alpha1.ArrowCache) { a.Filter = new("a=1") })},
		{"a grace of its own", trainJob(table, location, "SUSPEND_GRACE=0s"), variables("SUSPEND_GRACE=1h"),
			plain(func(r *Request, _ *v1alpha1.ArrowCache) {
				r.Cache.Retention.SuspendGrace = &metav1.Duration{}
			})},
		{"shared", trainJob(table, location, "CACHE_SCOPE=namespace", "IDLE_TTL=10h"), nil,
			plain(func(r *Request, _ *v1alpha1.ArrowCache) {
				r.Shared, r.Name = true, "shared-6ac6a06fba48dc9a"
				r.Cache.Retention = kept(10 * time.Hour)
			})},
		{"shared by the platform's choice", trainJob(table, location), variables("CACHE_SCOPE=namespace"),
			plain(func(r *Request, _ *v1alpha1.ArrowCache) {
				r.Shared, r.Name = true, "shared-6ac6a06fba48dc9a"
				r.Cache.Retention = kept(time.Hour)
			})},
		{"not shared by its own choice", trainJob(table, location, "CACHE_SCOPE=job"), variables("CACHE_SCOPE=namespace"), plain(nil)},
		{"reference", trainJob("datacache://reviews", "CLUSTER_SIZE=1", "METADATA_LOC=", "READY_TIMEOUT=2h"), variables("CLUSTER_SIZE=9"),
			&Request{References: []Reference{{Name: "reviews", Key: types.NamespacedName{Namespace: "team-a", Name: "reviews"}}}}},
		{"reference to another namespace", trainJob("datacache://team-b/reviews"), nil,
			&Request{References: []Reference{{Name: "team-b/reviews", Key: types.NamespacedName{Namespace: "team-b", Name: "reviews"}}}}},
		{"a dataset", trainJob("datacache://team-b/reviews/tok_v1.2"), nil,
			&Request{References: []Reference{{Name: "team-b/reviews/tok_v1.2", Key: types.NamespacedName{Namespace: "team-b", Name: "reviews"}, Dataset: "tok_v1.2"}}, Dataset: "tok_v1.2"}},
		{"puts", trainJob(table, location, "PUTS=true"), nil, plain(func(_ *Request, a *v1alpha1.ArrowCache) { a.Puts = &v1alpha1.Puts{Enabled: true} })},
		{"a step", trainJob(table, location, `DERIVE={"dataset":"tok","image":"tok:3","command":["python3","tok.py"],"workers":4}`), nil,
			plain(func(r *Request, a *v1alpha1.ArrowCache) {
				a.Puts = &v1alpha1.Puts{Enabled: true}
				a.Derive = &v1alpha1.Derive{Dataset: "tok", Image: "tok:3", Command: []string{"python3", "tok.py"}, Workers: 4}
				r.Shared, r.Name, r.Dataset = true, "shared-4b37a67db8d20f38", "tok"
				r.Cache.Retention = kept(time.Hour)
			})},
		{"the platform's step, not shared by its choice", trainJob(table, location), variables("CACHE_SCOPE=job", `DERIVE={"dataset":"tok","image":"tok:3"}`),
			plain(func(r *Request, a *v1alpha1.ArrowCache) {
				r.Dataset, a.Puts, a.Derive = "tok", &v1alpha1.Puts{Enabled: true}, &v1alpha1.Derive{Dataset: "tok", Image: "tok:3"}
			})},
		{"several references", trainJob("datacache://web,team-a/code,team-b/web", "READY_TIMEOUT=2h"), nil,
			&Request{References: []Reference{
				{Name: "web", Key: types.NamespacedName{Namespace: "team-a", Name: "web"}},
				{Name: "team-a/code", Key: types.NamespacedName{Namespace: "team-a", Name: "code"}},
				{Name: "team-b/web", Key: types.NamespacedName{Namespace: "team-b", Name: "web"}},
			}}},
		{"sixteen references", trainJob("datacache://" + strings.Join(numbered(16), ",")), nil, &Request{References: references(numbered(16)...)}},
	}
	api := jobtest.DataCacheCRD(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, errs := parse(tt.job, Step{Env: tt.defaults})
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
			if got.References != nil {
				return
			}
			if refused := api.Refusals(t, got.Cache); len(refused) > 0 {
				t.Errorf("the API refuses it: %v", refused)
			}
		})
	}
}

// TestSharedNames checks that requests for the same rows have the same name and compare as equal, even after the API server has
// stored them, and that requests for other rows differ in both.
func TestSharedNames(t *testing.T) {
	const filter = "FILTER=a = 1"
	asks := func(uri string, env ...string) *Request {
		request, errs := parse(trainJob(uri, append(env, "CACHE_SCOPE=namespace")...), Step{})
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		return request
	}
	moment := func(at string) *Request { return asks(table+"?snapshot="+at, location, filter) }
	groups := map[string]map[string]*Request{
		"the first": {
			"as it is":    asks(table, location, filter),
			"white space": asks(table, location, "FILTER=a=1"),
			"parentheses": asks(table, location, "FILTER=(1 = a)"),
			"the URI":     asks(table+"?filter=a%3D1", location),
			"sizes":       asks(table, location, filter, "CLUSTER_SIZE=9", "IDLE_TTL=1s", "AWS_REGION=x"),
		},
		"a moment": {
			"whole seconds": moment("2026-01-01T00:00:00Z"),
			"no fraction":   moment("2026-01-01T00:00:00.000Z"),
			"another zone":  moment("2026-01-01T01:00:00%2B01:00"),
		},
		"half a second later": {"": moment("2026-01-01T00:00:00.5Z"), "another zone": moment("2026-01-01T01:00:00.500%2B01:00")},
		"another moment":      {"": moment("2026-01-01T00:00:01Z")},
		"no filter":           {"": asks(table, location), "blank": asks(table, location, "FILTER= ")},
		"another filter":      {"": asks(table, location, "FILTER=a = 2")},
		"another table":       {"": asks("cache://demo/other", location, filter)},
		"a level":             {"": asks("cache://demo.reviews/a", location, filter)},
		"columns":             {"": asks(table, location, filter, "COLUMNS=a,b"), "spaces": asks(table, location, filter, "COLUMNS= a , b")},
		"columns' order":      {"": asks(table, location, filter, "COLUMNS=b,a")},
		"a snapshot":          {"": asks(table+"?snapshot=1", location, filter), "zeros": asks(table+"?snapshot=001", location, filter)},
		"a branch":            {"": asks(table+"?snapshot=b1", location, filter)},
		"other metadata":      {"": asks(table, location+"2", filter)},
		"trusted manifests":   {"": asks(table, location, filter, "TRUST_MANIFESTS=true")},
		"a catalog":           {"": asks(table, "CATALOG_URI=https://x", filter)},
		"its warehouse":       {"": asks(table, "CATALOG_URI=https://x", "CATALOG_WAREHOUSE=w", filter)},
		"another catalog":     {"": asks(table, "CATALOG_URI=https://y", filter)},
		"a step": {
			"":      asks(table, location, filter, `DERIVE={"dataset":"tok","image":"tok:3","command":["python3","tok.py"]}`),
			"sizes": asks(table, location, filter, `DERIVE={"image":"tok:3","dataset":"tok","command":["python3","tok.py"],"workers":9,"resources":{"requests":{"cpu":"2"}}}`),
		},
		"another dataset": {"": asks(table, location, filter, `DERIVE={"dataset":"tok2","image":"tok:3","command":["python3","tok.py"]}`)},
		"another image":   {"": asks(table, location, filter, `DERIVE={"dataset":"tok","image":"tok:4","command":["python3","tok.py"]}`)},
		"another command": {"": asks(table, location, filter, `DERIVE={"dataset":"tok","image":"tok:3","command":["python3","tok2.py"]}`)},
		"a variable":      {"": asks(table, location, filter, `DERIVE={"dataset":"tok","image":"tok:3","command":["python3","tok.py"],"env":[{"name":"LENGTH","value":"9"}]}`)},
	}
	byHand := stored(t, moment("2026-01-01T00:00:00Z").Cache.Arrow) // as a user of kubectl might write it
	byHand.Snapshot.AsOf = new("2026-01-01T01:00:00.0+01:00")
	if !SameRows(byHand, groups["a moment"]["whole seconds"].Cache.Arrow) {
		t.Error("a moment written in another zone has other rows")
	}
	for group, requests := range groups {
		for member, request := range requests {
			if !strings.HasPrefix(request.Name, "shared-") || len(request.Name) > 43 {
				t.Errorf("%q is no name for a DataCache", request.Name)
			}
			for other, others := range groups {
				for name, against := range others {
					same := SameRows(stored(t, request.Cache.Arrow), against.Cache.Arrow)
					if want := group == other; same != want || (request.Name == against.Name) != want {
						t.Errorf("%s, %s against %s, %s: same rows %t, names %s and %s; want the same: %t",
							group, member, other, name, same, request.Name, against.Name, want)
					}
				}
			}
		}
	}
}

// TestSharedNamesByReaders checks that TrainJobs that say different things of who reads their rows get caches of their own: one that serves anyone
// must not be shared with a TrainJob that did not ask for that.
func TestSharedNamesByReaders(t *testing.T) {
	names := map[string]string{}
	for _, readers := range []string{"", "Known", "Anyone"} {
		request, errs := parse(trainJob(table, location, "CACHE_SCOPE=namespace", "READERS="+readers), Step{})
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		if other, twice := names[request.Name]; twice {
			t.Errorf("READERS=%s and READERS=%s share %s", readers, other, request.Name)
		}
		names[request.Name] = readers
	}
}

// stored returns a cache as the API server returns it.
func stored(t *testing.T, arrow *v1alpha1.ArrowCache) *v1alpha1.ArrowCache {
	t.Helper()
	text, err := json.Marshal(arrow)
	if err != nil {
		t.Fatal(err)
	}
	back := &v1alpha1.ArrowCache{}
	if err := json.Unmarshal(text, back); err != nil {
		t.Fatal(err)
	}
	return back
}

func keys() *v1alpha1.Credentials {
	return &v1alpha1.Credentials{SecretRef: corev1.LocalObjectReference{Name: "keys"}}
}

func kept(idle time.Duration) v1alpha1.Retention {
	return v1alpha1.Retention{IdleTTL: &metav1.Duration{Duration: idle}, DeleteAfterIdle: &metav1.Duration{Duration: 24 * time.Hour}}
}

func TestOriginalRuntime(t *testing.T) {
	tests := []struct {
		name       string
		job        *trainer.TrainJob
		kind, want string
	}{
		{"used as it is", trainJob(table), "ClusterTrainingRuntime", "torch-distributed"},
		{"retargeted", edited(trainJob(table), annotated(wellknown.AnnotationRuntime, "a")), "ClusterTrainingRuntime", "a"},
		{"retargeted, namespaced", edited(trainJob(table), annotated(wellknown.AnnotationRuntime, "TrainingRuntime/a")), "TrainingRuntime", "a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if job := Read(tt.job, ""); job.OriginalKind != tt.kind || job.OriginalName != tt.want {
				t.Errorf("%s/%s, want %s/%s", job.OriginalKind, job.OriginalName, tt.kind, tt.want)
			}
		})
	}
}
