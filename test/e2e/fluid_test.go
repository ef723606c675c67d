// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	fluidapi "github.com/fluid-cloudnative/fluid/api/v1alpha1"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// fluidImage has the FUSE client location-fuse (hack/fluid): its file system has one file for each mount, with the mount's location.
const fluidImage, fluidTag = "datacache/fluid", "dev"

// severalContainers is a runtime whose pods have an init container and another one besides that which trains.
const severalContainers = "several-containers"

// TestFluid follows files from the SDK to all containers of all pods: a first job waits until Fluid has made its claim, a second one uses the
// same Dataset, and when the cache is idle nothing of it is left, neither objects nor mounts. The manager is killed while another job waits; so the
// test is not parallel. FLUID_RUNS is the number of first and second jobs, for 'make bench NAME=fluid'.
func TestFluid(t *testing.T) {
	ns := namespace(t)
	needsFluid(t)
	addSeveralContainers(t, ns)
	runs, err := strconv.Atoi(cmp.Or(os.Getenv("FLUID_RUNS"), "1"))
	if err != nil {
		t.Fatalf("FLUID_RUNS: %v", err)
	}
	for i := range runs {
		sharesFiles(t, ns, fmt.Sprintf("s3://bucket/pictures-%d", i), i)
	}

	location := "s3://bucket/other"
	r := train(t, ns, filesJob("interrupted", location, thinProfile(t, fluidImage)))
	dc := cacheOfFiles(t, ns, location)
	appears(t, &fluidapi.Dataset{}, ns, dc.Name)
	killManagers(t)
	readFiles(t, r, location)
}

