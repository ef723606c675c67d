// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// credentialsIn describes what each container node of the TrainJob's patches mounts for its caches: the folders with the audiences of their
// tokens, and the ConfigMap with its keys.
func credentialsIn(t *testing.T, job *trainer.TrainJob) map[string][]string {
	t.Helper()
	got := map[string][]string{}
	for _, patch := range job.Spec.RuntimePatches {
		for _, each := range patch.TrainingRuntimeSpec.Template.Spec.ReplicatedJobs {
			pod := each.Template.Spec.Template.Spec
			at := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "datacache-credentials" })
			if at < 0 {
				continue
			}
			want := []trainer.ContainerPatch{{Name: "node", VolumeMounts: []corev1.VolumeMount{{Name: "datacache-credentials", MountPath: "/var/run/secrets/datacache", ReadOnly: true}}}}
			if diff := cmp.Diff(want, pod.Containers); diff != "" {
				t.Errorf("mounts of %s (-want +got):\n%s", each.Name, diff)
			}
			for _, source := range pod.Volumes[at].Projected.Sources {
				if token := source.ServiceAccountToken; token != nil {
					got[each.Name] = append(got[each.Name], fmt.Sprintf("%s %s %d", token.Path, strings.TrimPrefix(token.Audience, "datacache.kubeflow.org/"), *token.ExpirationSeconds))
				}
				if file := source.DownwardAPI; file != nil {
					got[each.Name] = append(got[each.Name], fmt.Sprint(file.Items[0].Path, " ", file.Items[0].FieldRef.FieldPath, " ", each.Template.Spec.Template.Metadata.Annotations))
				}
				if config := source.ConfigMap; config != nil {
					for _, item := range config.Items {
						got[each.Name] = append(got[each.Name], fmt.Sprintf("%s %s:%s %v", item.Path, config.Name, item.Key, *config.Optional))
					}
				}
			}
		}
	}
	return got
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	const ca = "own/ca.crt train-cache-ca:own true"
	own := []string{"own/token namespaces/team-a/datacaches/train/trainjobs/train 3600", ca}
	unique, off := admitted, admitted
	unique.Unique, off.NoCredentials = "uid-1", true
	zoneless := admitted
	zoneless.NoZoneAffinity = true
	for name, tt := range map[string]struct {
		job      *trainer.TrainJob
		runtime  string
		settings Settings
		want     map[string][]string
	}{
		"its own cache":   {trainJob(table, location), "torch-distributed", admitted, map[string][]string{"node": own}},
		"no affinity":     {trainJob(table, location), "torch-distributed", zoneless, map[string][]string{"node": own}},
		"MPI":             {trainJob(table, location), "deepspeed-distributed", admitted, map[string][]string{"node": own, "launcher": own}},
		"JAX":             {trainJob(table, location), "jax-distributed", admitted, map[string][]string{"node": own}},
		"a shared cache":  {trainJob(table, location, "CACHE_SCOPE=namespace"), "torch-distributed", admitted, map[string][]string{"node": {"own/token namespaces/team-a/datacaches/shared-6ac6a06fba48dc9a/trainjobs/train 3600", ca}}},
		"another's cache": {trainJob("datacache://team-b/reviews"), "torch-distributed", admitted, map[string][]string{"node": {"own/token namespaces/team-b/datacaches/reviews/trainjobs/train 3600", ca}}},
		"a dataset": {trainJob("datacache://team-b/reviews/tok"), "torch-distributed", admitted, map[string][]string{"node": {
			"own/dataset metadata.annotations['datacache.kubeflow.org/dataset'] map[datacache.kubeflow.org/dataset:tok]",
			"own/token namespaces/team-b/datacaches/reviews/trainjobs/train 3600", ca,
		}}},
		"what is made of a table": {trainJob(table, location, "CACHE_SCOPE=job", `DERIVE={"dataset":"tok","image":"tok:3"}`), "torch-distributed", admitted, map[string][]string{"node": {
			"own/dataset metadata.annotations['datacache.kubeflow.org/dataset'] map[datacache.kubeflow.org/dataset:tok]",
			"own/token namespaces/team-a/datacaches/train/trainjobs/train 3600", ca,
		}}},
		"several": {trainJob("datacache://web,team-b/code"), "torch-distributed", admitted, map[string][]string{"node": {
			"own/token namespaces/team-a/datacaches/web/trainjobs/train 3600", "4b5e57f6/token namespaces/team-a/datacaches/web/trainjobs/train 3600",
			"1edc4afd/token namespaces/team-b/datacaches/code/trainjobs/train 3600", ca, "4b5e57f6/ca.crt train-cache-ca:4b5e57f6 true", "1edc4afd/ca.crt train-cache-ca:1edc4afd true",
		}}},
		"generateName": {edited(trainJob(table, location), generated), "torch-distributed", unique, map[string][]string{"node": {
			"own/token placements/uid-1/trainjobs/uid-1 3600", "own/ca.crt uid-1-cache-ca:own true",
		}}},
		"generateName, another's cache": {edited(trainJob("datacache://team-b/reviews"), generated), "torch-distributed", unique, map[string][]string{"node": {
			"own/token namespaces/team-b/datacaches/reviews/trainjobs/uid-1 3600", "own/ca.crt uid-1-cache-ca:own true",
		}}},
		"generateName, without a text of its own": {edited(trainJob(table, location), generated), "torch-distributed", admitted, map[string][]string{}},
		"with somebody else's placement":          {edited(trainJob(table, location), annotated(wellknown.AnnotationPlacement, "uid-2")), "torch-distributed", admitted, map[string][]string{"node": own}},
		"off":                                     {trainJob(table, location), "torch-distributed", off, map[string][]string{}},
		"no cache":                                {trainJob("hf://x/y"), "torch-distributed", admitted, map[string][]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rt := stock(t, tt.runtime)
			for _, again := range []string{"once", "twice"} { // admission may be called again
				expect(t, mutate(tt.job, rt, tt.settings))
				rt = twin(t, stock(t, tt.runtime))
				if tt.settings.Unique != "" {
					tt.settings.Unique = "of another admission request"
				}
				if diff := cmp.Diff(tt.want, credentialsIn(t, tt.job)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", again, diff)
				}
				if _, kept := tt.job.Annotations[wellknown.AnnotationPlacement]; kept != strings.Contains(fmt.Sprint(tt.want), "uid-1") {
					t.Errorf("%s: annotations %v", again, tt.job.Annotations)
				}
			}
		})
	}
}
