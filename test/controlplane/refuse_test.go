// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

const (
	table    = "cache://demo/reviews"
	location = "s3://lake/reviews/metadata/00001.metadata.json"
)

// refused creates a TrainJob that must be rejected, and checks that the error has the parts: field, value and fix.
func refused(t *testing.T, job *trainer.TrainJob, parts ...string) {
	t.Helper()
	err := cluster.Client.Create(t.Context(), job)
	if err == nil {
		t.Fatalf("the TrainJob was admitted, want a refusal that says %q", parts)
	}
	// The error names the webhook: it must be ours, not Trainer's.
	for _, part := range append(parts, "trainjob.datacache.kubeflow.org", "denied the request") {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the refusal lacks %q:\n%v", part, err)
		}
	}
}

// TestRefusals checks that a TrainJob that can't be served is rejected at creation, with an error that says how to fix it.
func TestRefusals(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	const (
		uri = "spec.initializer.dataset.storageUri: Invalid value: "
		env = "spec.initializer.dataset.env[1].value: Invalid value: "
	)
	with := func(pairs ...string) []corev1.EnvVar {
		return append(variables("METADATA_LOC", location), variables(pairs...)...)
	}
	tests := map[string]struct {
		uri  string
		env  []corev1.EnvVar
		want []string
	}{
		"no slash":           {"cache://demo", with(), []string{uri, `"cache://demo"`, "must be cache://<schema>/<table>"}},
		"no schema":          {"cache:///reviews", with(), []string{uri, `"cache:///reviews"`, `the schema "" has an empty name`}},
		"unknown query":      {table + "?colums=a", with(), []string{uri, `"colums"`, "columns, filter, snapshot"}},
		"CLUSTER_SIZE 2.5":   {table, with("CLUSTER_SIZE", "2.5"), []string{env, `"2.5"`, "must be an integer from 2", "the head and at least one data node"}},
		"CLUSTER_SIZE 1":     {table, with("CLUSTER_SIZE", "1"), []string{env, `"1"`, "must be an integer from 2"}},
		"quantity":           {table, with("WORKER_MEM", "2 Gb"), []string{env, `"2 Gb"`, "must be a Kubernetes quantity", `write "2Gi"`}},
		"quantity of a head": {table, with("HEAD_MEM", "2 Gb"), []string{env, `"2 Gb"`, "must be a Kubernetes quantity"}},
		"CACHE_IMAGE":        {table, with("CACHE_IMAGE", "evil"), []string{"spec.initializer.dataset.env[1].name: Forbidden", "CACHE_IMAGE can't be set by a TrainJob", "leave it out"}},
		"TRAIN_JOB_NAME":     {table, with("TRAIN_JOB_NAME", "other"), []string{"spec.initializer.dataset.env[1].name: Forbidden", "TRAIN_JOB_NAME can't be set by a TrainJob", "leave it out"}},
		"SPILL_HOST_PATH":    {table, with("SPILL_HOST_PATH", "/"), []string{"spec.initializer.dataset.env[1].name: Forbidden", "SPILL_HOST_PATH can't be set by a TrainJob", "leave it out"}},
		"misspelt variable":  {table, with("CLUSTERSIZE", "3"), []string{"spec.initializer.dataset.env[1].name: Invalid value: ", `"CLUSTERSIZE"`, "is no parameter of a cache", "CLUSTER_SIZE"}},
		"filter":             {table, with("FILTER", "label >="), []string{env, `"label >="`, "does not parse", "column 9", "expected a literal"}},
		"filter of the URI":  {table + "?filter=label%20%3E%3D", with(), []string{uri, `"filter=label >="`, "does not parse", "column 9"}},
		"no source":          {table, variables("METADATA_LOC", ""), []string{"spec.initializer.dataset.env", "METADATA_LOC"}},
		"KEP's empty schema": {"", with("SCHEMA_NAME", "", "TABLE_NAME", "reviews"),
			[]string{"spec.initializer.dataset.env: Required value", "SCHEMA_NAME and TABLE_NAME"}},
		"unknown datacache://":    {"datacache://nowhere", nil, []string{uri, `"datacache://` + ns + `/nowhere"`, "there is no DataCache nowhere", "kubectl get datacaches -n " + ns}},
		"two unknown ones":        {"datacache://nowhere,neither", nil, []string{`"datacache://` + ns + `/nowhere"`, "there is no DataCache nowhere", `"datacache://` + ns + `/neither"`}},
		"one twice":               {"datacache://nowhere," + ns + "/nowhere", nil, []string{uri, `name 2 of 2, "` + ns + `/nowhere"`, "is named twice"}},
		"datacache:// of 4 parts": {"datacache://a/b/c/d", nil, []string{uri, `"datacache://a/b/c/d"`, "must be datacache://<name>, datacache://<namespace>/<name> or"}},
		"datacache:// with a size": {"datacache://nowhere", variables("CLUSTER_SIZE", "3"),
			[]string{"spec.initializer.dataset.env[0].value: Invalid value: ", `"3"`, "has no effect", "leave CLUSTER_SIZE out"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, cacheJob(ns, "train", tt.uri, tt.env...), tt.want...)
		})
	}
}

