// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

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
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/jobtest"
)

// alluxio is what files asks for with a quota of 4Gi.
func alluxio(edits ...func(*v1alpha1.FluidCache)) *v1alpha1.FluidCache {
	cache := &v1alpha1.FluidCache{
		Mounts:    []v1alpha1.FluidMount{{Name: "dataset", MountPoint: "s3://bucket/imagenet", Path: "/", ReadOnly: new(true)}},
		MountPath: "/workspace/dataset",
		Runtime: v1alpha1.FluidRuntime{
			Kind: v1alpha1.FluidAlluxio, Replicas: 1,
			Tiers: []v1alpha1.FluidTier{{Medium: v1alpha1.FluidMemory, Quota: resource.MustParse("4Gi")}},
		},
	}
	for _, edit := range edits {
		edit(cache)
	}
	return cache
}

func TestFluidRequests(t *testing.T) {
	tests := map[string]struct {
		job      *trainer.TrainJob
		defaults []string
		want     *v1alpha1.FluidCache
		name     string // "": derived
		idle     time.Duration
	}{
		"the least": {job: trainJob(files, "CACHE_QUOTA=4Gi"), want: alluxio(), idle: time.Hour},
		"all": {
			job: trainJob(files, "MOUNT_PATH=/data", "SUB_DIR_NAME=imagenet", "CACHE_RUNTIME=juicefs", "CACHE_QUOTA=4096Mi", "CACHE_MEDIUM=ssd",
				"CACHE_PATH=/mnt/a,/mnt/b", "CACHE_REPLICAS=3", "CACHE_NAME=pictures", "WARM_UP=true", "IDLE_TTL=10h", "CACHE_SCOPE=namespace", "READY_TIMEOUT=2h"),
			want: alluxio(func(c *v1alpha1.FluidCache) {
				c.Mounts[0].Name, c.Mounts[0].Path, c.MountPath, c.WarmUp = "imagenet", "/imagenet", "/data", true
				c.Runtime.Kind, c.Runtime.Replicas, c.Runtime.Tiers[0].Medium, c.Runtime.Tiers[0].Path = v1alpha1.FluidJuiceFS, 3, v1alpha1.FluidSSD, "/mnt/a,/mnt/b"
			}),
			name: "pictures", idle: 10 * time.Hour,
		},
		"the platform's defaults": {
			job:      trainJob(files, "CACHE_REPLICAS=2", "CLUSTER_SIZE=1", "METADATA_LOC="),
			defaults: []string{"CACHE_QUOTA=4Gi", "CACHE_REPLICAS=9", "METADATA_LOC=s3://for/tables", "AWS_REGION=eu"},
			want:     alluxio(func(c *v1alpha1.FluidCache) { c.Runtime.Replicas = 2 }), idle: time.Hour,
		},
		"a thin runtime": {
			job: trainJob("fluid+nfs://server/export", "CACHE_RUNTIME=Thin", "CACHE_PROFILE=nfs"),
			want: alluxio(func(c *v1alpha1.FluidCache) {
				c.Mounts[0].MountPoint = "nfs://server/export"
				c.Runtime = v1alpha1.FluidRuntime{Kind: v1alpha1.FluidThin, Profile: "nfs", Replicas: 1}
			}), idle: time.Hour,
		},
		"with keys": {
			job: edited(trainJob(files, "CACHE_QUOTA=4Gi"), annotated(wellknown.AnnotationSecret, "s3")),
			want: alluxio(func(c *v1alpha1.FluidCache) {
				c.EncryptOptions = []v1alpha1.FluidEncryptOption{
					{Name: "aws.accessKeyId", SecretName: "s3", Key: "AWS_ACCESS_KEY_ID"}, {Name: "aws.secretKey", SecretName: "s3", Key: "AWS_SECRET_ACCESS_KEY"},
				}
			}), idle: time.Hour,
		},
	}
	api := jobtest.DataCacheCRD(t)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, errs := parse(tt.job, Step{Env: variables(tt.defaults...)})
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if diff := cmp.Diff(tt.want, got.Cache.Fluid, cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })); diff != "" {
				t.Errorf("the cache differs (-want +got):\n%s", diff)
			}
			if !got.Shared || got.Cache.Arrow != nil || got.Cache.Retention.IdleTTL.Duration != tt.idle {
				t.Errorf("the request is %+v", got)
			}
			if tt.name == "" && !strings.HasPrefix(got.Name, "shared-") || tt.name != "" && got.Name != tt.name {
				t.Errorf("the name is %q, want %q", got.Name, tt.name)
			}
			if refused := api.Refusals(t, got.Cache); len(refused) > 0 {
				t.Errorf("the API refuses it: %v", refused)
			}
		})
	}
}