// sharesFiles runs two jobs that name the same files, one after the other, and logs how long each took to read its first byte.
func sharesFiles(t *testing.T, ns, location string, i int) {
	t.Helper()
	began := time.Now()
	first := train(t, ns, filesJob(fmt.Sprintf("first-%d", i), location, thinProfile(t, fluidImage)))
	cold := readFiles(t, first, location).Sub(began)
	dc := cacheOfFiles(t, ns, location)
	set := appears(t, &fluidapi.Dataset{}, ns, dc.Name)

	began = time.Now()
	second := train(t, ns, filesJob(fmt.Sprintf("second-%d", i), location, thinProfile(t, fluidImage)))
	warm := readFiles(t, second, location).Sub(began)
	t.Logf("TrainJob to first byte: cold %.1f s, warm %.1f s", cold.Seconds(), warm.Seconds())
	if again := appears(t, &fluidapi.Dataset{}, ns, dc.Name); again.UID != set.UID {
		t.Errorf("the second job's Dataset %s was made anew", dc.Name)
	}

	await(t, "the cache to be unused", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(dc), dc); err != nil || dc.Status.Users == 0 {
			return err
		}
		return fmt.Errorf("it is used by %v", dc.Status.UsedBy)
	})
	if err := cluster.Client.Patch(t.Context(), dc, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"retention":{"idleTTL":"0s"}}}`))); err != nil {
		t.Fatal(err)
	}
	nothingIsMounted(t, ns, dc.Name)
}

// nothingIsMounted waits until a cache of files is released, and what Fluid made for it is gone.
func nothingIsMounted(t *testing.T, ns, cache string) {
	t.Helper()
	cluster.DataCache(t, ns, cache, v1alpha1.StateReleased)
	fluidLeaves(t, ns, cache)
	if cluster.folder == "" {
		return
	}
	await(t, "the nodes to have no mount of the files", func() error {
		var errs []error
		for _, node := range []string{"1", "2"} {
			out, err := exec.CommandContext(t.Context(), clusterScript, "node", node, "cat", "/proc/self/mountinfo").CombinedOutput()
			if err != nil {
				t.Fatalf("cluster node %s: %v\n%s", node, err, out)
			}
			if at := strings.Index(string(out), ns+"/"+cache); at >= 0 {
				errs = append(errs, fmt.Errorf("node %s has one: %.200s", node, out[at:]))
			}
		}
		return errors.Join(errs...)
	})
}

// fluidLeaves waits until the objects that Fluid made for a cache of files are gone.
func fluidLeaves(t *testing.T, ns, cache string) {
	t.Helper()
	for _, object := range []client.Object{&fluidapi.Dataset{}, &fluidapi.ThinRuntime{}, &corev1.PersistentVolumeClaim{}} {
		cluster.Vanish(t, object, ns, cache)
	}
	cluster.Vanish(t, &corev1.PersistentVolume{}, "", ns+"-"+cache)
	cluster.Vanish(t, &batchv1.Job{}, ns, cache+"-probe")
	await(t, "the FUSE pods to go", func() error {
		var pods corev1.PodList
		if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(ns), client.MatchingLabels{"release": cache}); err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		return nil
	})
}

// readFiles waits until a job is complete, checks that every container read the location's file, and returns when the first byte was read.
func readFiles(t *testing.T, r *run, location string) time.Time {
	t.Helper()
	r.ends(t, trainer.TrainJobComplete)
	var pods corev1.PodList
	labels := client.MatchingLabels{wellknown.LabelJobSet: r.name, wellknown.LabelReplicatedJob: wellknown.NodeName}
	if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(r.namespace), labels); err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != 2 {
		t.Errorf("TrainJob %s has %d pods, want 2", r.name, len(pods.Items))
	}
	for _, pod := range pods.Items {
		containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
		if len(containers) != 3 {
			t.Errorf("pod %s has %d containers, want 3", pod.Name, len(containers))
		}
		for i := range containers {
			options := &corev1.PodLogOptions{Container: containers[i].Name}
			text, err := cluster.logs.CoreV1().Pods(r.namespace).GetLogs(pod.Name, options).DoRaw(t.Context())
			if err != nil || !strings.Contains(string(text), location) {
				t.Errorf("container %s of pod %s wrote %q (%v), want the file's content %q", containers[i].Name, pod.Name, text, err, location)
			}
		}
	}
	first := 0.0
	s := r.look(t)
	for rank := range pods.Items {
		lines := parse(t, s.Logs[fmt.Sprintf("node-%d", rank)])
		if len(lines) != 1 || lines[0].File != "/data/pictures/location.txt" || lines[0].Text != location+"\n" {
			t.Errorf("the SDK says that rank %d read %+v, want one file with the location", rank, lines)
			continue
		}
		if first == 0 || lines[0].FirstByte < first {
			first = lines[0].FirstByte
		}
	}
	if log := strings.Join(s.Logs[wellknown.StepName], "\n"); !strings.Contains(log, "ready: "+location+" can be mounted by claim") {
		t.Errorf("the step said:\n%s", log)
	}
	return time.UnixMicro(int64(first * 1e6))
}

// TestFluidImageMissing checks that the first job of a cache whose FUSE image can't be pulled fails in its step, with the reason in the step's log:
// the pod that mounts the files before a job may shows it, although Fluid calls the Dataset Ready. The pod keeps nothing from being deleted.
func TestFluidImageMissing(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	needsFluid(t)
	const image = "datacache/there-is-no-such-image"
	j := filesJob("first", "s3://bucket/pictures", thinProfile(t, image))
	j.Runtime, j.Nodes = "torch-distributed", 1
	j.Dataset["ready_timeout"] = "45s" // as long as a busy machine may need to get there
	r := train(t, ns, j)
	r.ends(t, trainer.TrainJobFailed)
	log := strings.Join(r.look(t).Logs[wellknown.StepName], "\n")
	for _, word := range []string{"the files can't be mounted on node", "-fuse-", image} {
		if !strings.Contains(log, word) {
			t.Errorf("the log of the step %s does not say %q:\n%s", wellknown.StepName, word, log)
		}
	}
	var pods corev1.PodList
	labels := client.MatchingLabels{wellknown.LabelJobSet: r.name, wellknown.LabelReplicatedJob: wellknown.NodeName}
	if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(ns), labels); err != nil || len(pods.Items) > 0 {
		t.Errorf("%d pods train without their files (%v)", len(pods.Items), err)
	}
	dc := cacheOfFiles(t, ns, "s3://bucket/pictures")
	cluster.Delete(t, dc)
	fluidLeaves(t, ns, dc.Name)
}

// needsFluid skips the test, and says so at the end of the run, where files can't be mounted. A cluster of hack/cluster must have Fluid.
func needsFluid(t *testing.T) {
	t.Helper()
	err := cluster.Client.List(t.Context(), &fluidapi.ThinRuntimeProfileList{}, client.Limit(1))
	missing := ""
	switch {
	case meta.IsNoMatchError(err) && cluster.folder == "":
		missing = "this cluster has no Fluid"
	case err != nil:
		t.Fatalf("hack/cluster/install has Fluid: %v", err)
	case cluster.folder != "":
		device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
		if err != nil {
			missing = fmt.Sprintf("no FUSE client can run on this machine: %v", err)
		} else if err := device.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if missing != "" {
		notTried(t.Name() + ": " + missing)
		t.Skip(missing)
	}
}

// filesJob returns a TrainJob of two pods that read files in the folder pictures of /data.
func filesJob(name, location, profile string) job {
	return job{
		Name: name, Runtime: severalContainers, Initializer: "Fluid", Func: "files", Image: trainerImage, Nodes: 2,
		Args: map[string]any{"folder": "/data"},
		Dataset: map[string]any{
			"location": location, "mount_path": "/data", "sub_dir_name": "pictures", "cache_runtime": "Thin", "cache_profile": profile,
		},
	}
}

// thinProfile returns the name of a ThinRuntimeProfile with the FUSE image. It stays in the cluster: Fluid needs it as long as it has a Dataset.
func thinProfile(t *testing.T, image string) string {
	t.Helper()
	profile := &fluidapi.ThinRuntimeProfile{
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-" + strings.ReplaceAll(image, "/", "-")},
		Spec: fluidapi.ThinRuntimeProfileSpec{
			FileSystemType: "fuse.location",
			Fuse: fluidapi.ThinFuseSpec{
				Image: image, ImageTag: fluidTag, ImagePullPolicy: string(corev1.PullIfNotPresent), Command: []string{"location-fuse"},
			},
		},
	}
	if err := cluster.Client.Create(t.Context(), profile); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return profile.Name
}

// addSeveralContainers adds the runtime severalContainers to the namespace: torch-distributed with two containers more, which read a file.
func addSeveralContainers(t *testing.T, ns string) {
	t.Helper()
	stock := &trainer.ClusterTrainingRuntime{}
	if err := cluster.Client.Get(t.Context(), client.ObjectKey{Name: "torch-distributed"}, stock); err != nil {
		t.Fatal(err)
	}
	spec := stock.Spec.DeepCopy()
	read := func(name string) corev1.Container {
		return corev1.Container{
			Name: name, Image: trainerImage, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"cat", "/data/pictures/location.txt"},
		}
	}
	for i := range spec.Template.Spec.ReplicatedJobs {
		if target := &spec.Template.Spec.ReplicatedJobs[i]; target.Name == wellknown.NodeName {
			pod := &target.Template.Spec.Template.Spec
			pod.InitContainers = append(pod.InitContainers, read("before"))
			pod.Containers = append(pod.Containers, read("beside"))
		}
	}
	cluster.Create(t, &trainer.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: severalContainers, Labels: stock.Labels}, Spec: *spec})
	appears(t, &trainer.TrainingRuntime{}, ns, wellknown.TwinName(severalContainers))
}

// cacheOfFiles waits for the namespace's DataCache of the location.
func cacheOfFiles(t *testing.T, ns, location string) *v1alpha1.DataCache {
	t.Helper()
	var found *v1alpha1.DataCache
	await(t, "the DataCache of "+location, func() error {
		var caches v1alpha1.DataCacheList
		if err := cluster.Client.List(t.Context(), &caches, client.InNamespace(ns)); err != nil {
			return err
		}
		for i := range caches.Items {
			if files := caches.Items[i].Spec.Fluid; files != nil && files.Mounts[0].MountPoint == location {
				found = &caches.Items[i]
				return nil
			}
		}
		return fmt.Errorf("none of %d is", len(caches.Items))
	})
	return found
}
