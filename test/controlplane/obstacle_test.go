// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// obstacle is a way to prevent a TrainJob from getting its cache.
type obstacle struct {
	setUp  func(t *testing.T, namespace string)            // called before the TrainJob is created
	job    func(t *testing.T, ns string) *trainer.TrainJob // nil: a TrainJob with its own cache
	act    kubetest.Act                                    // simulated state of the cache's pods
	after  func(t *testing.T, namespace string)            // called when the TrainJob's step waits
	event  string                                          // reason of the TrainJob's event
	want   []string                                        // parts of the event's message and of a line in the step's log
	reason string                                          // of the DataCache's condition Ready; "": there is no DataCache
}

var obstacles = map[string]obstacle{
	"a quota of DataCaches": {
		setUp: func(t *testing.T, ns string) {
			t.Helper()
			quota(t, ns, "count/datacaches.datacache.kubeflow.org", "0")
		},
		event: "CacheFailed", want: []string{"no cache: ", "exceeded quota: small"},
	},
	"a quota of memory": {
		setUp: func(t *testing.T, ns string) { t.Helper(); quota(t, ns, "requests.memory", "500Mi") },
		event: "CacheProvisioning", want: []string{"StatefulSet train-cache: ", "exceeded quota: small"}, reason: "FailedCreate",
	},
	"a quota of ephemeral storage": {
		setUp: func(t *testing.T, ns string) { t.Helper(); quota(t, ns, "requests.ephemeral-storage", "1Gi") },
		job: func(t *testing.T, ns string) *trainer.TrainJob {
			t.Helper()
			return cacheJob(ns, "train", table, append(tableEnv(), variables("SPILL_LIMIT", "2Gi")...)...)
		},
		act:   kubetest.Act{Unready: true}, // the head waits
		event: "CacheProvisioning", want: []string{"StatefulSet train-cache-0: ", "exceeded quota: small"}, reason: "FailedCreate",
	},
	"a quota of claims": {
		setUp: func(t *testing.T, ns string) { t.Helper(); quota(t, ns, "requests.storage", "1Gi") },
		job: func(t *testing.T, ns string) *trainer.TrainJob {
			t.Helper()
			return cacheJob(ns, "train", table, append(tableEnv(), variables("SPILL_LIMIT", "2Gi", "SPILL_STORAGE_CLASS", "fast")...)...)
		},
		act:   kubetest.Act{Unready: true},
		event: "CacheProvisioning", want: []string{"Pod train-cache-0-", "ephemeral volume spill: ", "exceeded quota: small"}, reason: "FailedBinding",
	},
	"PodSecurity": {
		job: violating, event: "CacheProvisioning",
		want: []string{"StatefulSet reviews-cache: ", `violates PodSecurity "baseline`, "hostNetwork"}, reason: "FailedCreate",
	},
	"an admission policy": {
		setUp: denied, event: "CacheFailed", want: []string{"create LeaderWorkerSet ", "denied request: no large sets"}, reason: "Refused",
	},
	"a webhook that is down": {
		setUp: unreachable, event: "CacheFailed", want: []string{"create NetworkPolicy ", "failed calling webhook"}, reason: "Refused",
	},
	"no image": {
		act: kubetest.Act{Waiting: "ImagePullBackOff"}, event: "CacheProvisioning", want: []string{"pod train-cache-0"}, reason: "ImagePullBackOff",
	},
	"an image that is refused": {
		act: kubetest.Act{Waiting: "ErrImagePull", Message: "denied"}, event: "CacheProvisioning", want: []string{"pod train-cache-0: denied"}, reason: "ErrImagePull",
	},
	"a Secret that is not there": {
		act: kubetest.Act{Waiting: "CreateContainerConfigError", Message: `secret "s3-keys" not found`}, event: "CacheProvisioning",
		want: []string{`pod train-cache-0: secret "s3-keys" not found`}, reason: "CreateContainerConfigError",
	},
	"a program that crashes": {
		act: kubetest.Act{Exit: new(int32(1))}, event: "CacheProvisioning", want: []string{"pod train-cache-0", "exit code 1"}, reason: "CrashLoopBackOff",
	},
	"a memory limit": {
		act: kubetest.Act{Exit: new(int32(137)), Reason: "OOMKilled"}, event: "CacheProvisioning",
		want: []string{"pod train-cache-0 was killed at its memory limit", "raise the memory"}, reason: "OOMKilled",
	},
	"a volume that is not there": {
		act: kubetest.Act{Waiting: "ContainerCreating"}, after: unmounted, event: "CacheProvisioning",
		want: []string{"Pod train-cache-0: ", `configmap "ca" not found`}, reason: "FailedMount",
	},
	"no node": {
		job: nowhere, event: "CacheProvisioning", want: []string{"pod reviews-cache-0 can't be scheduled", "node affinity/selector"}, reason: "Unschedulable",
	},
}