// TestFilesNeedTheComponent checks what a manager without the component fluid, and so without rights to Fluid's kinds, says of files.
func TestFilesNeedTheComponent(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	const why = "must add the component fluid"
	refused(t, cacheJob(ns, "files", "fluid+s3://bucket/imagenet", variables("MOUNT_PATH", "/data", "CACHE_QUOTA", "1Gi")...), why)
	dc := byHand(ns)
	dc.Spec.Arrow, dc.Spec.Fluid = nil, &v1alpha1.FluidCache{
		Mounts: []v1alpha1.FluidMount{{MountPoint: "s3://bucket/imagenet", Name: "imagenet"}}, MountPath: "/data",
		Runtime: v1alpha1.FluidRuntime{Kind: v1alpha1.FluidAlluxio, Replicas: 1, Tiers: []v1alpha1.FluidTier{{Medium: "MEM", Quota: resource.MustParse("1Gi"), Path: "/dev/shm"}}},
	}
	cluster.Create(t, dc)
	cluster.Become(t, dc, ns, dc.Name, "told that files are off", func() error {
		ready := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Reason != "FluidMissing" || !strings.Contains(ready.Message, why) {
			return fmt.Errorf("its conditions are %+v", dc.Status.Conditions)
		}
		return nil
	})
	cluster.Delete(t, dc)
	cluster.Vanish(t, dc, ns, dc.Name)
}

// TestNamesThatAreTooLong covers names with which JobSet could not create the step's pods, which are named after the TrainJob; no
// other component would report that.
func TestNamesThatAreTooLong(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	long := "a" + strings.Repeat("b", 33)
	refused(t, cacheJob(ns, long, table, tableEnv()...), "metadata.name: Invalid value: ", long, "has 34 characters, at most 33 are allowed", "shorten it")

	generated := cacheJob(ns, "", table, tableEnv()...)
	generated.GenerateName = long[:29]
	refused(t, generated, "metadata.name: Invalid value: ", long[:29], "has 34 characters, at most 33 are allowed", "shorten it")

	cluster.Create(t, cacheJob(ns, long[:33], table, tableEnv()...))
	generated = cacheJob(ns, "", table, tableEnv()...)
	generated.GenerateName = long[:28]
	cluster.Create(t, generated)
	if len(generated.Name) != 33 {
		t.Errorf("the generated name %s has %d characters, want 33", generated.Name, len(generated.Name))
	}
}

