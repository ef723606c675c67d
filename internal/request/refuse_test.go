// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/test/kit/jobtest"
)

const (
	atURI  = "spec.initializer.dataset.storageUri: "
	atEnv1 = "spec.initializer.dataset.env[1].value: Invalid value: "
)

// TestParseRefuses checks that each error names the field, the value and the fix.
func TestParseRefuses(t *testing.T) {
	tests := []struct {
		name string
		job  *trainer.TrainJob
		want []string
	}{
		{"another scheme", trainJob("hf://x/y"), []string{atURI, `"hf://x/y"`, "cache://<schema>/<table>"}},
		{"no schema", trainJob("cache:///t", location), []string{atURI, `"cache:///t"`, `the schema "" has an empty name`, "cache://<schema>/<table>"}},
		{"no table", trainJob("cache://s/", location), []string{atURI, `the table "" has an empty name`}},
		{"nothing", trainJob("cache:///", location), []string{atURI, `the schema ""`}},
		{"no slash", trainJob("cache://s", location), []string{atURI, "must be cache://<schema>/<table>"}},
		{"a third part", trainJob("cache://s/t/u", location), []string{atURI, "levels of a schema joined by dots"}},
		{"empty level", trainJob("cache://a..b/t", location), []string{atURI, `the schema "a..b" has an empty name`}},
		{"dot in the table", trainJob("cache://s/t.u", location), []string{atURI, `the table "t.u" has a dot`}},
		{"escaped slash in a name", trainJob("cache://s%2Ft/u", location), []string{atURI, `the schema "s/t" has a /`}},
		{"space in a name", trainJob("cache://s/my%20table", location), []string{atURI, `the table "my table" has a space`}},
		{"no UTF-8", trainJob("cache://s/%ff", location), []string{atURI, "is not UTF-8"}},
		{"broken escape", trainJob("cache://s/%zz", location), []string{atURI, `broken escape in "%zz"`, "%25"}},
		{"fragment", trainJob("cache://s/t?filter=a=1#b", location), []string{atURI, "write %23"}},
		{"broken query", trainJob("cache://s/t?filter=%", location), []string{atURI, "query that can't be read", "%25 stands for %"}},
		{"semicolon in the query", trainJob("cache://s/t?a;b", location), []string{atURI, "%3B for ;"}},
		{"unknown query parameter", trainJob("cache://s/t?colums=a", location), []string{atURI, `"colums"`, "columns, filter, snapshot"}},
		{"query parameter twice", trainJob("cache://s/t?columns=a&columns=b", location), []string{atURI, `"columns=b"`, "once"}},
		{"said by both", trainJob("cache://s/t?filter=a=1", location, "FILTER=b=2"), []string{atEnv1, `"b=2"`, "also given by filter of the storageUri"}},
		{"filter in the query", trainJob("cache://s/t?filter=a+%26%26+b", location), []string{atURI, `"filter=a && b"`, "column 3", "unexpected character '&'"}},
		{"long names", trainJob("cache://"+strings.Repeat("s", 600)+"/"+strings.Repeat("t", 600), location), []string{atURI, "1201 characters", "at most 1024"}},

		{"files of another scheme", trainJob("cache+http://host/name"), []string{atURI, `"cache+http://host/name"`, "cache+s3://bucket/train/"}},
		{"a split of a folder", trainJob("cache+s3://b/t/?split=train"), []string{atURI, `"split"`, "columns, filter, partitions"}},
		{"files without an address", trainJob("cache+"), []string{atURI, "must be cache+<address>"}},
		{"files with a space", trainJob("cache+s3://b/a b/"), []string{atURI, "no spaces"}},
		{"files at a snapshot", trainJob("cache+s3://b/t/?snapshot=7"), []string{atURI, `"snapshot"`, "columns, filter, partitions"}},
		{"files with half a partition", trainJob("cache+s3://b/t/?partitions=half"), []string{atURI, `"partitions=half"`, "must be auto or off"}},
		{"files and a table", trainJob("cache+s3://b/t/", "CLUSTER_SIZE=2", "TABLE_NAME=t"), []string{atEnv1, `"t"`, "leave TABLE_NAME out"}},
		{"a branch of a Delta table", trainJob("cache+delta+s3://b/t?version=main"), []string{atURI, `"version=main"`, "must be the number of a version, or a time"}},
		{"partitions of a Delta table", trainJob("cache+delta+s3://b/t?partitions=off"), []string{atURI, `"partitions"`, "columns, filter, version"}},
		{"a Delta table and metadata", trainJob("cache+delta+s3://b/t", "CLUSTER_SIZE=2", location), []string{atEnv1, "has no effect on a Delta table", "leave METADATA_LOC out"}},
		{"a version of a Delta table twice", trainJob("cache+delta+s3://b/t?version=3", "CLUSTER_SIZE=2", "SNAPSHOT_ID=4"), []string{atEnv1, "give it once"}},
		{"a Delta table of another scheme", trainJob("cache+delta+http://host/t"), []string{atURI, "cache+delta+s3://bucket/table"}},
		{"files and metadata", trainJob("cache+s3://b/t/", "CLUSTER_SIZE=2", location), []string{atEnv1, "leave METADATA_LOC out"}},

		{"KEP without a schema", trainJob("", "SCHEMA_NAME=", "TABLE_NAME=t", location), []string{"spec.initializer.dataset.env: Required", "SCHEMA_NAME and TABLE_NAME"}},
		{"KEP with a bad table", trainJob("", "SCHEMA_NAME=s", "TABLE_NAME=a b", location), []string{atEnv1, `"a b"`, `with SCHEMA_NAME "s"`, "has a space"}},
		{"table said twice", trainJob(table, location, "TABLE_NAME=t"), []string{atEnv1, "leave TABLE_NAME out"}},

		{"no source", trainJob(table, "METADATA_LOC="), []string{"spec.initializer.dataset.env: Required", "METADATA_LOC must be set", "CATALOG_URI"}},
		{"two sources", trainJob(table, location, "CATALOG_URI=https://x"), []string{atEnv1, "not both"}},
		{"path for metadata", trainJob(table, "CLUSTER_SIZE=2", "METADATA_LOC=/tmp/m.json"), []string{atEnv1, `"/tmp/m.json"`, "such as s3://"}},
		{"metadata of two lines", trainJob(table, "CLUSTER_SIZE=2", "METADATA_LOC=s3://b/m\n"), []string{atEnv1, "must be the URI"}},
		{"catalog that is none", trainJob(table, "CLUSTER_SIZE=2", "CATALOG_URI=thrift://x"), []string{atEnv1, "http or https URI"}},

		{"CLUSTER_SIZE of the SDK's num_data_nodes=2.5", trainJob(table, location, "CLUSTER_SIZE=3.5"), []string{atEnv1, `"3.5"`, "must be an integer from 2 to 1001: the head and at least one data node"}},
		{"CLUSTER_SIZE 2.5", trainJob(table, location, "CLUSTER_SIZE=2.5"), []string{atEnv1, `"2.5"`, "integer from 2"}},
		{"CLUSTER_SIZE 1", trainJob(table, location, "CLUSTER_SIZE=1"), []string{atEnv1, `"1"`, "integer from 2"}},
		{"CLUSTER_SIZE with a space", trainJob(table, location, "CLUSTER_SIZE= 3"), []string{atEnv1, `" 3"`}},
		{"CLUSTER_SIZE beyond", trainJob(table, location, "CLUSTER_SIZE=99999999999999999999"), []string{atEnv1, "1001"}},
		{"a head too small for its data nodes", trainJob(table, "CLUSTER_SIZE=1001", "HEAD_MEM=128Mi", location), []string{atEnv1, `"128Mi"`, "must be at least 268Mi", "1000 data nodes"}},
		{"more ranks than data nodes have connections for", withRanks(trainJob(table, location, "CLUSTER_SIZE=1001"), 4000, 8),
			[]string{"spec.trainer.numNodes: Invalid value: 4000", "8 processes each, these are 32000 ranks, each of which reads from at least 34 of 1000 data nodes", "at most 29411", "CLUSTER_SIZE"}},
		{"2 Gb", trainJob(table, location, "HEAD_MEM=2 Gb"), []string{atEnv1, `"2 Gb"`, `write "2Gi"`}},
		{"512m", trainJob(table, location, "WORKER_MEM=512m"), []string{atEnv1, `"512m"`, "thousandths", `write "512Mi"`}},
		{"2 bytes", trainJob(table, location, "WORKER_MEM=2"), []string{atEnv1, `at least "1Mi"`}},
		{"no memory", trainJob(table, location, "WORKER_MEM=lots"), []string{atEnv1, `"lots"`, `such as "2Gi"`}},
		{"4 cores", trainJob(table, location, "HEAD_CPU=4 cores"), []string{atEnv1, `"4 cores"`, `write "4"`}},
		{"no cpu", trainJob(table, location, "WORKER_CPU=-1"), []string{atEnv1, `"-1"`, "more than 0"}},

		{"spill of 20 bytes", trainJob(table, location, "SPILL_LIMIT=20"), []string{atEnv1, `at least "1Mi"`}},
		{"spill of 2 MiB", trainJob(table, location, "SPILL_LIMIT=2Mi"), []string{atEnv1, `"2Mi"`, "at least 16Mi"}},
		{"a class without a limit", trainJob(table, location, "SPILL_STORAGE_CLASS=fast"), []string{atEnv1, `"fast"`, "only with SPILL_LIMIT", "such as 200Gi"}},
		{"no class", trainJob(table, "SPILL_LIMIT=20Gi", "SPILL_STORAGE_CLASS=Fast disk", location), []string{"spec.initializer.dataset.env[1]", `"Fast disk"`, "name of a StorageClass"}},
		{"a folder of the machines", trainJob(table, location, "SPILL_HOST_PATH=/"), []string{"SPILL_HOST_PATH can't be set by a TrainJob", "the platform chooses folders"}},

		{"filter", trainJob(table, location, "FILTER=label >="), []string{atEnv1, `"label >="`, "does not parse", "column 9", "expected a literal"}},
		{"puts of a kind", trainJob(table, location, "PUTS=yes"), []string{atEnv1, `"yes"`, "must be true or false"}},
		{"a step as text", trainJob(table, location, "DERIVE=tok"), []string{atEnv1, "must be spec.arrow.derive of a DataCache as one JSON object", `"image":`}},
		{"a step misspelt", trainJob(table, location, `DERIVE={"dataset":"tok","imgae":"x"}`), []string{atEnv1, `unknown field "imgae"`}},
		{"two steps", trainJob(table, location, `DERIVE={"dataset":"tok","image":"x"}{}`), []string{atEnv1, "one JSON object"}},
		{"a step without a dataset", trainJob(table, location, `DERIVE={"image":"x"}`), []string{atEnv1, `dataset is ""`, "a letter or digit first"}},
		{"a step without an image", trainJob(table, location, `DERIVE={"dataset":"tok"}`), []string{atEnv1, `image is ""`}},
		{"a step of many pods", trainJob(table, location, `DERIVE={"dataset":"tok","image":"x","workers":1001}`), []string{atEnv1, "workers is 1001", "from 1 to 1000"}},
		{"a step of many words", trainJob(table, location, `DERIVE={"dataset":"tok","image":"x","command":["`+strings.Repeat(`","`, 64)+`"]}`), []string{atEnv1, "command has 65 parts", "at most 64"}},
		{"a step without puts", trainJob(table, "PUTS=false", `DERIVE={"dataset":"tok","image":"x"}`, location), []string{"spec.initializer.dataset.env[0]", `"false"`, "contradicts DERIVE"}},
		{"a step for a DataCache", trainJob("datacache://reviews/tok", "CLUSTER_SIZE=1", `DERIVE={"dataset":"tok","image":"x"}`), []string{atEnv1, "leave DERIVE out"}},
		{"a step for files", trainJob("fluid+s3://b/f", "CACHE_QUOTA=4Gi", `DERIVE={"dataset":"tok","image":"x"}`), []string{atEnv1, "DERIVE"}},
		{"a dataset that is none", trainJob("datacache://a/b/-c"), []string{atURI, `the dataset "-c" is none`, "letter or digit first"}},
		{"manifests trusted a little", trainJob(table, location, "TRUST_MANIFESTS=1"), []string{atEnv1, `"1"`, "must be true or false"}},
		{"empty column", trainJob(table, location, "COLUMNS=a,,b"), []string{atEnv1, `"a,,b"`, "empty name at place 2"}},
		{"column twice", trainJob(table, location, "COLUMNS=a,b,a"), []string{atEnv1, `names "a" twice`}},
		{"columns as JSON, but none", trainJob(table, location, `COLUMNS=["a"`), []string{atEnv1, "no JSON list of names", "content,label"}},
		{"columns as an empty JSON list", trainJob(table, location, "COLUMNS=[]"), []string{atEnv1, "names no column"}},
		{"columns as JSON, one empty", trainJob(table, location, `COLUMNS=["a",""]`), []string{atEnv1, "empty name at place 2"}},
		{"control character in a column", trainJob(table, location, "COLUMNS=a\tb"), []string{atEnv1, "control character"}},
		{"columns without number", trainJob(table, location, "COLUMNS="+manyColumns(1025)), []string{atEnv1, "1025 columns, at most 1024"}},
		{"snapshot's name in SNAPSHOT_ID", trainJob(table, location, "SNAPSHOT_ID=main"), []string{atEnv1, `"main"`, "?snapshot=main"}},
		{"negative snapshot", trainJob(table, location, "SNAPSHOT_ID=-1"), []string{atEnv1, "from 0 to"}},
		{"bad branch", trainJob(table+"?snapshot=a%20b", location), []string{atURI, `"snapshot=a b"`, "branch or tag"}},

		{"readiness", trainJob(table, location, "READINESS_PERIOD_SECONDS=0"), []string{atEnv1, `"0"`, "integer from 1"}},
		{"timeout", trainJob(table, location, "READY_TIMEOUT=600"), []string{atEnv1, `"600"`, "such as 90s"}},
		{"gate", trainJob(table, location, "GATE=Ready"), []string{atEnv1, `"Ready"`, `"ready" or "counted"`}},
		{"scope", trainJob(table, location, "CACHE_SCOPE=cluster"), []string{atEnv1, `"cluster"`, `"job"`, `"namespace"`}},
		{"idle TTL of a job's own", trainJob(table, location, "IDLE_TTL=1h"), []string{atEnv1, `"1h"`, "only with CACHE_SCOPE=namespace"}},
		{"idle TTL", trainJob(table, "CACHE_SCOPE=namespace", "IDLE_TTL=3600", location), []string{atEnv1, `"3600"`, "such as 30m"}},
		{"negative suspend grace", trainJob(table, location, "SUSPEND_GRACE=-1s"), []string{atEnv1, "not negative"}},
		{"negative idle TTL", trainJob(table, "CACHE_SCOPE=namespace", "IDLE_TTL=-1h", location), []string{atEnv1, "not negative"}},
		{"first epoch", trainJob(table, location, "FIRST_EPOCH=seed 7"), []string{atEnv1, "must be the command of an epoch as JSON"}},
		{"first epoch without a batch", trainJob(table, location, `FIRST_EPOCH={"seed":7}`), []string{atEnv1, "with seed and global_batch"}},
		{"store variable's value", trainJob(table, location, "AWS_REGION="+strings.Repeat("x", 4097)), []string{atEnv1, "AWS_REGION is too long"}},
		{"store variables without number", trainJob(table, append(manyVariables(65), location)...), []string{"spec.initializer.dataset.env: Too many", "at most 64"}},

		{"cache image", trainJob(table, location, "CACHE_IMAGE=evil"), []string{"spec.initializer.dataset.env[1].name: Forbidden", "CACHE_IMAGE", "leave it out"}},
		{"job name, even empty", trainJob(table, location, "TRAIN_JOB_NAME="), []string{"env[1].name: Forbidden", "TRAIN_JOB_NAME"}},
		{"misspelt", trainJob(table, location, "CLUSTERSIZE=3"), []string{"spec.initializer.dataset.env[1].name: Invalid", `"CLUSTERSIZE"`, "CLUSTER_SIZE", "spec.trainer.env"}},
		{"twice", trainJob(table, location, location), []string{"spec.initializer.dataset.env[1].name: Duplicate", "METADATA_LOC"}},
		{"secret by its name alone", withSecret(trainJob(table, location), "My Keys"), []string{"spec.initializer.dataset.secretRef.name", `"My Keys"`, "name of a Secret"}},
		{"secret without a name", withSecret(trainJob(table, location), ""), []string{"spec.initializer.dataset.secretRef.name: Required", "leave secretRef out"}},
		{"pointer", func() *trainer.TrainJob {
			job := trainJob(table, location)
			job.Spec.Initializer.Dataset.Env = append(job.Spec.Initializer.Dataset.Env, corev1.EnvVar{Name: "AWS_SECRET_ACCESS_KEY", ValueFrom: &corev1.EnvVarSource{}})
			return job
		}(), []string{"spec.initializer.dataset.env[1].valueFrom: Forbidden", "AWS_SECRET_ACCESS_KEY", "secretRef"}},

		{"reference without a name", trainJob("datacache://"), []string{atURI, `the name "" is no DataCache's`, "datacache://<name>"}},
		{"reference with three parts", trainJob("datacache://a/b/c/d"), []string{atURI, "datacache://<namespace>/<name>"}},
		{"reference with a query", trainJob("datacache://a?columns=b"), []string{atURI, "must have no query"}},
		{"reference to a bad name", trainJob("datacache://Reviews"), []string{atURI, `"Reviews"`, "lower case"}},
		{"reference to a bad namespace", trainJob("datacache://Team/reviews"), []string{atURI, `the namespace "Team"`}},
		{"a reference without a name", trainJob("datacache://web,"), []string{atURI, `name 2 of 2, "": the name "" is no DataCache's`, "separated by commas"}},
		{"a bad one of three references", trainJob("datacache://web,b/c/d/e,code"), []string{atURI, `name 2 of 3, "b/c/d/e": must be datacache://<name>`}},
		{"a space between references", trainJob("datacache://web, code"), []string{atURI, `name 2 of 2, " code"`}},
		{"a reference twice", trainJob("datacache://web,code,team-a/web"), []string{atURI, `name 3 of 3, "team-a/web": the DataCache team-a/web is named twice`}},
		{"too many references", trainJob("datacache://" + strings.Join(numbered(17), ",")), []string{atURI, "names 17 DataCaches, at most 16"}},
		{"references with a size", trainJob("datacache://web,code", "READY_TIMEOUT=1h", "CLUSTER_SIZE=3"), []string{atEnv1, `"3"`, "has no effect"}},
		{"reference with a size", trainJob("datacache://reviews", "READY_TIMEOUT=1h", "CLUSTER_SIZE=3"), []string{atEnv1, `"3"`, "has no effect", "leave CLUSTER_SIZE out"}},
		{"reference with a secret", withSecret(trainJob("datacache://reviews"), "keys"), []string{"secretRef.name", `"keys"`, "its own credentials"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			request, errs := parse(tt.job, Step{})
			if request != nil {
				t.Errorf("request %+v with errors", request)
			}
			expect(t, errs, tt.want)
		})
	}
}

