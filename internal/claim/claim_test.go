// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation"
)

func controlledBy(apiVersion, kind, name string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: "uid-of-" + "owner", Controller: new(true)}}
}

// scratchPod returns a pod of a StatefulSet with one scratch volume.
func scratchPod(edits ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "set-3", OwnerReferences: controlledBy("apps/v1", "StatefulSet", "set")},
		Spec:       corev1.PodSpec{Volumes: []corev1.Volume{{Name: "code"}, scratchVolume("scratch", PerReplica)}},
	}
	for _, edit := range edits {
		edit(pod)
	}
	return pod
}

func scratchVolume(name, value string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "a"}, Annotations: map[string]string{Mark: value}},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: new("fast"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Gi")}},
			},
		},
	}}}
}

// ofIndexedJob changes the pod to one as the Job controller creates it for an indexed Job.
func ofIndexedJob(pod *corev1.Pod) {
	pod.Name, pod.GenerateName = "", "train-node-0-7-"
	pod.OwnerReferences = controlledBy("batch/v1", "Job", "train-node-0")
	pod.Annotations = map[string]string{batchv1.JobCompletionIndexAnnotation: "7"}
	pod.Spec.Hostname = "train-node-0-7"
}

func TestMutate(t *testing.T) {
	tests := []struct {
		name string
		pod  *corev1.Pod
		want string // name of the claim
	}{
		{"StatefulSet", scratchPod(), "scratch-set-3"},
		{"indexed Job", scratchPod(ofIndexedJob), "scratch-train-node-0-7"},
		{"foreign kind with names of its own", scratchPod(func(p *corev1.Pod) { p.OwnerReferences = controlledBy("example.com/v1", "Job", "x") }), "scratch-set-3"},
		{"no controller", scratchPod(func(p *corev1.Pod) { p.OwnerReferences = nil }), "scratch-set-3"},
		{"longest name", scratchPod(func(p *corev1.Pod) { p.Name = strings.Repeat("n", 253-len("scratch-")) }), "scratch-" + strings.Repeat("n", 245)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.pod.DeepCopy()
			if errs := Mutate(tt.pod); len(errs) > 0 {
				t.Fatal(errs)
			}
			if got := tt.pod.Spec.Volumes[1].PersistentVolumeClaim; got == nil || got.ClaimName != tt.want {
				t.Errorf("the volume refers to %v, want claim %q", got, tt.want)
			}
			if !Gated(tt.pod) || tt.pod.Labels[LabelState] != StateWaiting {
				t.Errorf("gates %v, labels %v", tt.pod.Spec.SchedulingGates, tt.pod.Labels)
			}
			claims, err := Wanted(tt.pod)
			if err != nil || len(claims) != 1 {
				t.Fatalf("%d claims, %v", len(claims), err)
			}
			want := before.Spec.Volumes[1].Ephemeral.VolumeClaimTemplate
			if diff := cmp.Diff(want.Spec, claims[0].Spec); diff != "" {
				t.Errorf("the claim's spec (-template +claim):\n%s", diff)
			}
			if claims[0].Name != tt.want || claims[0].Namespace != "team-a" || claims[0].Labels["team"] != "a" || claims[0].Labels[LabelVolume] != "scratch" {
				t.Errorf("claim %+v", claims[0].ObjectMeta)
			}
		})
	}
}

func TestMutateLeavesOthersAlone(t *testing.T) {
	for name, pod := range map[string]*corev1.Pod{
		"no volume": scratchPod(func(p *corev1.Pod) { p.Spec.Volumes = nil }),
		"ordinary ephemeral volume": scratchPod(func(p *corev1.Pod) {
			delete(p.Spec.Volumes[1].Ephemeral.VolumeClaimTemplate.Annotations, Mark)
		}),
		"mark on the pod": scratchPod(func(p *corev1.Pod) {
			p.Spec.Volumes = nil
			p.Annotations = map[string]string{Mark: PerReplica}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			before := pod.DeepCopy()
			if errs := Mutate(pod); len(errs) > 0 {
				t.Fatal(errs)
			}
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Errorf("the pod was changed:\n%s", diff)
			}
		})
	}
}