// TestRuntimesThatCannotServe covers runtimes with gang scheduling, which the installation does not serve, runtimes that do not exist, and
// those labelled to have no twin.
func TestRuntimesThatCannotServe(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	stock := appears(t, &trainer.ClusterTrainingRuntime{}, "", "torch-distributed")
	gang := &trainer.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "gang"}, Spec: *stock.Spec.DeepCopy()}
	gang.Spec.PodGroupPolicy = &trainer.PodGroupPolicy{PodGroupPolicySource: trainer.PodGroupPolicySource{Coscheduling: &trainer.CoschedulingPodGroupPolicySource{}}}
	cluster.Create(t, gang)
	own := &trainer.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "own", Labels: map[string]string{wellknown.LabelDerive: "false"}}, Spec: stock.Spec}
	cluster.Create(t, own)
	tests := map[string][]string{
		"gang":    {`"gang"`, "the runtime can't be used with a cache: spec.podGroupPolicy is set", "serves no gangs", "add the component gangs"},
		"own":     {`"own"`, "its label datacache.kubeflow.org/derive=false forbids a copy", "name another runtime"},
		"missing": {`"missing"`, "there is no such TrainingRuntime", "install it or name another"},
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := cacheJob(ns, "train", table, tableEnv()...)
			job.Spec.RuntimeRef = trainer.RuntimeRef{Kind: new("TrainingRuntime"), Name: name}
			refused(t, job, append(want, "spec.runtimeRef.name: Invalid value: ")...)
		})
	}
}

// TestRuntimeThatWaitsForNoTable names a runtime that has the step that waits, whatever it is called, and no table for it.
func TestRuntimeThatWaitsForNoTable(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	twin := appears(t, &trainer.ClusterTrainingRuntime{}, "", wellknown.TwinName("torch-distributed"))
	cluster.Create(t, &trainer.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "own", Labels: twin.Labels}, Spec: twin.Spec})
	job := cacheJob(ns, "train", table)
	job.Spec.Initializer = nil
	job.Spec.RuntimeRef = trainer.RuntimeRef{Kind: new(trainer.TrainingRuntimeKind), Name: "own"}
	refused(t, job, "spec.initializer.dataset.storageUri: Invalid value", "asks for no cache, for which the step dataset-initializer of the runtime waits")
}

// TestCacheOfANamespaceThatDoesNotAllow checks that the owner of a DataCache controls which namespaces may read it.
func TestCacheOfANamespaceThatDoesNotAllow(t *testing.T) {
	t.Parallel()
	runtimes(t)
	theirs, ns := cluster.Namespace(t), cluster.Namespace(t)
	cluster.Create(t, &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: theirs, Name: "reviews"},
		Spec:       v1alpha1.DataCacheSpec{Arrow: &v1alpha1.ArrowCache{Table: "demo.reviews", MetadataLocation: new(location), DataNodes: 1, Replicas: 1}},
	})
	refused(t, cacheJob(ns, "train", "datacache://"+theirs+"/reviews"),
		"spec.initializer.dataset.storageUri: Forbidden", "the DataCache "+theirs+"/reviews is not for the namespace "+ns, "its owner must add "+ns+" to spec.access.namespaces")
	refused(t, cacheJob(ns, "train", "datacache://"+theirs+"/other"), // which does not exist
		"spec.initializer.dataset.storageUri: Forbidden", "the DataCache "+theirs+"/other is not for the namespace "+ns, "its owner must add "+ns+" to spec.access.namespaces")
	cluster.Create(t, cacheJob(theirs, "train", "datacache://reviews"))
}

// TestEmptyValuesAreUnset covers variables that the Kubeflow SDK's initializer sends as empty when the user did not set them.
func TestEmptyValuesAreUnset(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	cluster.Create(t, cacheJob(ns, "train", table, variables("CLUSTER_SIZE", "", "METADATA_LOC", location, "HEAD_CPU", "", "WORKER_MEM", "", "IAM_ROLE", "", "FILTER", "")...))
	dc := appears(t, &v1alpha1.DataCache{}, ns, "train")
	if arrow := dc.Spec.Arrow; arrow.DataNodes != 2 || arrow.Filter != nil || len(arrow.ServiceAccount.Annotations) > 0 {
		t.Errorf("the cache is %+v, want upstream's default of a head and two data nodes, no filter, no role", arrow)
	}
}
