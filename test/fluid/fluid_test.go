// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fluid

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	fluidapi "github.com/fluid-cloudnative/fluid/api/v1alpha1"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

const profile = "test" // the ThinRuntimeProfile

// fileJob returns a TrainJob on the stock runtime torch-distributed that names files, cached by a thin runtime unless env says otherwise. env is
// name, value, name, value, ...
func fileJob(namespace, name string, env ...string) *trainer.TrainJob {
	given := map[string]string{"CACHE_RUNTIME": "Thin", "CACHE_PROFILE": profile}
	for i := 0; i+1 < len(env); i += 2 {
		given[env[i]] = env[i+1]
	}
	job := &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: trainer.TrainJobSpec{
			RuntimeRef: trainer.RuntimeRef{Name: "torch-distributed"},
			Trainer:    &trainer.Trainer{NumNodes: new(int32(1))},
			Initializer: &trainer.Initializer{Dataset: &trainer.DatasetInitializer{
				StorageUri: new("fluid+s3://bucket/imagenet"),
			}},
		},
	}
	for name, value := range given {
		if value != "" {
			job.Spec.Initializer.Dataset.Env = append(job.Spec.Initializer.Dataset.Env, corev1.EnvVar{Name: name, Value: value})
		}
	}
	slices.SortFunc(job.Spec.Initializer.Dataset.Env, func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) })
	return job
}

// TestFluid follows one installation: datacache without Fluid, then Fluid is installed, and the parts use it.
func TestFluid(t *testing.T) {
	if err := cluster.InstallRuntimes(t.Context(), "torch-distributed"); err != nil {
		t.Fatal(err)
	}
	cluster.Appear(t, &trainer.ClusterTrainingRuntime{}, "", wellknown.TwinName("torch-distributed"))
	ns := newNamespace(t)
	refused(t, fileJob(ns, "early"), "there is no kind Dataset of data.fluid.io/v1alpha1 in this cluster: install Fluid 1.0")
	byHand := thinCache(ns, "pictures", "s3://bucket/pictures")
	cluster.Create(t, byHand)
	becomes(t, ns, "pictures", "FluidMissing", "there is no kind Dataset")

	startFluid(t)
	cluster.Create(t, &fluidapi.ThinRuntimeProfile{
		ObjectMeta: metav1.ObjectMeta{Name: profile},
		Spec: fluidapi.ThinRuntimeProfileSpec{
			FileSystemType: "test", Fuse: fluidapi.ThinFuseSpec{Image: "example.com/fuse", ImageTag: "test", ImagePullPolicy: "IfNotPresent"},
		},
	})
	cluster.DataCache(t, ns, "pictures", v1alpha1.StateReady) // found without a restart

	t.Run("parts", func(t *testing.T) {
		for name, part := range map[string]func(*testing.T){
			"a job gets its files":      jobGetsItsFiles,
			"two jobs share":            twoJobsShare,
			"idle removal and new jobs": idleRemoval,
			"quota":                     quota,
			"foreign objects":           foreignObjects,
			"names collide":             namesCollide,
			"a profile is missing":      profileMissing,
			"refusals":                  refusals,
			"warnings":                  warned,
			"files can't be mounted":    mountFails,
			"a probe's nodes":           probesWhereItTrains,
			"Alluxio":                   alluxioStarts,
			"several sources":           severalSources,
			"tiers":                     tiersOfRuntimes,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				part(t)
			})
		}
	})
	t.Run("many at once", manyAtOnce)
}

func thinCache(namespace, name, location string) *v1alpha1.DataCache {
	return &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.DataCacheSpec{Fluid: &v1alpha1.FluidCache{
			Mounts:    []v1alpha1.FluidMount{{Name: "files", MountPoint: location}},
			MountPath: "/data", Runtime: v1alpha1.FluidRuntime{Kind: v1alpha1.FluidThin, Profile: profile, Replicas: 1},
		}},
	}
}

// refused checks that admission rejects the TrainJob with an error that has all parts.
func refused(t *testing.T, job *trainer.TrainJob, parts ...string) {
	t.Helper()
	err := cluster.Client.Create(t.Context(), job)
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the API server answers %v, want %q", err, part)
		}
	}
}

// becomes waits until the DataCache is not ready for the reason, with a message that has all parts.
func becomes(t *testing.T, namespace, name, reason string, parts ...string) *v1alpha1.DataCache {
	t.Helper()
	dc := &v1alpha1.DataCache{}
	cluster.Become(t, dc, namespace, name, reason, func() error {
		c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionReady)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != reason {
			return fmt.Errorf("it is %s: %+v", dc.Status.State, c)
		}
		for _, part := range parts {
			if !strings.Contains(c.Message, part) {
				return fmt.Errorf("its message is %q, want %q in it", c.Message, part)
			}
		}
		return nil
	})
	return dc
}