// TestMutateRefuses checks that each rejection, by Mutate and by the admission policy, names the field, the value and the fix, and
// leaves the pod unchanged.
func TestMutateRefuses(t *testing.T) {
	policy := readPolicy(t)
	tests := []struct {
		name string
		pod  *corev1.Pod
		want []string
	}{
		{"another value", scratchPod(func(p *corev1.Pod) { p.Spec.Volumes[1] = scratchVolume("scratch", "shared") }),
			[]string{"spec.volumes[1].ephemeral.volumeClaimTemplate.metadata.annotations[datacache.kubeflow.org/claim]", `"shared"`, `"per-replica"`}},
		{"empty value", scratchPod(func(p *corev1.Pod) { p.Spec.Volumes[1] = scratchVolume("scratch", "") }), []string{`""`, `"per-replica"`}},
		{"Job without index", scratchPod(ofIndexedJob, func(p *corev1.Pod) { p.Annotations = nil }),
			[]string{"metadata.generateName", `"train-node-0-7-"`, "completionMode: Indexed", "take the annotation away"}},
		{"generated name", scratchPod(func(p *corev1.Pod) { p.Name, p.GenerateName = "", "web-" }), []string{"metadata.generateName", `"web-"`, "lasting identity"}},
		{"indexed, but without hostname", scratchPod(ofIndexedJob, func(p *corev1.Pod) { p.Spec.Hostname = "" }), []string{"metadata.generateName"}},
		{"node chosen", scratchPod(func(p *corev1.Pod) { p.Spec.NodeName = "n1" }), []string{"spec.nodeName", `"n1"`, "nodeSelector"}},
		{"name too long", scratchPod(func(p *corev1.Pod) { p.Name = strings.Repeat("n", 246) }),
			[]string{"spec.volumes[1].name", `"scratch"`, "254 characters, at most 253", "shorten"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.pod.DeepCopy()
			errs := Mutate(tt.pod)
			if len(errs) == 0 {
				t.Fatal("accepted")
			}
			policies := strings.Join(policy.refuse(t, tt.pod), "\n")
			for _, word := range tt.want {
				if !strings.Contains(errs.ToAggregate().Error(), word) || !strings.Contains(policies, word) {
					t.Errorf("%v\nor, by the admission policy, %s\ndoes not contain %s", errs, policies, word)
				}
			}
			if diff := cmp.Diff(before, tt.pod); diff != "" {
				t.Errorf("a refused pod was changed:\n%s", diff)
			}
		})
	}
}

func TestWantedRefuses(t *testing.T) {
	mutated := func(edit func(*corev1.Pod)) *corev1.Pod {
		pod := scratchPod()
		if errs := Mutate(pod); len(errs) > 0 {
			t.Fatal(errs)
		}
		edit(pod)
		return pod
	}
	tests := []struct {
		name, want string
		pod        *corev1.Pod
	}{
		{"another claim", `"other", want "scratch-set-3"`, mutated(func(p *corev1.Pod) { p.Spec.Volumes[1].PersistentVolumeClaim.ClaimName = "other" })},
		{"no identity any more", "hostname was changed", mutated(func(p *corev1.Pod) { p.Name = "" })},
		{"broken template", "is not a claim template", mutated(func(p *corev1.Pod) { p.Annotations[TemplateAnnotation("scratch")] = "{" })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if claims, err := Wanted(tt.pod); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("claims %v, error %v, want one with %q", claims, err, tt.want)
			}
		})
	}
}

// TestJudge covers volume a of replica b-c and volume a-b of replica c, which have the same claim name; only the first gets it.
func TestJudge(t *testing.T) {
	owner := metav1.OwnerReference{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet", Name: "train", UID: "1", Controller: new(true)}
	claimOf := func(volume, replica string, owners ...metav1.OwnerReference) *corev1.PersistentVolumeClaim {
		c := newClaim("team-a", volume, replica, &corev1.PersistentVolumeClaimTemplate{})
		c.OwnerReferences = owners
		return c
	}
	if a, b := Name("a", "b-c"), Name("a-b", "c"); a != b {
		t.Fatalf("%s and %s differ: the case below is no collision", a, b)
	}
	other := func(edit func(*metav1.OwnerReference)) metav1.OwnerReference { o := owner; edit(&o); return o }
	ending := claimOf("a", "b-c", owner)
	ending.DeletionTimestamp = &metav1.Time{}
	tests := []struct {
		name     string
		existing *corev1.PersistentVolumeClaim
		want     State
		why      string
	}{
		{"ours", claimOf("a", "b-c", owner), Ours, ""},
		{"same name, other volume", claimOf("a-b", "c", owner), Taken, `volume "a-b" of replica "c"`},
		{"made by hand", &corev1.PersistentVolumeClaim{}, Taken, "no controller"},
		{"owned, but not controlled", claimOf("a", "b-c", other(func(o *metav1.OwnerReference) { o.Controller = nil })), Taken, "no controller"},
		{"another job's", claimOf("a", "b-c", other(func(o *metav1.OwnerReference) { o.Name, o.UID = "eval", "2" })), Taken, "JobSet eval"},
		{"an earlier job's of the same name", claimOf("a", "b-c", other(func(o *metav1.OwnerReference) { o.UID = "0" })), Ending, "earlier JobSet"},
		{"terminating", ending, Ending, "being deleted"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			state, why := Judge(tt.existing, claimOf("a", "b-c"), owner)
			if state != tt.want || !strings.Contains(why, tt.why) {
				t.Errorf("state %d, %q; want %d, %q", state, why, tt.want, tt.why)
			}
		})
	}
}

