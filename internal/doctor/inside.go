// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/diagnose"
	"github.com/kubeflow/datacache/internal/wellknown"
)

const (
	// lifetime is how long the pods of a doctor run at most. They go with their Jobs, which it deletes; the cluster does so too, forgetAfter
	// their end, if it was killed.
	lifetime    = 3 * time.Minute
	forgetAfter = time.Minute
	// defaultSettled is how long a NetworkPolicy may take to act.
	defaultSettled = 15 * time.Second
	// cleanUp bounds the deletion of the Jobs.
	cleanUp = 10 * time.Second
	// look is the pause between two looks at a pod.
	look = 500 * time.Millisecond
)

// inside checks by two pods of the namespace: one accepts connections, the other connects to it, to the API server and to the webhook.
func (d *Doctor) inside(ctx context.Context) ([]diagnose.Finding, error) {
	image := diagnose.Finding{Subject: "image"}
	if d.twin == nil {
		image.State, image.Unseen = "not known, since no training runtime waits for a cache", true
		return []diagnose.Finding{image}, nil
	}
	listener, err := d.start(ctx, "listens", "reach", "--listen=:"+strconv.Itoa(wellknown.HTTPPort), "--for="+lifetime.String())
	if apierrors.IsForbidden(err) {
		image.State, image.Unseen = "you may not start pods: "+err.Error(), true
		return []diagnose.Finding{image}, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.stop(ctx, listener)
	pod, why, err := d.await(ctx, listener)
	if err != nil {
		return nil, err
	}
	if why != "" {
		image.Subject, image.State, image.Blocks = "pod "+cmp.Or(pod.Name, listener.Name), why, true
		image.Fix = "make the image available to the nodes, or set another: docs/install.md, Images; or free room on a node, as the message says"
		return []diagnose.Finding{image}, nil
	}
	image.State = fmt.Sprintf("%s runs on node %s", pod.Spec.Containers[0].Image, pod.Spec.NodeName)
	found, err := d.connect(ctx, listener, pod)
	return append([]diagnose.Finding{image}, found...), err
}

// connect lets a second pod connect to the listener and to what caches need, and then closes the listener to it by a NetworkPolicy.
func (d *Doctor) connect(ctx context.Context, listener *batchv1.Job, pod *corev1.Pod) ([]diagnose.Finding, error) {
	direct := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(wellknown.HTTPPort))
	names := []string{"kubernetes.default.svc:443"}
	if d.manager != nil {
		names = append(names, "datacache-webhook."+d.manager.Namespace+".svc:443")
	}
	client, err := d.start(ctx, "connects", append([]string{"reach", "--for=" + lifetime.String(), direct}, names...)...)
	if err != nil {
		return nil, err
	}
	defer d.stop(ctx, client)
	from, why, err := d.await(ctx, client)
	if err != nil || why != "" {
		return []diagnose.Finding{{Subject: "pod " + client.Name, State: why, Blocks: true, Fix: "as the message says"}}, err
	}
	results, err := d.results(ctx, from, d.Patience, func(seen map[string]string) bool { return len(seen) > len(names) })
	if err != nil {
		return nil, err
	}
	findings := []diagnose.Finding{dns(results, names), network(results, direct)}
	if findings[1].Blocks {
		return findings, nil
	}
	policy, err := d.policy(ctx, listener, from, direct)
	return append(findings, policy), err
}

// dns says whether pods resolve names of Services.
func dns(results map[string]string, names []string) diagnose.Finding {
	f := diagnose.Finding{Subject: "DNS", State: "pods resolve " + strings.Join(names, ", ")}
	for _, name := range names {
		if is := results[name]; strings.Contains(is, "lookup ") {
			f.State, f.Blocks = is, true
			f.Fix = "look at the cluster's DNS (kubectl -n kube-system get pods -l k8s-app=kube-dns), and for a NetworkPolicy that keeps pods of the namespace from port 53"
		}
	}
	return f
}

// network says whether a pod reaches another one of the namespace.
func network(results map[string]string, direct string) diagnose.Finding {
	f := diagnose.Finding{Subject: "network", State: "a pod reaches port " + strconv.Itoa(wellknown.HTTPPort) + " of another one"}
	if is := results[direct]; is != reached {
		f.State, f.Blocks = "a pod does not reach another one of its namespace: "+cmp.Or(is, "no result"), true
		f.Fix = "look for a NetworkPolicy of the namespace that denies all, or a mesh; ranks need port 50051 of a cache, and its servers each other's 8080"
	}
	return f
}

