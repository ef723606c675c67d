// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// words is a table from which a model can learn the label.
var words = table{Name: "words", Rows: 4096, Files: 4, Width: 240, Words: true}

const (
	bertBatch  = 32
	bertSteps  = 4096 / bertBatch // in an epoch
	bertEpochs = 2
	bertKill   = 70 // the step at which a pod is killed

	proposalsSample = "8583460a34be6c30030c14b3e402a405179b2f3fe6178771c3d8c7216e10f175" // SHA-256
)

// TestBERT trains docs/examples/bert.py's model with torch and torchrun on two nodes: undisturbed, with a pod killed in the middle of an
// epoch, and from the killed run's checkpoint with three nodes. Each run must see the rows of each step that the first one saw, and have
// the same losses.
func TestBERT(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	checkpoints := torchVolumes(t, ns)
	metadata := words.write(t)

	r := trainBERT(t, ns, checkpoints, bertJob("whole", metadata, 2, bertEpochs))
	r.ends(t, trainer.TrainJobComplete)
	whole := collect(t, r.output(t, 0), r.output(t, 1))
	learns(t, whole)

	job := bertJob("killed", metadata, 2, bertEpochs)
	copyFile(t, checkpoints, "whole", job.Name, "tokenizer.json") // its words' numbers depend on chance
	r = trainBERT(t, ns, checkpoints, job)
	before := r.passes(t, 2, bertKill)
	copyFile(t, checkpoints, job.Name, "more", "checkpoint.pt")
	copyFile(t, checkpoints, job.Name, "more", "tokenizer.json")
	pods, err := r.pods(t, 1)
	if err == nil {
		err = cluster.Client.Delete(t.Context(), &pods[0], client.GracePeriodSeconds(0))
	}
	if err != nil {
		t.Fatal(err)
	}
	r.ends(t, trainer.TrainJobComplete)
	replaced := r.output(t, 1)
	if first := replaced[0].Step; *first == 0 || *first > bertKill {
		t.Errorf("the pod in the place of the killed one began at step %d, want a checkpoint's before step %d", *first, bertKill)
	}
	killed := collect(t, append(before[0], r.output(t, 0)...), append(before[1], replaced...))
	sameTraining(t, killed, whole, 0)

	r = trainBERT(t, ns, checkpoints, bertJob("more", metadata, 3, 1))
	r.ends(t, trainer.TrainJobComplete)
	more := collect(t, r.output(t, 0), r.output(t, 1), r.output(t, 2))
	for at := range whole { // those that were trained before the checkpoint, and the epoch after
		if _, trained := more[at]; !trained && (at.epoch > 0 || at.step < bertKill) {
			delete(whole, at)
		}
	}
	sameTraining(t, more, whole, 1e-5)
}

// TestProposalsSample trains on two nodes, with two workers each, through the sample code of Kubeflow's enhancement proposal 2655, as it is
// printed there (kubeflow/community, proposals/2655-kubeflow-data-cache, Apache-2.0), on our runtime of the proposal.
func TestProposalsSample(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	torchVolumes(t, ns)
	sample, err := os.ReadFile("sdk/kep2655.txt")
	if err != nil {
		t.Fatal(err)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256(sample)); sum != proposalsSample {
		t.Fatalf("sdk/kep2655.txt has the SHA-256 %s, the proposal's text has %s", sum, proposalsSample)
	}
	const epochs = 3
	j := bertJob("proposal", words.write(t), 2, epochs)
	installOurs(t, ns)
	j.Runtime, j.Func, j.Args = withCache, "kep_training", map[string]any{"sample": string(sample), "epochs": epochs}
	r := train(t, ns, j)
	r.ends(t, trainer.TrainJobComplete)
	for rank := range 2 {
		var losses []float64
		for _, line := range r.output(t, rank) {
			if line.Step != nil {
				losses = append(losses, line.Loss)
			}
		}
		if first, last := losses[0], losses[len(losses)-1]; last > 0.6*first {
			t.Errorf("rank %d: the loss went from %.3f to %.3f in %d steps, want at most 0.6 of it", rank, first, last, len(losses))
		}
	}
	seen := map[int64]int{}
	for rank := range 2 {
		for _, line := range r.output(t, rank) {
			for _, id := range line.IDs {
				seen[id]++
			}
		}
	}
	for id := range int64(words.Rows) {
		if seen[id] != epochs {
			t.Fatalf("row %d was read %d times in %d epochs", id, seen[id], epochs)
		}
	}
}

func bertJob(name, metadata string, nodes, epochs int) job {
	j := cacheJob(name, metadata, nodes, "train_bert")
	j.Args = map[string]any{"folder": "/checkpoints/" + name, "epochs": epochs, "global_batch_size": bertBatch, "trace": true}
	j.Env = map[string]string{"OMP_NUM_THREADS": "1", "HF_HOME": "/tmp"} // sums depend on the number of threads
	j.Volumes = map[string]string{"torch": "/opt/torch", "checkpoints": "/checkpoints"}
	return j
}

// trainBERT creates the TrainJob after the folder of its checkpoints.
func trainBERT(t *testing.T, namespace, checkpoints string, j job) *run {
	t.Helper()
	if err := openFolder(filepath.Join(checkpoints, j.Name)); err != nil {
		t.Fatal(err)
	}
	return train(t, namespace, j)
}

// openFolder makes a folder that any user may write to.
func openFolder(path string) error {
	if err := os.MkdirAll(path, 0o777); err != nil {
		return err
	}
	return os.Chmod(path, 0o777) // whatever the umask is
}

