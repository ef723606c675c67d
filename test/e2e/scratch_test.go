// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/internal/claim"
	"github.com/kubeflow/datacache/scratch"
)

// TestCheckpointOnScratch runs the TrainJob of the documentation: a rank that is killed continues from its checkpoint. When the
// TrainJob is deleted, so are the claims, their volumes and the folders on the nodes.
func TestCheckpointOnScratch(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	needsLocalPath(t)
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "examples", "scratch-checkpoint.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	job := &trainer.TrainJob{}
	if err := yaml.UnmarshalStrict(text, job); err != nil {
		t.Fatal(err)
	}
	job.Namespace, job.Spec.Trainer.Image = ns, new(trainerImage)
	cluster.Create(t, job)

	first := podOf(t, ns, "checkpointed-node-0-0", "")
	writes(t, &first, "step 10")
	if err := cluster.Client.Delete(t.Context(), &first, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	second := podOf(t, ns, "checkpointed-node-0-0", first.UID)
	line, _, _ := strings.Cut(writes(t, &second, "starts at step"), "\n")
	step := 0
	if _, err := fmt.Sscanf(line, "starts at step %d", &step); err != nil || step < 10 {
		t.Errorf("the second pod wrote %q (%v), want it to start at step 10 or later", line, err)
	}
	ended := (&run{namespace: ns, name: job.Name}).ends(t, trainer.TrainJobComplete)
	volumes := volumesOf(t, ns, 2, ended)
	cluster.Delete(t, job)
	nothingIsLeft(t, ns, volumes)
}

// TestJobSetRestartKeepsScratch restarts a JobSet whose replicas fail unless they find what they wrote before the restart.
func TestJobSetRestartKeepsScratch(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	needsLocalPath(t)
	spec := scratchJob(2, `grep -qx "$HOSTNAME" /scratch/mark && exit 0; echo "$HOSTNAME" >/scratch/mark; exit 1`)
	spec.BackoffLimit = new(int32(0))
	set := &jobset.JobSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "again"},
		Spec: jobset.JobSetSpec{
			FailurePolicy:  &jobset.FailurePolicy{MaxRestarts: 2},
			ReplicatedJobs: []jobset.ReplicatedJob{{Name: "node", Replicas: 1, Template: batchv1.JobTemplateSpec{Spec: spec}}},
		},
	}
	cluster.Create(t, set)
	cluster.Become(t, set, ns, set.Name, "completed", func() error {
		if meta.IsStatusConditionTrue(set.Status.Conditions, string(jobset.JobSetFailed)) {
			t.Fatalf("the JobSet failed: %+v", set.Status)
		}
		if !meta.IsStatusConditionTrue(set.Status.Conditions, string(jobset.JobSetCompleted)) {
			return fmt.Errorf("its status is %+v", set.Status)
		}
		return nil
	})
	if set.Status.Restarts == 0 {
		t.Errorf("the JobSet was restarted %d times, want at least once: a new disk was not empty", set.Status.Restarts)
	}
	volumes := volumesOf(t, ns, 2, set)
	cluster.Delete(t, set)
	nothingIsLeft(t, ns, volumes)
}

// TestScratchIsOnePods checks that ReadWriteOncePod keeps any other pod from a replica's disk while its own pod runs.
func TestScratchIsOnePods(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	needsLocalPath(t)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "own"}, Spec: scratchJob(1, "sleep infinity")}
	cluster.Create(t, job)
	first := podOf(t, ns, "own-0", "")
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "thief"}, Spec: scratchJob(1, "exit 0").Template.Spec}
	other.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "scratch-own-0"}}
	cluster.Create(t, other)
	awaitEvent(t, ns, "Pod", "FailedScheduling", "ReadWriteOncePod")
	if err := cluster.Client.Delete(t.Context(), job, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
		t.Fatal(err)
	}
	cluster.Delete(t, &first)
	cluster.Become(t, other, ns, other.Name, "ended", func() error {
		if other.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("it is %s", other.Status.Phase)
		}
		return nil
	})
}

// stranded is a Job of one replica, whose pod runs on n2 and has written to its disk there.
type stranded struct {
	namespace string
	job       *batchv1.Job
	pod       corev1.Pod
}

func newStranded(t *testing.T, namespace string) *stranded {
	t.Helper()
	needsLocalPath(t)
	spec := scratchJob(1, `[ -e /scratch/mark ] && exit 0; touch /scratch/mark; sync; echo written; sleep infinity`)
	spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n2"}
	s := &stranded{namespace: namespace, job: &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "lost"}, Spec: spec}}
	cluster.Create(t, s.job)
	s.pod = podOf(t, namespace, "lost-0", "")
	writes(t, &s.pod, "written")
	return s
}

// waits checks that the Job's next pod waits for the lost node, and that events say why.
func (s *stranded) waits(t *testing.T) {
	t.Helper()
	node := &corev1.Node{}
	cluster.Become(t, node, "", "n2", "unreachable", func() error {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return nil
			}
		}
		return errors.New("it is ready")
	})
	if err := cluster.Client.Delete(t.Context(), &s.pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"Pod", "Job"} {
		awaitEvent(t, s.namespace, kind, scratch.EventStranded, "claim scratch-lost-0 is bound to the volume", "n2", "delete the claim")
	}
	var pods corev1.PodList
	if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(s.namespace)); err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != 1 || !claim.Gated(&pods.Items[0]) {
		t.Errorf("there are %d pods, want one that keeps its gate", len(pods.Items))
	}
}