// policy says whether the cluster enforces NetworkPolicies. Where it does not, caches work, and every pod reaches them.
func (d *Doctor) policy(ctx context.Context, listener *batchv1.Job, from *corev1.Pod, direct string) (diagnose.Finding, error) {
	f := diagnose.Finding{Subject: "NetworkPolicies"}
	denied := &networkingv1.NetworkPolicy{ObjectMeta: d.meta("denies"), Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{labelDoctor: listener.Name}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
	}}
	denied.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(listener, batchv1.SchemeGroupVersion.WithKind("Job"))}
	if err := d.Client.Create(ctx, denied); err != nil {
		if apierrors.IsForbidden(err) {
			f.State, f.Unseen = "you may not create one to see whether it is enforced", true
			return f, nil
		}
		return f, err
	}
	results, err := d.results(ctx, from, cmp.Or(d.settled, defaultSettled), func(seen map[string]string) bool { return seen[direct] != reached })
	f.State = "are enforced: they keep other namespaces from caches"
	if results[direct] == reached {
		f.State = fmt.Sprintf("are not enforced, or only after more than %v: whoever reaches the network of pods reads the rows of caches", cmp.Or(d.settled, defaultSettled))
		f.Fix = "a network plugin that enforces them, if namespaces are to be kept apart: docs/security.md"
	}
	return f, err
}

// start creates a Job whose pod runs a command of the data plane's image. After an error, such as the end of ctx, the Job may exist
// nevertheless, and is deleted.
func (d *Doctor) start(ctx context.Context, what string, args ...string) (*batchv1.Job, error) {
	job := &batchv1.Job{ObjectMeta: d.meta(what), Spec: batchv1.JobSpec{
		BackoffLimit: new(int32(0)), ActiveDeadlineSeconds: new(int64(lifetime / time.Second)), TTLSecondsAfterFinished: new(int32(forgetAfter / time.Second)),
	}}
	job.Spec.Template.Labels, job.Spec.Template.Spec = job.Labels, d.podSpec(args...)
	err := d.Client.Create(ctx, job)
	if err != nil {
		d.stop(ctx, job)
	}
	return job, err
}

// podSpec is the pod of the step that waits for caches, with another command.
func (d *Doctor) podSpec(args ...string) corev1.PodSpec {
	jobs := d.twin.Spec.Template.Spec.ReplicatedJobs
	step := jobs[slices.IndexFunc(jobs, func(job jobset.ReplicatedJob) bool { return job.Name == wellknown.StepName })] // it has a gate
	pod := *step.Template.Spec.Template.Spec.DeepCopy()
	c := &pod.Containers[slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == wellknown.StepName })]
	c.Args, c.Env, c.EnvFrom, c.VolumeMounts, c.Ports = args, nil, nil, nil, nil
	pod.Containers, pod.Volumes = []corev1.Container{*c}, nil
	return pod
}

// stop deletes a Job with its pod, also if ctx has ended.
func (d *Doctor) stop(ctx context.Context, job *batchv1.Job) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	_ = d.Client.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground)) // otherwise the cluster does so later
}

// await waits until the Job's pod runs; why says what keeps it from that.
func (d *Doctor) await(ctx context.Context, job *batchv1.Job) (pod *corev1.Pod, why string, err error) {
	pod = &corev1.Pod{}
	why = "the Job has no pod"
	for end := time.Now().Add(d.Patience); time.Now().Before(end); {
		var pods corev1.PodList
		if err := d.Client.List(ctx, &pods, client.InNamespace(d.Namespace), client.MatchingLabels{labelDoctor: job.Name}); err != nil {
			return pod, "", fmt.Errorf("list the pods of Job %s: %w", job.Name, err)
		}
		if len(pods.Items) > 0 {
			pod = &pods.Items[0]
			why = diagnose.Waits(pod)
			if pod.Status.Phase == corev1.PodFailed {
				said, err := d.Log(ctx, client.ObjectKeyFromObject(pod), pod.Spec.Containers[0].Name, 1)
				return pod, strings.TrimSuffix("it failed: "+strings.TrimSpace(said), ": "), err
			}
			if why == "" && (pod.Status.PodIP != "" || pod.Status.Phase != corev1.PodRunning) {
				return pod, "", nil
			}
		}
		if err := pause(ctx); err != nil {
			return pod, "", err
		}
	}
	return pod, cmp.Or(why, "it has no address"), nil
}

// reached is the result for an address that can be reached.
const reached = "ok"

// results returns the last result for each address, when enough of them are there or the time is over.
func (d *Doctor) results(ctx context.Context, pod *corev1.Pod, within time.Duration, enough func(map[string]string) bool) (map[string]string, error) {
	for end := time.Now().Add(within); ; {
		text, err := d.Log(ctx, client.ObjectKeyFromObject(pod), pod.Spec.Containers[0].Name, 0)
		if err != nil {
			return nil, err
		}
		seen := map[string]string{}
		for line := range strings.Lines(text) {
			address, is, _ := strings.Cut(strings.TrimSpace(line), " ")
			seen[address] = is
		}
		if enough(seen) || time.Now().After(end) {
			return seen, nil
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-time.After(look):
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("ended before all was examined"), ctx.Err())
	}
}