// newNamespace returns a namespace in which the files of caches can be mounted.
func newNamespace(t *testing.T) string {
	t.Helper()
	ns := cluster.Namespace(t)
	play(ns, func(*corev1.Pod) kubetest.Act { return kubetest.Act{} })
	return ns
}

// play sets what the pods of a namespace do. Probes of caches list the files and end, unless they are to end otherwise.
func play(namespace string, pods kubetest.Play) {
	cluster.Kubelet.Play(namespace, func(pod *corev1.Pod) kubetest.Act {
		act := pods(pod)
		if isProbe(pod) && act.Exit == nil {
			act.Exit = new(int32(0))
		}
		return act
	})
}

// isProbe reports whether a pod mounts the files of a cache before jobs may.
func isProbe(pod *corev1.Pod) bool { return pod.Labels[wellknown.LabelRole] == "probe" }

// waits runs the real gate for the pods of the steps of a namespace: their containers end when it does. It returns the gates' outputs.
func waits(t *testing.T, namespace string, others kubetest.Play) func(job string) string {
	t.Helper()
	type run struct {
		process *proctest.Process
		code    atomic.Int32
	}
	var gates lazy[*run]
	play(namespace, func(pod *corev1.Pod) kubetest.Act {
		if pod.Labels[wellknown.LabelReplicatedJob] != wellknown.StepName {
			return others(pod)
		}
		g := gates.get(pod.Labels[wellknown.LabelJobSet], func() *run {
			g := &run{}
			g.code.Store(-1)
			env := []string{"TRAIN_JOB_NAME=" + pod.Labels[wellknown.LabelJobSet], "POD_UID=" + string(pod.UID)}
			for _, v := range pod.Spec.Containers[0].Env {
				if v.Value != "" {
					env = append(env, v.Name+"="+v.Value)
				}
			}
			g.process = proctest.Start(t, "gate of "+pod.Name, env, gate, "initializer")
			go func() { g.code.Store(int32(g.process.Exit())) }()
			return g
		})
		if code := g.code.Load(); code >= 0 {
			return kubetest.Act{Exit: &code, Log: g.process.Output.String()}
		}
		return kubetest.Act{Log: g.process.Output.String()}
	})
	return func(job string) string {
		g, ok := gates.find(job)
		if !ok {
			return ""
		}
		return g.process.Output.String()
	}
}

// jobGetsItsFiles follows a TrainJob: its Dataset and runtime are made, the real step waits for the claim, and every container mounts it.
func jobGetsItsFiles(t *testing.T) {
	ns := newNamespace(t)
	log := waits(t, ns, func(*corev1.Pod) kubetest.Act { return kubetest.Act{} })
	began := time.Now()
	cluster.Create(t, fileJob(ns, "train", "MOUNT_PATH", "/data", "CACHE_NAME", "imagenet"))
	dc := cluster.DataCache(t, ns, "imagenet", v1alpha1.StateReady)
	t.Logf("from the TrainJob to a Ready cache: %.1f s", time.Since(began).Seconds())
	if dc.Status.ClaimName != "imagenet" || !slices.Equal(dc.Status.UsedBy, []string{ns + "/train"}) {
		t.Errorf("its status is %+v", dc.Status)
	}
	set := &fluidapi.Dataset{}
	cluster.Appear(t, set, ns, "imagenet")
	if !metav1.IsControlledBy(set, dc) {
		t.Errorf("the owners of the Dataset are %+v, want the DataCache", set.OwnerReferences)
	}
	runtime := &fluidapi.ThinRuntime{}
	cluster.Appear(t, runtime, ns, "imagenet")
	if len(runtime.OwnerReferences) != 1 || runtime.OwnerReferences[0].UID != set.UID {
		t.Errorf("the owners of the ThinRuntime are %+v, want the Dataset alone", runtime.OwnerReferences)
	}
	pod := trainingPod(t, ns, "train")
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		at := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/data" && m.ReadOnly })
		name := slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "DATACACHE_NAME" && v.Value == "imagenet" })
		if at < 0 || name < 0 {
			t.Errorf("container %s mounts %+v with %+v, want the files at /data and their name", c.Name, c.VolumeMounts, c.Env)
		}
	}
	if pod.Spec.NodeName == "" {
		t.Error("the pod that mounts the claim was not scheduled")
	}
	if text := log("train"); !strings.Contains(text, "ready: s3://bucket/imagenet can be mounted by claim imagenet") {
		t.Errorf("the step said:\n%s", text)
	}
}