func copyFile(t *testing.T, folder, from, to, name string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folder, from, name))
	if err == nil {
		err = openFolder(filepath.Join(folder, to))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, to, name), content, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// torchVolumes creates the claims "torch", the packages of the training environment, and "checkpoints", whose folder on this machine it
// returns. Only hack/cluster's nodes see this machine's files.
func torchVolumes(t *testing.T, namespace string) (checkpoints string) {
	t.Helper()
	onCluster(t, "status")
	packages, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(cluster.python)), "lib", "python3.*", "site-packages"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("%s: want one folder site-packages, found %v (%v)", cluster.python, packages, err)
	}
	checkpoints = filepath.Join(cluster.folder, "checkpoints", namespace)
	if err := openFolder(checkpoints); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(checkpoints); err != nil {
			t.Error(err)
		}
	})
	hostVolume(t, namespace, "torch", packages[0], corev1.ReadOnlyMany)
	hostVolume(t, namespace, "checkpoints", checkpoints, corev1.ReadWriteMany)
	return checkpoints
}

// hostVolume creates a claim in the namespace for a volume that is a folder of this machine, and deletes the volume at the end.
func hostVolume(t *testing.T, namespace, name, folder string, mode corev1.PersistentVolumeAccessMode) {
	t.Helper()
	size := resource.MustParse("1Gi")
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: namespace + "-" + name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:            []corev1.PersistentVolumeAccessMode{mode},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: size},
			ClaimRef:               &corev1.ObjectReference{Namespace: namespace, Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}},
		},
	}
	cluster.Create(t, volume)
	ctx := context.WithoutCancel(t.Context()) // t.Context() is canceled before cleanup
	t.Cleanup(func() {
		if err := cluster.Client.Delete(ctx, volume); err != nil {
			t.Errorf("deleting the volume %s: %v", volume.Name, err)
		}
	})
	cluster.Create(t, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: new(""), VolumeName: volume.Name,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
		},
	})
}

// output returns what a rank's pods that exist have written, their last container and the one before it.
func (r *run) output(t *testing.T, rank int) []outputLine {
	t.Helper()
	var all []outputLine
	pods, err := r.pods(t, rank)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		for _, previous := range []bool{true, false} {
			if previous && pod.Status.ContainerStatuses[0].RestartCount == 0 {
				continue
			}
			options := &corev1.PodLogOptions{Previous: previous}
			text, err := cluster.logs.CoreV1().Pods(r.namespace).GetLogs(pod.Name, options).DoRaw(t.Context())
			if err != nil {
				t.Fatalf("the log of %s: %v", pod.Name, err)
			}
			all = append(all, parse(t, strings.Split(string(text), "\n"))...)
		}
	}
	return all
}

// place is a step of an epoch, and lesson what a run trained on in it.
type (
	place  struct{ epoch, step int }
	lesson struct {
		ids  []int64 // indices of its rows: those of rank 0, then of rank 1, and so on
		loss float64 // the sum of the rows' losses
	}
)

// collect merges the output of all ranks. What a rank has trained on again, after a restart, must be what it trained on before.
func collect(t *testing.T, ranks ...[]outputLine) map[place]lesson {
	t.Helper()
	all := map[place]lesson{}
	for rank, lines := range ranks {
		own := map[place]lesson{}
		for _, line := range lines {
			if line.Step == nil {
				continue
			}
			at, one := place{line.Epoch, *line.Step}, lesson{line.IDs, line.Loss}
			if had, again := own[at]; again && (had.loss != one.loss || !slices.Equal(had.ids, one.ids)) {
				t.Errorf("rank %d trained twice on %+v: first on %+v, then on %+v", rank, at, had, one)
			}
			own[at] = one
		}
		for at, one := range own {
			sum := all[at]
			all[at] = lesson{append(slices.Clip(sum.ids), one.ids...), sum.loss + one.loss}
		}
	}
	return all
}

// learns checks that a run had each row once an epoch, and that its loss fell.
func learns(t *testing.T, run map[place]lesson) {
	t.Helper()
	loss := func(epoch, from int) (mean float64) {
		for step := range 20 {
			mean += run[place{epoch, from + step}].loss / bertBatch / 20
		}
		return mean
	}
	for epoch := range bertEpochs {
		var ids []int64
		for step := range bertSteps {
			ids = append(ids, run[place{epoch, step}].ids...)
		}
		eachOnce(t, ids, words.Rows)
	}
	first, last := loss(0, 0), loss(bertEpochs-1, bertSteps-20)
	t.Logf("mean loss of the first 20 steps %.4f, of the last 20 %.4f", first, last)
	if last > 0.6*first {
		t.Errorf("the loss went from %.4f to %.4f, want at most 0.6 of it", first, last)
	}
}

// sameTraining checks that a run had the steps of another one, with its rows and, within a relative tolerance, its losses.
func sameTraining(t *testing.T, got, want map[place]lesson, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("trained %d steps, want %d", len(got), len(want))
	}
	worst := 0.0
	for at, w := range want {
		g := got[at]
		if !slices.Equal(g.ids, w.ids) {
			t.Fatalf("%+v has the rows %v, want %v", at, g.ids, w.ids)
		}
		worst = max(worst, math.Abs(g.loss-w.loss)/w.loss)
	}
	t.Logf("%d steps with the same rows, losses differ by at most %.2g", len(got), worst)
	if worst > tolerance {
		t.Errorf("losses differ by %g of themselves, want at most %g", worst, tolerance)
	}
}