// TestObstacles checks that the reason why a TrainJob gets no cache, or why its pods don't start, is in its events and in the log of
// the waiting step. The test runs the real program of that step, to which no head answers.
func TestObstacles(t *testing.T) {
	t.Parallel()
	runtimes(t)
	admin := cluster.Namespace(t)
	allow(t, "", admin, "admin")
	page := visit(t, webhookPort).as(t, admin, "admin")
	for name, o := range obstacles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := cluster.Namespace(t)
			cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
				if isCachePod(pod) {
					return o.act
				}
				return kubetest.Act{}
			})
			if o.setUp != nil {
				o.setUp(t, ns)
			}
			job := cacheJob(ns, "train", table, tableEnv()...)
			if o.job != nil {
				job = o.job(t, ns)
			}
			cluster.Create(t, job)
			gate := waitingStep(t, ns, "train")
			if o.after != nil {
				o.after(t, ns)
			}
			kubetest.Eventually(t, "the event "+o.event, func() error { return warned(t, job, o.event, o.want) })
			kubetest.Eventually(t, "the step's log", func() error { return lacks(gate.Output.String(), o.want) })
			want := append([]string{"; fix: "}, o.want...)
			if o.reason != "" {
				want = append(want, "Pending: "+o.reason+": ")
			}
			kubetest.Eventually(t, "the diagnosis", func() error { return blocks(t, client.ObjectKeyFromObject(job), want) })
			if o.reason != "" {
				name := "train"
				if len(job.Spec.Initializer.Dataset.Env) == 0 { // it uses the DataCache of byHand
					name = "reviews"
				}
				shown(t, page, ns, name, v1alpha1.ConditionReady, o.reason, o.want)
			}
		})
	}
}

// warned checks for a warning event of the TrainJob with the parts.
func warned(t *testing.T, job *trainer.TrainJob, reason string, parts []string) error {
	t.Helper()
	return recorded(t, job, corev1.EventTypeWarning, reason, parts)
}

// recorded checks for an event of the TrainJob of the type with the parts.
func recorded(t *testing.T, job *trainer.TrainJob, kind, reason string, parts []string) error {
	t.Helper()
	var events corev1.EventList
	if err := cluster.Client.List(t.Context(), &events, client.InNamespace(job.Namespace)); err != nil {
		return err
	}
	err := errors.New("there is no event of it")
	for _, e := range events.Items {
		if e.InvolvedObject.Kind == "TrainJob" && e.InvolvedObject.Name == job.Name && e.Reason == reason && e.Type == kind {
			if err = lacks(e.Message, parts); err == nil {
				return nil
			}
		}
	}
	return err
}

// lacks returns an error that lists the parts missing in the text.
func lacks(text string, parts []string) error {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return fmt.Errorf("no %q in %q", part, text)
		}
	}
	return nil
}

// waitingStep runs the real program of the waiting step, in place of the pod that JobSet created for it, until the end of the test.
func waitingStep(t *testing.T, namespace, job string) *proctest.Process {
	t.Helper()
	return waitingStepAt(t, namespace, job, "127.0.0.1:1")
}

// waitingStepAt is waitingStep with the addresses of heads.
func waitingStepAt(t *testing.T, namespace, job, addresses string) *proctest.Process {
	t.Helper()
	var pods corev1.PodList
	kubetest.Eventually(t, "the pod of the step", func() error {
		labels := client.MatchingLabels{"jobset.sigs.k8s.io/jobset-name": job, "jobset.sigs.k8s.io/replicatedjob-name": wellknown.StepName}
		if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace), labels); err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		return nil
	})
	c := pods.Items[0].Spec.Containers[0]
	listener := listen(t)
	address := listener.Addr().String()
	listener.Close() // the program will listen there
	args := strings.ReplaceAll(strings.Join(c.Args, " "), "--notices=:8080", "--notices="+address)
	if !strings.Contains(args, address) {
		t.Fatalf("the step runs %q, want --notices=:8080 in it", c.Args)
	}
	environment := []string{"TRAIN_JOB_NAME=" + job, "CACHE_HEAD=" + addresses}
	for _, v := range c.Env {
		if v.Name == "STORAGE_URI" {
			environment = append(environment, v.Name+"="+v.Value)
		}
	}
	step := proctest.Start(t, "step", environment, cacheserver, strings.Fields(args)...)
	heads.lead(client.ObjectKeyFromObject(&pods.Items[0]), address)
	return step
}