// trainingPod waits for the pod of a TrainJob that trains, and for its node.
func trainingPod(t *testing.T, namespace, job string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	kubetest.Eventually(t, "the pod of TrainJob "+job, func() error {
		var pods corev1.PodList
		err := cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{wellknown.LabelJobSet: job, wellknown.LabelReplicatedJob: "node"})
		if err != nil {
			return err
		}
		if len(pods.Items) == 0 || pods.Items[0].Spec.NodeName == "" {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		*pod = pods.Items[0]
		return nil
	})
	return pod
}

// twoJobsShare checks that a second job uses the first one's cache, that the cache outlives the first, and that it goes when it is idle.
func twoJobsShare(t *testing.T) {
	ns := newNamespace(t)
	var done atomic.Bool
	waits(t, ns, func(*corev1.Pod) kubetest.Act {
		if done.Load() {
			return kubetest.Act{Exit: new(int32(0))}
		}
		return kubetest.Act{}
	})
	cluster.Create(t, fileJob(ns, "one", "IDLE_TTL", "0s"))
	cluster.Create(t, fileJob(ns, "two", "IDLE_TTL", "0s", "MOUNT_PATH", "/elsewhere"))
	claim := claimOf(trainingPod(t, ns, "one"))
	if other := claimOf(trainingPod(t, ns, "two")); claim == "" || claim != other {
		t.Fatalf("the jobs mount the claims %q and %q, want the same", claim, other)
	}
	dc := &v1alpha1.DataCache{}
	cluster.Become(t, dc, ns, claim, "used by both", func() error {
		if dc.Status.Users != 2 {
			return fmt.Errorf("it is used by %v", dc.Status.UsedBy)
		}
		return nil
	})
	var sets fluidapi.DatasetList
	if err := cluster.Client.List(t.Context(), &sets, client.InNamespace(ns)); err != nil || len(sets.Items) != 1 {
		t.Errorf("there are %d Datasets (%v), want one", len(sets.Items), err)
	}
	cluster.Delete(t, &trainer.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "one"}})
	cluster.Become(t, dc, ns, claim, "used by the second", func() error {
		if !slices.Equal(dc.Status.UsedBy, []string{ns + "/two"}) || dc.Status.State != v1alpha1.StateReady {
			return fmt.Errorf("it is %s and used by %v", dc.Status.State, dc.Status.UsedBy)
		}
		return nil
	})
	done.Store(true)
	cluster.DataCache(t, ns, claim, v1alpha1.StateReleased)
	cluster.Vanish(t, &fluidapi.Dataset{}, ns, claim)
	cluster.Vanish(t, &fluidapi.ThinRuntime{}, ns, claim)
	cluster.Vanish(t, &corev1.PersistentVolumeClaim{}, ns, claim)
}

// claimOf is the claim that a pod mounts.
func claimOf(pod *corev1.Pod) string {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// idleRemoval runs jobs one after the other on a cache without idleTTL, so that each removal meets a new job: no pod may mount a claim that is
// being deleted.
func idleRemoval(t *testing.T) {
	const jobs = 3
	ns := newNamespace(t)
	var dying atomic.Value
	waits(t, ns, func(pod *corev1.Pod) kubetest.Act {
		claim := &corev1.PersistentVolumeClaim{}
		err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: claimOf(pod)}, claim)
		if pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodPending && (err != nil || claim.DeletionTimestamp != nil) && t.Context().Err() == nil {
			dying.Store(fmt.Sprintf("pod %s starts with claim %q, which is going: %v", pod.Name, claimOf(pod), errors.Join(err)))
		}
		return kubetest.Act{Exit: new(int32(0))}
	})
	for i := range jobs {
		job := fileJob(ns, fmt.Sprintf("train-%d", i), "IDLE_TTL", "0s", "CACHE_NAME", "short")
		cluster.Create(t, job)
		cluster.Become(t, job, ns, job.Name, "complete", func() error {
			if !meta.IsStatusConditionTrue(job.Status.Conditions, trainer.TrainJobComplete) {
				return fmt.Errorf("its conditions are %+v", job.Status.Conditions)
			}
			return nil
		})
	}
	if wrong := dying.Load(); wrong != nil {
		t.Error(wrong)
	}
}

