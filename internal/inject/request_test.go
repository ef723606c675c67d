// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
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
)

func TestMatches(t *testing.T) {
	tests := []struct {
		name string
		job  *trainer.TrainJob
		want bool
	}{
		{"SDK", trainJob("cache://s/t"), true},
		{"reference", trainJob("datacache://reviews"), true},
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
			if got := Matches(tt.job); got != tt.want {
				t.Errorf("Matches = %v, want %v", got, tt.want)
			}
		})
	}
}

// plain is the request of a TrainJob that says nothing but its table and the table's metadata.
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

func withSecret(job *trainer.TrainJob, name string) *trainer.TrainJob {
	job.Spec.Initializer.Dataset.SecretRef = &corev1.LocalObjectReference{Name: name}
	return job
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
				a.Snapshot = &v1alpha1.Snapshot{ID: new(int64(9223372036854775807))}
			})},
		{"query, branch", trainJob(table+"?snapshot=main", location), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) { a.Snapshot = &v1alpha1.Snapshot{Ref: new("main")} })},
		{"query, time", trainJob(table+"?snapshot=2026-01-31T12:00:00%2B02:00", location), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Snapshot = &v1alpha1.Snapshot{AsOf: &metav1.Time{Time: time.Date(2026, 1, 31, 10, 0, 0, 0, time.UTC)}}
			})},
		{"query, empty values are none", trainJob(table+"?columns=&filter=&snapshot=", location, "COLUMNS=", "FILTER= "), nil, plain(nil)},
		{"selection by variables", trainJob(table, location, "COLUMNS=content, label ,odd name", "FILTER=label IN (1, 2)", "SNAPSHOT_ID=7"), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Columns, a.Filter, a.Snapshot = []string{"content", "label", "odd name"}, new("label IN (1, 2)"), &v1alpha1.Snapshot{ID: new(int64(7))}
			})},
		{"catalog", trainJob(table, "CATALOG_URI=https://catalog.example.com", "METADATA_LOC="), nil, plain(catalog(nil))},
		{"catalog with a warehouse and credentials", withSecret(trainJob(table, "CATALOG_URI=https://catalog.example.com", "CATALOG_WAREHOUSE=w"), "keys"), nil,
			plain(func(r *Request, a *v1alpha1.ArrowCache) {
				catalog(new("w"))(r, a)
				a.CredentialsSecretRef = &corev1.LocalObjectReference{Name: "keys"}
				a.Catalog.CredentialsSecretRef = &corev1.LocalObjectReference{Name: "keys"}
			})},
		{"credentials before admission", withSecret(trainJob(table, location), "keys"), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.CredentialsSecretRef = &corev1.LocalObjectReference{Name: "keys"}
			})},
		{"credentials after admission", func() *trainer.TrainJob {
			job := trainJob(table, location)
			job.Annotations = map[string]string{AnnotationSecret: "keys"}
			return job
		}(), nil, plain(func(_ *Request, a *v1alpha1.ArrowCache) {
			a.CredentialsSecretRef = &corev1.LocalObjectReference{Name: "keys"}
		})},
		{"Google's role", trainJob(table, location, "IAM_ROLE=reader@project.iam.gserviceaccount.com"), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.ServiceAccount.Annotations = map[string]string{"iam.gke.io/gcp-service-account": "reader@project.iam.gserviceaccount.com"}
			})},
		{"store variables, by name", trainJob(table, location, "S3_ENDPOINT=x", "AWS_REGION=eu-1"), variables("AWS_REGION=us-1", "AZURE_TENANT_ID=t"),
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Env = []v1alpha1.StoreVariable{{Name: "AWS_REGION", Value: "eu-1"}, {Name: "AZURE_TENANT_ID", Value: "t"}, {Name: "S3_ENDPOINT", Value: "x"}}
			})},
		{"readiness", trainJob(table, location, "READINESS_INITIAL_DELAY_SECONDS=0", "READINESS_PERIOD_SECONDS=20", "READINESS_FAILURE_THRESHOLD=9"), nil,
			plain(func(_ *Request, a *v1alpha1.ArrowCache) {
				a.Readiness = &v1alpha1.Readiness{PeriodSeconds: 20, FailureThreshold: 9}
			})},
		{"the gate's own", trainJob(table, location, "READY_TIMEOUT=2h", "PROGRESS_INTERVAL=5s"), nil, plain(nil)},
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
		{"shared", trainJob(table, location, "CACHE_SCOPE=namespace", "IDLE_TTL=10h"), nil,
			plain(func(r *Request, _ *v1alpha1.ArrowCache) {
				r.Shared, r.Name = true, "shared-cdc896b337a1d4b1"
				r.Cache.IdleTTL = &metav1.Duration{Duration: 10 * time.Hour}
			})},
		{"shared by the platform's choice", trainJob(table, location), variables("CACHE_SCOPE=namespace"),
			plain(func(r *Request, _ *v1alpha1.ArrowCache) {
				r.Shared, r.Name = true, "shared-cdc896b337a1d4b1"
				r.Cache.IdleTTL = &metav1.Duration{Duration: time.Hour}
			})},
		{"not shared by its own choice", trainJob(table, location, "CACHE_SCOPE=job"), variables("CACHE_SCOPE=namespace"), plain(nil)},
		{"reference", trainJob("datacache://reviews", "CLUSTER_SIZE=1", "METADATA_LOC=", "READY_TIMEOUT=2h"), variables("CLUSTER_SIZE=9"),
			&Request{Reference: &types.NamespacedName{Namespace: "team-a", Name: "reviews"}}},
		{"reference to another namespace", trainJob("datacache://team-b/reviews"), nil,
			&Request{Reference: &types.NamespacedName{Namespace: "team-b", Name: "reviews"}}},
	}
	api := dataCacheCRD(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, errs := Parse(tt.job, tt.defaults)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
			if got.Reference != nil {
				return
			}
			if refused := api.refusals(t, got.Cache); len(refused) > 0 {
				t.Errorf("the API refuses it: %v", refused)
			}
		})
	}
}

