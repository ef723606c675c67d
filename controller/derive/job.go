// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/wellknown"
)

const (
	// tries is how often pods that fail are replaced: derive goes on with the parts that are missing.
	tries = 3
	// user runs the command also in images whose user is root, which the restricted Pod Security Standard refuses. Home is a folder that it can
	// write to in any image.
	user = 65532
	home = "/tmp"
	// tokenSeconds is the lifetime of a token; the kubelet renews it.
	tokenSeconds = 3600

	credentials         = "datacache-credentials"
	annotationAuthority = wellknown.Group + "/authority"
	envEndpoint         = "DATACACHE_ENDPOINT"
	envWorkers          = "DATACACHE_WORKERS"
)

func jobName(dc *v1alpha1.DataCache) string { return wellknown.CacheName(dc.Name) + "-derive" }

// jobOf returns the Job of spec.arrow.derive for a cache that is Ready. An annotation has the hash of what it depends on: a Job can't be changed, so
// that one with another hash is replaced.
func jobOf(dc *v1alpha1.DataCache) *batchv1.Job {
	step := dc.Spec.Arrow.Derive
	workers := max(step.Workers, 1)
	env := append([]corev1.EnvVar{{Name: "HOME", Value: home}}, step.Env...)
	env = append(env, variable(envEndpoint, dc.Status.Endpoint), variable(envWorkers, strconv.Itoa(int(workers)))) // the last one of a name counts
	labels := kube.CacheLabels(dc)
	delete(labels, wellknown.LabelCache) // of pods that serve rows
	labels[wellknown.LabelStepOf] = dc.Name
	labels["sidecar.istio.io/inject"] = "false" // a sidecar would not end
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{
			Name: "derive", Image: step.Image, Command: step.Command, Env: env, Resources: step.Resources,
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
		AutomountServiceAccountToken: new(false),
		EnableServiceLinks:           new(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(user)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}}
	if strings.HasPrefix(dc.Status.Endpoint, "grpc+tls://") {
		mountCredentials(dc, &template)
	}
	job := &batchv1.Job{
		ObjectMeta: kube.Owned(dc, jobName(dc)),
		Spec: batchv1.JobSpec{
			Completions: &workers, Parallelism: &workers, CompletionMode: ptr.To(batchv1.IndexedCompletion), BackoffLimit: new(int32(tries)),
			Template: template,
		},
	}
	text, err := json.Marshal([]any{template, workers, step.Dataset, dc.Status.ProvisionedTime, dc.Annotations[kube.AnnotationRetry]})
	if err != nil {
		panic(err) // texts and numbers can always be encoded
	}
	sum := sha256.Sum256(text)
	job.Annotations = map[string]string{kube.AnnotationPodSettings: hex.EncodeToString(sum[:8])}
	return job
}

// mountCredentials adds a token and the cache's CA, as training pods have them.
func mountCredentials(dc *v1alpha1.DataCache, template *corev1.PodTemplateSpec) {
	template.Annotations = map[string]string{annotationAuthority: dc.Status.CABundle}
	template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: credentials, MountPath: wellknown.CredentialsFolder, ReadOnly: true}}
	folder := wellknown.OwnCredentials + "/"
	template.Spec.Volumes = []corev1.Volume{{Name: credentials, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
			Audience: wellknown.Audience(dc.Namespace, dc.Name), ExpirationSeconds: ptr.To[int64](tokenSeconds), Path: folder + wellknown.TokenFile,
		}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
			Path: folder + wellknown.AuthorityFile, FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + annotationAuthority + "']"},
		}}}},
	}}}}}
}

func variable(name, value string) corev1.EnvVar { return corev1.EnvVar{Name: name, Value: value} }