func withRanks(job *trainer.TrainJob, nodes, perNode int32) *trainer.TrainJob {
	job.Spec.Trainer = &trainer.Trainer{NumNodes: &nodes, NumProcPerNode: &perNode}
	return job
}

func manyColumns(count int) string {
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprint("c", i)
	}
	return strings.Join(names, ",")
}

func manyVariables(count int) []string {
	env := make([]string, count)
	for i := range env {
		env[i] = fmt.Sprintf("AWS_V%d=x", i)
	}
	return env
}

// TestParseRefusesDefaults checks that errors in the platform's defaults refer to the runtime.
func TestParseRefusesDefaults(t *testing.T) {
	pointer := corev1.EnvVar{Name: "AWS_SECRET_ACCESS_KEY", ValueFrom: &corev1.EnvVarSource{}}
	_, errs := parse(trainJob(table, location), Step{Env: append(variables("CLUSTER_SIZE=2.5"), pointer)})
	expect(t, errs,
		[]string{"spec.runtimeRef: Invalid value: ", "AWS_SECRET_ACCESS_KEY", "valueFrom", "secretRef"},
		[]string{"spec.runtimeRef: Invalid value: ", `"CLUSTER_SIZE=2.5"`, "the runtime's step dataset-initializer", "integer from 2"})
}