// quota creates a ResourceQuota with the status that its controller, which doesn't run here, would report for an empty namespace.
func quota(t *testing.T, namespace string, what corev1.ResourceName, most string) {
	t.Helper()
	hard := corev1.ResourceList{what: resource.MustParse(most)}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "small"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	cluster.Create(t, q)
	q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{what: resource.MustParse("0")}}
	if err := cluster.Client.Status().Update(t.Context(), q); err != nil {
		t.Fatal(err)
	}
}

// violating returns a TrainJob that uses a DataCache whose pods the namespace rejects.
func violating(t *testing.T, namespace string) *trainer.TrainJob {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	change(t, ns, func(ns *corev1.Namespace) { ns.Labels["pod-security.kubernetes.io/enforce"] = "baseline" })
	return usingTemplate(t, namespace, &corev1.PodSpec{HostNetwork: true})
}

// nowhere returns a TrainJob that uses a DataCache whose pods no node can run.
func nowhere(t *testing.T, namespace string) *trainer.TrainJob {
	t.Helper()
	return usingTemplate(t, namespace, &corev1.PodSpec{NodeSelector: map[string]string{"pool": "nowhere"}})
}

// unmounted reports, as a kubelet does, that a volume of the head's pod can't be mounted.
func unmounted(t *testing.T, namespace string) {
	t.Helper()
	mountFails(t, appears(t, &corev1.Pod{}, namespace, "train-cache-0"))
}

func usingTemplate(t *testing.T, namespace string, pod *corev1.PodSpec) *trainer.TrainJob {
	t.Helper()
	dc := byHand(namespace)
	dc.Spec.Arrow.Head.Template = &v1alpha1.PodTemplate{Spec: pod}
	cluster.Create(t, dc)
	return cacheJob(namespace, "train", "datacache://reviews")
}

// denied adds an admission policy that rejects every LeaderWorkerSet of the namespace.
func denied(t *testing.T, namespace string) {
	t.Helper()
	forbid(t, namespace, lws.GroupVersion.Group, "leaderworkersets", "false", "no large sets")
	set := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "any"}}
	set.Spec.StartupPolicy = lws.LeaderCreatedStartupPolicy
	set.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	refuses(t, set, "no large sets")
}

// forbid adds an admission policy that rejects the objects of the namespace for which the CEL expression is false. It takes effect some time
// later: see refuses.
func forbid(t *testing.T, namespace, group, resources, expression, message string) {
	t.Helper()
	matches := admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": namespace}},
		ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resources}},
		}}},
	}
	installed(t, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &matches, Validations: []admissionv1.Validation{{Expression: expression, Message: message}},
	}})
	installed(t, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: namespace, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}})
}

// unreachable registers a webhook without a server for every NetworkPolicy of the namespace.
func unreachable(t *testing.T, namespace string) {
	t.Helper()
	installed(t, &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: "down.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionv1.SideEffectClassNone),
		ClientConfig:      admissionv1.WebhookClientConfig{URL: new("https://127.0.0.1:1/")},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": namespace}},
		Rules: []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{"networking.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"networkpolicies"}},
		}},
	}}})
	refuses(t, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "any"}}, "failed calling webhook")
}

// installed creates a cluster-scoped object, which is deleted at the end of the test.
func installed(t *testing.T, object client.Object) {
	t.Helper()
	cluster.Create(t, object)
	ctx := context.WithoutCancel(t.Context()) // t.Context() is canceled before cleanup
	t.Cleanup(func() {
		if err := cluster.Client.Delete(ctx, object); err != nil {
			t.Error(err)
		}
	})
}

// refuses waits until the API server rejects the object with the message, since it reloads its admission configuration periodically.
func refuses(t *testing.T, object client.Object, why string) {
	t.Helper()
	kubetest.Eventually(t, "the API server to refuse", func() error {
		copied, _ := object.DeepCopyObject().(client.Object) // DeepCopyObject returns the same type
		return lacks(fmt.Sprint(cluster.Client.Create(t.Context(), copied, client.DryRunAll)), []string{why})
	})
}