// TestSharedNames: the same rows, the same name; other rows, another.
func TestSharedNames(t *testing.T) {
	name := func(uri string, env ...string) string {
		request, errs := Parse(trainJob(uri, append(env, "CACHE_SCOPE=namespace")...), nil)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		return request.Name
	}
	first := name(table, location, "FILTER=a = 1")
	for what, other := range map[string]string{
		"white space": name(table, location, "FILTER=a=1"),
		"parentheses": name(table, location, "FILTER=(1 = a)"),
		"the URI":     name(table+"?filter=a%3D1", location),
		"sizes":       name(table, location, "FILTER=a = 1", "CLUSTER_SIZE=9", "IDLE_TTL=1s", "AWS_REGION=x"),
	} {
		if other != first {
			t.Errorf("%s changed the name from %s to %s", what, first, other)
		}
	}
	names := map[string]string{first: "the first"}
	for what, other := range map[string]string{
		"no filter":       name(table, location),
		"another filter":  name(table, location, "FILTER=a = 2"),
		"another table":   name("cache://demo/other", location, "FILTER=a = 1"),
		"a level":         name("cache://demo.reviews/a", location, "FILTER=a = 1"),
		"columns":         name(table, location, "FILTER=a = 1", "COLUMNS=a,b"),
		"columns' order":  name(table, location, "FILTER=a = 1", "COLUMNS=b,a"),
		"a snapshot":      name(table+"?snapshot=1", location, "FILTER=a = 1"),
		"a branch":        name(table+"?snapshot=b1", location, "FILTER=a = 1"),
		"a moment":        name(table+"?snapshot=2026-01-01T00:00:00Z", location, "FILTER=a = 1"),
		"other metadata":  name(table, location+"2", "FILTER=a = 1"),
		"a catalog":       name(table, "CATALOG_URI=https://x", "FILTER=a = 1"),
		"its warehouse":   name(table, "CATALOG_URI=https://x", "CATALOG_WAREHOUSE=w", "FILTER=a = 1"),
		"another catalog": name(table, "CATALOG_URI=https://y", "FILTER=a = 1"),
	} {
		if same, taken := names[other]; taken {
			t.Errorf("%s has the name of %s", what, same)
		}
		names[other] = what
	}
	for n := range names {
		if len(n) > 43 || !strings.HasPrefix(n, "shared-") {
			t.Errorf("%q is no name for a DataCache", n)
		}
	}
}