func TestFluidRefusals(t *testing.T) {
	quota := "CACHE_QUOTA=4Gi"
	secret := func(job *trainer.TrainJob) {
		job.Spec.Initializer.Dataset.SecretRef = &corev1.LocalObjectReference{Name: "keys"}
	}
	for name, tt := range map[string]struct {
		job  *trainer.TrainJob
		want []string
	}{
		"no location":            {trainJob("fluid+s3:/bucket", quota), []string{"storageUri", "fluid+s3:/bucket", "fluid+s3://bucket/folder"}},
		"a space":                {trainJob("fluid+s3://a b", quota), []string{"storageUri", "no spaces"}},
		"no quota":               {trainJob(files), []string{"CACHE_QUOTA", "4Gi"}},
		"a quota of cores":       {trainJob(files, "CACHE_QUOTA=4Gb"), []string{"env[0].value", `"4Gb"`, `"4Gi"`}},
		"a relative path":        {trainJob(files, quota, "MOUNT_PATH=data"), []string{`"data"`, "/data"}},
		"the root":               {trainJob(files, quota, "MOUNT_PATH=/"), []string{`"/"`, "/data"}},
		"a medium":               {trainJob(files, quota, "CACHE_MEDIUM=TAPE"), []string{`"TAPE"`, "MEM, SSD, HDD"}},
		"a disk without path":    {trainJob(files, quota, "CACHE_MEDIUM=HDD"), []string{"CACHE_PATH", "HDD"}},
		"a runtime":              {trainJob(files, quota, "CACHE_RUNTIME=Vineyard"), []string{`"Vineyard"`, "Alluxio, JuiceFS, Jindo, GooseFS, Thin"}},
		"thin without profile":   {trainJob(files, "CACHE_RUNTIME=Thin"), []string{"CACHE_PROFILE", "thinruntimeprofiles"}},
		"a profile without thin": {trainJob(files, quota, "CACHE_PROFILE=nfs"), []string{`"nfs"`, "CACHE_RUNTIME=Thin"}},
		"no worker":              {trainJob(files, quota, "CACHE_REPLICAS=0"), []string{`"0"`, "from 1"}},
		"warm-up of thin":        {trainJob(files, "CACHE_RUNTIME=Thin", "CACHE_PROFILE=nfs", "WARM_UP=true"), []string{`"true"`, "DataLoad"}},
		"a warm-up":              {trainJob(files, quota, "WARM_UP=maybe"), []string{`"maybe"`, "true or false"}},
		"the scope job":          {trainJob(files, quota, "CACHE_SCOPE=job"), []string{`"job"`, "namespace"}},
		"a name":                 {trainJob(files, quota, "CACHE_NAME=A_B"), []string{`"A_B"`, "43 characters"}},
		"two folders":            {trainJob(files, quota, "SUB_DIR_NAME=a/b"), []string{`"a/b"`, "one folder"}},
		"a table's variable":     {trainJob(files, quota, "COLUMNS=a"), []string{`"a"`, "leave COLUMNS out"}},
		"a store's variable":     {trainJob(files, quota, "AWS_REGION=eu"), []string{`"eu"`, "leave AWS_REGION out"}},
		"files' variable":        {trainJob(table, location, "MOUNT_PATH=/data"), []string{`"/data"`, "fluid+s3://"}},
		"another status":         {trainJob(table, location, "CACHE_STATUS=http://x"), []string{`"http://x"`, "leave CACHE_STATUS out"}},
		"keys of gs":             {edited(trainJob("fluid+gs://bucket/folder", quota), secret), []string{"secretRef", "keys", "encryptOptions", "datacache://"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, errs := parse(tt.job, Step{})
			expect(t, errs, tt.want)
		})
	}
}

