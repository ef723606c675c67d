// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor checks whether a cluster and a namespace have what caches need: kinds, manager, webhook, rights, quota and storage classes
// by questions to the API server, images, DNS and NetworkPolicies by two short-lived pods.
package doctor

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/diagnose"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Doctor examines a namespace of a cluster, with the rights of its client. LastLines may be nil if Pods is not set. It is not safe for
// concurrent use.
type Doctor struct {
	Client    client.Client
	Namespace string
	Pods      bool          // start pods
	Patience  time.Duration // how long a pod may take to start
	Log       diagnose.Log  // reads the pods' logs

	settled time.Duration      // how long a NetworkPolicy may take to act; 0: 15 s
	manager *appsv1.Deployment // nil: it is not known
	twin    *trainer.ClusterTrainingRuntime
}

// Examine returns a finding for each check. What the user may not look at is Unseen. The error is that of the API server.
func (d *Doctor) Examine(ctx context.Context) ([]diagnose.Finding, error) {
	var findings []diagnose.Finding
	checks := []func(context.Context) (diagnose.Finding, error){d.kinds, d.managers, d.certificate, d.runtime, d.webhook, d.rights, d.quota, d.pod, d.classes}
	for _, check := range checks {
		f, err := check(ctx)
		if apierrors.IsForbidden(err) {
			f.State, f.Unseen, err = "you may not look: "+err.Error(), true, nil
		}
		if err != nil {
			return findings, fmt.Errorf("%s: %w", f.Subject, err)
		}
		findings = append(findings, f)
	}
	if !d.Pods {
		return append(findings, diagnose.Finding{Subject: "images, DNS, network", State: "not checked, since no pods are to be started", Unseen: true}), nil
	}
	found, err := d.inside(ctx)
	return append(findings, found...), err
}

// needed are the kinds that caches of tables need, and who brings them.
var needed = []struct {
	kind schema.GroupVersionKind
	from string
}{
	{schema.GroupVersionKind{Group: wellknown.Group, Version: "v1alpha1", Kind: "DataCache"}, "datacache's CRD: docs/install.md"},
	{schema.GroupVersionKind{Group: trainer.GroupVersion.Group, Version: "v1alpha1", Kind: "TrainJob"}, "Kubeflow Trainer v2"},
	{schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}, "JobSet, which Kubeflow Trainer's manifests have"},
	{schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"}, "LeaderWorkerSet, at least v0.6"},
}

func (d *Doctor) kinds(context.Context) (diagnose.Finding, error) {
	f := diagnose.Finding{Subject: "kinds"}
	var there []string
	for _, n := range needed {
		name := n.kind.Kind + " " + n.kind.Version
		_, err := d.Client.RESTMapper().RESTMapping(n.kind.GroupKind(), n.kind.Version)
		if meta.IsNoMatchError(err) {
			f.State, f.Blocks, f.Fix = "the API server does not serve "+name+" of "+n.kind.Group, true, "install "+n.from
			return f, nil
		}
		if err != nil {
			return f, err
		}
		there = append(there, name)
	}
	f.State = "served: " + strings.Join(there, ", ")
	return f, nil
}

func (d *Doctor) managers(ctx context.Context) (diagnose.Finding, error) {
	f := diagnose.Finding{Subject: "manager"}
	var list appsv1.DeploymentList
	if err := d.Client.List(ctx, &list, client.MatchingLabels{"app.kubernetes.io/name": "datacache-manager"}); err != nil {
		return f, err
	}
	if len(list.Items) == 0 {
		f.State, f.Unseen, f.Fix = "there is no Deployment (or is the plugin in Trainer's own manager?)", true, "install datacache: docs/install.md"
		return f, nil
	}
	d.manager = &list.Items[0]
	name, s := client.ObjectKeyFromObject(d.manager), d.manager.Status
	f.State = fmt.Sprintf("Deployment %s: %d of %d replicas are available", name, s.AvailableReplicas, ptr.Deref(d.manager.Spec.Replicas, 1))
	if s.AvailableReplicas == 0 {
		f.Blocks, f.Fix = true, fmt.Sprintf("kubectl -n %s describe pods -l app.kubernetes.io/name=datacache-manager", name.Namespace)
	}
	return f, nil
}