// completes checks that the next pod finds what the first one wrote.
func (s *stranded) completes(t *testing.T) {
	t.Helper()
	cluster.Become(t, s.job, s.namespace, s.job.Name, "complete", func() error {
		if s.job.Status.Succeeded != 1 {
			return fmt.Errorf("its status is %+v", s.job.Status)
		}
		return nil
	})
}

// needsLocalPath skips the test on clusters without the provisioner of hack/cluster.
func needsLocalPath(t *testing.T) {
	t.Helper()
	if cluster.folder == "" {
		t.Skip("needs local-path-provisioner and the nodes' disks, as a cluster of hack/cluster has them: set DATACACHE_CLUSTER")
	}
}

// scratchJob returns an indexed Job whose replicas run a script with a scratch volume at /scratch.
func scratchJob(replicas int32, script string) batchv1.JobSpec {
	mode := batchv1.IndexedCompletion
	class := "local-path"
	template := &corev1.PersistentVolumeClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{claim.Mark: claim.PerReplica}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Mi")}},
		},
	}
	return batchv1.JobSpec{
		Parallelism: &replicas, Completions: &replicas, CompletionMode: &mode,
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{
				Name: "main", Image: trainerImage, ImagePullPolicy: corev1.PullNever, Command: []string{"sh", "-c", script},
				VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}},
			}},
			Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: template}}}},
		}},
	}
}

// podOf waits for a running pod with the hostname and another UID than before.
func podOf(t *testing.T, namespace, hostname string, before types.UID) corev1.Pod {
	t.Helper()
	var found corev1.Pod
	await(t, "a pod of "+hostname+" to run", func() error {
		var pods corev1.PodList
		if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace)); err != nil {
			return err
		}
		at := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool {
			return p.Spec.Hostname == hostname && p.UID != before && p.Status.Phase == corev1.PodRunning
		})
		if at < 0 {
			return fmt.Errorf("none of %d pods is one", len(pods.Items))
		}
		found = pods.Items[at]
		return nil
	})
	return found
}

// writes waits until a pod's log contains the words, and returns the log.
func writes(t *testing.T, pod *corev1.Pod, words string) string {
	t.Helper()
	log := ""
	await(t, fmt.Sprintf("pod %s to write %q", pod.Name, words), func() error {
		text, err := cluster.logs.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
		if err != nil {
			return err
		}
		if log = string(text); !strings.Contains(log, words) {
			return fmt.Errorf("it wrote %q", log)
		}
		return nil
	})
	return log
}

// awaitEvent waits for an event about an object of the kind whose message contains the words.
func awaitEvent(t *testing.T, namespace, kind, reason string, words ...string) {
	t.Helper()
	await(t, fmt.Sprintf("event %s of a %s with %q", reason, kind, words), func() error {
		var events corev1.EventList
		if err := cluster.Client.List(t.Context(), &events, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, e := range events.Items {
			missing := slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e.Message, w) })
			if e.InvolvedObject.Kind == kind && e.Reason == reason && !missing {
				return nil
			}
		}
		return fmt.Errorf("there are %d others", len(events.Items))
	})
}

// volumesOf returns the volumes of the namespace's claims. It checks their number, their owner, and that their folders exist.
func volumesOf(t *testing.T, namespace string, number int, owner client.Object) []corev1.PersistentVolume {
	t.Helper()
	var claims corev1.PersistentVolumeClaimList
	if err := cluster.Client.List(t.Context(), &claims, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	if len(claims.Items) != number {
		t.Fatalf("there are %d claims, want %d", len(claims.Items), number)
	}
	var volumes []corev1.PersistentVolume
	for _, c := range claims.Items {
		if !metav1.IsControlledBy(&c, owner) {
			t.Errorf("claim %s is owned by %+v", c.Name, c.OwnerReferences)
		}
		volume := appears(t, &corev1.PersistentVolume{}, "", c.Spec.VolumeName)
		if err := folder(t, volume, "-d"); err != nil {
			t.Error(err)
		}
		volumes = append(volumes, *volume)
	}
	return volumes
}

// nothingIsLeft waits until the claims, the volumes and their folders are gone.
func nothingIsLeft(t *testing.T, namespace string, volumes []corev1.PersistentVolume) {
	t.Helper()
	await(t, "the claims to go", func() error {
		var claims corev1.PersistentVolumeClaimList
		if err := cluster.Client.List(t.Context(), &claims, client.InNamespace(namespace)); err != nil || len(claims.Items) == 0 {
			return err
		}
		return fmt.Errorf("%d are there", len(claims.Items))
	})
	for i := range volumes {
		cluster.Vanish(t, &corev1.PersistentVolume{}, "", volumes[i].Name)
		if err := folder(t, &volumes[i], "! -e"); err != nil {
			t.Error(err)
		}
	}
}

// folder runs test(1) on the folder of a volume, on its node.
func folder(t *testing.T, volume *corev1.PersistentVolume, test string) error {
	t.Helper()
	path := ""
	switch source := volume.Spec.PersistentVolumeSource; {
	case source.HostPath != nil:
		path = source.HostPath.Path
	case source.Local != nil:
		path = source.Local.Path
	}
	node := volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
	arguments := append([]string{"node", strings.TrimPrefix(node, "n"), "test"}, append(strings.Fields(test), path)...)
	if out, err := exec.CommandContext(t.Context(), clusterScript, arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("on node %s: test %s %s: %w\n%s", node, test, path, err, out)
	}
	return nil
}