// TestFluidNames checks that the derived name is that of the files and of how they are cached, and not of where they are mounted.
func TestFluidNames(t *testing.T) {
	name := func(env ...string) string {
		request, errs := parse(trainJob(files, append([]string{"CACHE_QUOTA=4Gi"}, env...)...), Step{})
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		return request.Name
	}
	for env, same := range map[string]bool{
		"MOUNT_PATH=/data": true, "CACHE_REPLICAS=7": true, "IDLE_TTL=3h": true, "CACHE_MEDIUM=MEM": true,
		"SUB_DIR_NAME=x": false, "CACHE_RUNTIME=Jindo": false, "CACHE_PATH=/mnt": false, "WARM_UP=true": false,
	} {
		if (name(env) == name()) != same {
			t.Errorf("with %s the name is %s, without %s", env, name(env), name())
		}
	}
}

func TestFluidDifference(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*v1alpha1.FluidCache)
		want string
	}{
		"none":     {func(c *v1alpha1.FluidCache) { c.Runtime.Replicas, c.MountPath = 9, "/elsewhere" }, ""},
		"notation": {func(c *v1alpha1.FluidCache) { c.Runtime.Tiers[0].Quota = resource.MustParse("4096Mi") }, ""},
		"place":    {func(c *v1alpha1.FluidCache) { c.Mounts[0].MountPoint = "s3://other/place" }, `spec.fluid.mounts is [{"name":"dataset","mountPoint":"s3://other/place"`},
		"quota":    {func(c *v1alpha1.FluidCache) { c.Runtime.Tiers[0].Quota = resource.MustParse("5Gi") }, `spec.fluid.runtime.tiers is [{"medium":"MEM","quota":"5Gi"}], and [{"medium":"MEM","quota":"4Gi"}] is asked for`},
		"warm-up":  {func(c *v1alpha1.FluidCache) { c.WarmUp = true }, "spec.fluid.warmUp is true, and false is asked for"},
	} {
		t.Run(name, func(t *testing.T) {
			got := FluidDifference(alluxio(tt.edit), alluxio())
			if tt.want == "" && got != "" || !strings.HasPrefix(got, tt.want) {
				t.Errorf("the difference is %q, want %q", got, tt.want)
			}
		})
	}
	if FluidDifference(nil, alluxio()) == "" {
		t.Error("a cache of a table is taken for one of files")
	}
}

func TestFluidChecks(t *testing.T) {
	job := trainJob(files, "CACHE_QUOTA=4Gi", "MOUNT_PATH=/data")
	asked, errs := parse(trainJob(files, "CACHE_QUOTA=4Gi", "CACHE_NAME=train"), Step{})
	expect(t, errs)
	have := &v1alpha1.DataCache{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train"}, Spec: v1alpha1.DataCacheSpec{Fluid: alluxio()}}
	expect(t, CheckCache(asked, have))
	expect(t, CheckName(Read(job, job.Namespace), asked, have))
	have.Spec.Fluid.Runtime.Kind = v1alpha1.FluidJindo
	expect(t, CheckCache(asked, have), []string{"CACHE_NAME=train", `spec.fluid.runtime.kind is "Jindo"`, "datacache://train"})
	expect(t, CheckReference("team-b", nil, types.NamespacedName{Namespace: "team-a", Name: "train"}, true, have), []string{"team-a/train", "team-b"})
}