// TestParseTellsAll checks that all errors are reported together.
func TestParseTellsAll(t *testing.T) {
	_, errs := parse(trainJob("cache://s", "CLUSTER_SIZE=1", "HEAD_MEM=2 Gb", "FILTER=a >", "CACHE_IMAGE=x"), Step{})
	expect(t, errs,
		[]string{"env[3].name", "CACHE_IMAGE"}, []string{atURI}, []string{"METADATA_LOC"}, []string{"env[2].value"}, []string{"env[0].value"}, []string{"env[1].value"})
}

// FuzzParse checks that no TrainJob causes a panic, and that accepted requests satisfy the DataCache's schema.
func FuzzParse(f *testing.F) {
	for _, seed := range []struct{ uri, env string }{
		{"cache://s/t", location}, {"cache://a.b/%C3%BC?columns=a,b&filter=x%3E1&snapshot=main", "CATALOG_URI=https://x\nCATALOG_WAREHOUSE=w"},
		{"cache://s/t?snapshot=2026-01-01T00:00:00Z", location + "\nCACHE_SCOPE=namespace\nIDLE_TTL=1h\nHEAD_MEM=1.5Gi\nWORKER_CPU=1e3"},
		{"", "SCHEMA_NAME=s\nTABLE_NAME=t\n" + location + "\nCLUSTER_SIZE=5\nIAM_ROLE=r\nAWS_REGION=x\nREADINESS_PERIOD_SECONDS=1"},
		{"cache+s3://b/t/*.parquet?columns=a&partitions=off&list=1", "CLUSTER_SIZE=2"}, {"cache+hf://datasets/a/b@v1/x?config=c&split=s", "HF_ENDPOINT=http://h"},
		{"cache+delta+s3://b/t?version=2026-01-01T00:00:00Z", "SNAPSHOT_ID=1"}, {"datacache://a/b", "READY_TIMEOUT=1h"}, {"datacache://a/b,c", ""}, {"cache://", ""}, {"cache:///", "HEAD_CPU=99999999999999E\nFILTER=a = 1"},
	} {
		f.Add(seed.uri, seed.env)
	}
	api := jobtest.DataCacheCRD(f)
	f.Fuzz(func(t *testing.T, uri, env string) {
		request, errs := parse(trainJob(uri, strings.Split(env, "\n")...), Step{})
		if (request == nil) != (len(errs) > 0) {
			t.Fatalf("request %v, errors %v", request, errs)
		}
		if request == nil || request.References != nil {
			return
		}
		if refused := api.Refusals(t, request.Cache); len(refused) > 0 {
			t.Fatalf("accepted, but the API refuses it: %v", refused)
		}
	})
}