// TestOpenPatch checks that other gates and labels stay, and that applying the patch twice changes nothing more.
func TestOpenPatch(t *testing.T) {
	pod := scratchPod(func(p *corev1.Pod) {
		p.UID, p.Labels = "7", map[string]string{"app": "x"}
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
	})
	if errs := Mutate(pod); len(errs) > 0 {
		t.Fatal(errs)
	}
	patch, err := OpenPatch(pod)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		before, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		after, err := strategicpatch.StrategicMergePatch(before, patch, &corev1.Pod{})
		if err != nil {
			t.Fatal(err)
		}
		pod = &corev1.Pod{}
		if err := json.Unmarshal(after, pod); err != nil {
			t.Fatal(err)
		}
		if Gated(pod) || len(pod.Spec.SchedulingGates) != 1 {
			t.Errorf("gates %v, want Kueue's alone", pod.Spec.SchedulingGates)
		}
		if diff := cmp.Diff(map[string]string{"app": "x"}, pod.Labels); diff != "" {
			t.Errorf("labels:\n%s", diff)
		}
	}
}

// FuzzMutate checks that a pod is either rejected and unchanged, or edited so that a second Mutate does nothing and its claims have
// valid, distinct names.
func FuzzMutate(f *testing.F) {
	f.Add("set-3", "", "", "", "scratch", PerReplica, "cache", PerReplica)
	f.Add("", "job-0-", "job-0", "0", "a", PerReplica, "a-b", "shared")
	f.Add("b-c", "", "", "", "a", PerReplica, "a-b", "")
	f.Add(strings.Repeat("n", 253), "", "", "3", "v", PerReplica, "w", PerReplica)
	f.Fuzz(func(t *testing.T, name, generate, hostname, index, volume1, value1, volume2, value2 string) {
		pod := scratchPod(func(p *corev1.Pod) {
			p.Name, p.GenerateName, p.Spec.Hostname = name, generate, hostname
			if index != "" {
				ofIndexedJob(p)
				p.Name, p.Spec.Hostname = name, hostname
			}
			p.Spec.Volumes = []corev1.Volume{scratchVolume(volume1, value1), scratchVolume(volume2, value2)}
		})
		before := pod.DeepCopy()
		if errs := Mutate(pod); len(errs) > 0 {
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Fatalf("refused (%v), but changed:\n%s", errs, diff)
			}
			return
		}
		once := pod.DeepCopy()
		if errs := Mutate(pod); len(errs) > 0 || !cmp.Equal(once, pod) {
			t.Fatalf("a second Mutate: %v\n%s", errs, cmp.Diff(once, pod))
		}
		if !validVolumes(volume1, volume2) || len(validation.IsDNS1123Subdomain(Replica(pod))) > 0 {
			return // the API server refuses the pod
		}
		claims, err := Wanted(pod)
		if err != nil || len(claims) != 2 || claims[0].Name == claims[1].Name {
			t.Fatalf("claims %v, %v", claims, err)
		}
		for _, c := range claims {
			if wrong := validation.IsDNS1123Subdomain(c.Name); len(wrong) > 0 {
				t.Fatalf("claim name %q: %v", c.Name, wrong)
			}
		}
	})
}

func validVolumes(names ...string) bool {
	for _, name := range names {
		if len(validation.IsDNS1123Label(name)) > 0 {
			return false
		}
	}
	return names[0] != names[1]
}