// certificate checks the authority by which the API server knows the webhook.
func (d *Doctor) certificate(ctx context.Context) (diagnose.Finding, error) {
	f := diagnose.Finding{Subject: "webhook's authority"}
	config := &admissionv1.MutatingWebhookConfiguration{}
	err := d.Client.Get(ctx, client.ObjectKey{Name: wellknown.Group}, config)
	if apierrors.IsNotFound(err) {
		f.State, f.Unseen, f.Fix = "there is no MutatingWebhookConfiguration "+wellknown.Group, true, "install datacache: docs/install.md"
		return f, nil
	}
	if err != nil || len(config.Webhooks) == 0 {
		return f, err
	}
	f.Fix = "look at the manager's log, or at cert-manager's Certificate if it makes the certificates"
	block, _ := pem.Decode(config.Webhooks[0].ClientConfig.CABundle)
	if block == nil {
		f.State, f.Blocks = "MutatingWebhookConfiguration "+wellknown.Group+" has none: the manager, or cert-manager, has not written it", true
		return f, nil
	}
	authority, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		f.State, f.Blocks = "it can't be read: "+err.Error(), true
		return f, nil //nolint:nilerr // it is the finding
	}
	f.State = "valid until " + authority.NotAfter.UTC().Format(time.DateOnly)
	if time.Now().After(authority.NotAfter) {
		f.State, f.Blocks = "expired on "+authority.NotAfter.UTC().Format(time.DateOnly), true
		return f, nil
	}
	f.Fix = ""
	return f, nil
}

// runtime looks for a training runtime that waits for a cache.
func (d *Doctor) runtime(ctx context.Context) (diagnose.Finding, error) {
	f := diagnose.Finding{Subject: "training runtimes"}
	var list trainer.ClusterTrainingRuntimeList
	if err := d.Client.List(ctx, &list, client.MatchingLabels{wellknown.LabelGate: "true"}); err != nil {
		return f, err
	}
	var names []string
	for i := range list.Items {
		rt := &list.Items[i]
		if !request.HasGate(rt.Labels, &rt.Spec) {
			continue
		}
		if d.twin == nil {
			d.twin = rt
		}
		names = append(names, rt.Name)
	}
	f.State = "with a step that waits for a cache: " + strings.Join(names, ", ")
	if d.twin == nil {
		f.State, f.Blocks, f.Fix = "none of the cluster waits for a cache", true, "create a ClusterTrainingRuntime whose trainer can use one: the manager makes its twin; kubectl describe says why not"
	}
	return f, nil
}

// webhook lets the API server call the webhook for a TrainJob that it does not store.
func (d *Doctor) webhook(ctx context.Context) (diagnose.Finding, error) {
	f := diagnose.Finding{Subject: "webhook"}
	if d.twin == nil {
		f.State, f.Unseen = "not tried, since no training runtime waits for a cache", true
		return f, nil
	}
	job := &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.name("w")},
		Spec: trainer.TrainJobSpec{
			RuntimeRef: trainer.RuntimeRef{Name: d.twin.Name},
			Initializer: &trainer.Initializer{Dataset: &trainer.DatasetInitializer{
				StorageUri: new("cache://doctor/doctor"), Env: []corev1.EnvVar{{Name: "CLUSTER_SIZE", Value: "doctor"}}, // which only the webhook refuses
			}},
		},
	}
	err := d.Client.Create(ctx, job, client.DryRunAll)
	switch {
	case err == nil:
		f.State, f.Blocks, f.Fix = "the API server accepts a TrainJob with a wrong CLUSTER_SIZE without asking it", true, "see `kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations "+wellknown.Group+"`"
	case strings.Contains(err.Error(), "must be an integer"): // internal/inject
		f.State = "the API server reaches it, and it checks TrainJobs"
	case strings.Contains(err.Error(), "failed calling webhook"):
		f.State, f.Blocks = err.Error(), true
		f.Fix = "if the error names a certificate, restart the manager, which writes its authority anew; otherwise look at the manager's pods and at NetworkPolicies or firewalls between the API server and port 9443 of them"
	default:
		return f, err
	}
	return f, nil
}