// quota checks that the claim asks for what is cached and not for Fluid's 100Pi, and that a quota that is still too small is told.
func quota(t *testing.T) {
	ns := newNamespace(t)
	limit := func(amount string) *corev1.ResourceQuota {
		return &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "storage"},
			Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.storage": resource.MustParse(amount)}},
		}
	}
	hard := limit("3Gi")
	cluster.Create(t, hard)
	cluster.Become(t, hard, ns, "storage", "counted", func() error {
		if len(hard.Status.Hard) == 0 {
			return errors.New("it is not yet")
		}
		return nil
	})
	small := thinCache(ns, "small", "s3://bucket/small")
	cluster.Create(t, small)
	cluster.DataCache(t, ns, "small", v1alpha1.StateReady)
	large := thinCache(ns, "large", "s3://bucket/large")
	large.Spec.Fluid.Runtime.Tiers = []v1alpha1.FluidTier{{Medium: v1alpha1.FluidMemory, Quota: resource.MustParse("5Gi")}}
	cluster.Create(t, large)
	dc := &v1alpha1.DataCache{}
	cluster.Become(t, dc, ns, "large", "held back by the quota", func() error {
		c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionReady)
		if c == nil || !strings.Contains(c.Message, "exceeded quota") {
			return fmt.Errorf("it is %s: %+v", dc.Status.State, c)
		}
		return nil
	})
}

// foreignObjects checks that a cache adopts nothing, that its state says so, and that a job which waits for it fails with the reason in its step's
// log.
func foreignObjects(t *testing.T) {
	ns := newNamespace(t)
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "claim"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	set := &fluidapi.Dataset{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "dataset"},
		Spec:       fluidapi.DatasetSpec{Mounts: []fluidapi.Mount{{Name: "files", MountPoint: "s3://bucket/other"}}},
	}
	runtime := &fluidapi.AlluxioRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "runtime"}}
	for _, object := range []client.Object{claim, set, runtime} {
		cluster.Create(t, object)
	}
	for name, kind := range map[string]string{"claim": "PersistentVolumeClaim", "dataset": "Dataset", "runtime": "AlluxioRuntime"} {
		cluster.Create(t, thinCache(ns, name, "s3://bucket/files"))
		becomes(t, ns, name, "NameTaken", kind+" "+ns+"/"+name+" exists")
	}
	for _, object := range []client.Object{claim, set, runtime} {
		before := object.GetUID()
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil || object.GetUID() != before || object.GetDeletionTimestamp() != nil {
			t.Errorf("%T %s was touched: %v", object, object.GetName(), err)
		}
	}
	err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "claim"}, &fluidapi.Dataset{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("a Dataset was made for somebody's claim: %v", err)
	}
	log := waits(t, ns, func(*corev1.Pod) kubetest.Act { return kubetest.Act{} })
	job := fileJob(ns, "train")
	job.Spec.Initializer.Dataset = &trainer.DatasetInitializer{StorageUri: new("datacache://claim")}
	cluster.Create(t, job)
	cluster.Become(t, job, ns, "train", "failed", func() error {
		if !meta.IsStatusConditionTrue(job.Status.Conditions, trainer.TrainJobFailed) {
			return fmt.Errorf("its conditions are %+v", job.Status.Conditions)
		}
		return nil
	})
	if text := log("train"); !strings.Contains(text, "PersistentVolumeClaim "+ns+"/claim exists") {
		t.Errorf("the step said:\n%s", text)
	}
}

// namesCollide checks two caches of different namespaces for which Fluid uses the same name.
func namesCollide(t *testing.T) {
	first := newNamespace(t)
	second := first + "-x"
	cluster.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: second}})
	cluster.Create(t, thinCache(first, "x-files", "s3://bucket/first"))
	cluster.DataCache(t, first, "x-files", v1alpha1.StateReady)
	cluster.Create(t, thinCache(second, "files", "s3://bucket/second"))
	becomes(t, second, "files", "NameTaken", first+"-x-files")
	cluster.DataCache(t, first, "x-files", v1alpha1.StateReady)
}

func profileMissing(t *testing.T) {
	ns := newNamespace(t)
	refused(t, fileJob(ns, "train", "CACHE_PROFILE", "none"), "there is no ThinRuntimeProfile none")
	dc := thinCache(ns, "files", "s3://bucket/files")
	dc.Spec.Fluid.Runtime.Profile = "none"
	cluster.Create(t, dc)
	cluster.Become(t, dc, ns, "files", "held back by its profile", func() error {
		c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionReady)
		if dc.Status.State == v1alpha1.StateReady || c == nil || !strings.Contains(c.Message, "none") {
			return fmt.Errorf("it is %s: %+v", dc.Status.State, c)
		}
		return nil
	})
}