// managed are the requests that the manager sends for a cache.
var managed = []authorizationv1.ResourceAttributes{
	{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets", Verb: "create"},
	{Resource: "services", Verb: "create"},
	{Resource: "serviceaccounts", Verb: "create"},
	{Resource: "secrets", Verb: "create"},
	{Group: "networking.k8s.io", Resource: "networkpolicies", Verb: "create"},
	{Group: "policy", Resource: "poddisruptionbudgets", Verb: "create"},
	{Resource: "configmaps", Verb: "create"},
	{Resource: "pods", Verb: "list"},
	{Resource: "events", Verb: "create"},
	{Group: wellknown.Group, Resource: "datacaches", Subresource: "status", Verb: "patch"},
}

// rights asks whether the manager may do in the namespace what caches need.
func (d *Doctor) rights(ctx context.Context) (diagnose.Finding, error) {
	f := diagnose.Finding{Subject: "manager's rights"}
	if d.manager == nil {
		f.State, f.Unseen = "not checked, since its Deployment is not known", true
		return f, nil
	}
	user := "system:serviceaccount:" + d.manager.Namespace + ":" + d.manager.Spec.Template.Spec.ServiceAccountName
	var missing []string
	for _, may := range managed {
		may.Namespace = d.Namespace
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + d.manager.Namespace, "system:authenticated"}, ResourceAttributes: &may,
		}}
		if err := d.Client.Create(ctx, review); err != nil {
			return f, err
		}
		if !review.Status.Allowed {
			missing = append(missing, strings.TrimSuffix(may.Verb+" "+may.Resource+"/"+may.Subresource, "/"))
		}
	}
	f.State = fmt.Sprintf("all %d that caches need in namespace %s", len(managed), d.Namespace)
	if len(missing) > 0 {
		f.State, f.Blocks = fmt.Sprintf("%s may not, in namespace %s: %s", user, d.Namespace, strings.Join(missing, ", ")), true
		f.Fix = "bind ClusterRole datacache-manager to it there: manifests/namespace-rbac, or apply datacache's manifests again"
	}
	return f, nil
}

// quota looks for quotas that are used up.
func (d *Doctor) quota(ctx context.Context) (diagnose.Finding, error) {
	f := diagnose.Finding{Subject: "quotas"}
	var list corev1.ResourceQuotaList
	if err := d.Client.List(ctx, &list, client.InNamespace(d.Namespace)); err != nil {
		return f, err
	}
	f.State = fmt.Sprintf("namespace %s has %d, and none is used up", d.Namespace, len(list.Items))
	var full []string
	for _, q := range list.Items {
		for what, hard := range q.Status.Hard {
			if used, ok := q.Status.Used[what]; ok && used.Cmp(hard) >= 0 {
				full = append(full, fmt.Sprintf("%s: %s of %s of %s", q.Name, used.String(), hard.String(), what))
			}
		}
	}
	if len(full) > 0 {
		f.State, f.Blocks, f.Fix = "used up: "+strings.Join(full, "; "), true, "a larger quota, or remove what uses it: kubectl -n "+d.Namespace+" describe quota"
	}
	return f, nil
}

// pod asks the API server whether it would accept a pod like those of caches: quotas, limits, Pod Security, policies and webhooks.
func (d *Doctor) pod(ctx context.Context) (diagnose.Finding, error) {
	f := diagnose.Finding{Subject: "admission of pods"}
	if d.twin == nil {
		f.State, f.Unseen = "not tried, since no training runtime names the image", true
		return f, nil
	}
	err := d.Client.Create(ctx, &corev1.Pod{ObjectMeta: d.meta("p"), Spec: d.podSpec("reach")}, client.DryRunAll)
	switch {
	case err == nil:
		f.State = "namespace " + d.Namespace + " accepts a pod like those of caches"
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "cannot create resource"): // RBAC refused the user, so admission was not asked
		return f, err
	default:
		f.State, f.Blocks, f.Fix = err.Error(), true, "as the message says: a larger quota, the namespace's Pod Security level, a policy or a webhook"
	}
	return f, nil
}

// classes looks for storage classes, which only scratch volumes and some Fluid runtimes need.
func (d *Doctor) classes(ctx context.Context) (diagnose.Finding, error) {
	f := diagnose.Finding{Subject: "storage classes"}
	var list storagev1.StorageClassList
	if err := d.Client.List(ctx, &list); err != nil {
		return f, err
	}
	var names, defaults []string
	for _, class := range list.Items {
		names = append(names, class.Name)
		if class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			defaults = append(defaults, class.Name)
		}
	}
	switch {
	case len(names) == 0:
		f.State = "there are none; caches of tables need none, scratch volumes do"
	case len(defaults) == 1:
		f.State = "default: " + defaults[0]
	case len(defaults) == 0:
		f.State = "no default; caches of tables need none, scratch volumes must name one of: " + strings.Join(names, ", ")
	default:
		f.State = fmt.Sprintf("%d are the default, %s: the newest is taken", len(defaults), strings.Join(defaults, ", "))
	}
	return f, nil
}

// name returns a new name of an object.
func (d *Doctor) name(of string) string {
	return "datacache-doctor-" + of + "-" + strings.ToLower(rand.Text()[:6])
}

// meta returns the metadata of a new object.
func (d *Doctor) meta(of string) metav1.ObjectMeta {
	name := d.name(of)
	return metav1.ObjectMeta{Namespace: d.Namespace, Name: name, Labels: map[string]string{labelDoctor: name, "sidecar.istio.io/inject": "false"}}
}

// labelDoctor on an object has its own name.
const labelDoctor = wellknown.Group + "/doctor"
