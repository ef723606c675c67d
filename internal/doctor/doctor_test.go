// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// hospital is a simulated cluster; the zero value is one in which all is well.
type hospital struct {
	without   func(*runtime.Scheme) error // kinds that it lacks
	objects   []client.Object             // instead of those of the same kind
	webhook   error                       // for a TrainJob; nil: that of the real one for a wrong CLUSTER_SIZE
	forbidden string                      // what the manager may not create
	admission error                       // for a pod
	pod       func(*corev1.Pod)           // changes the status of pods that run
	fails     map[string]string           // what connecting fails with, by address
	open      bool                        // NetworkPolicies are not enforced
	mine      string                      // what the user may not create
	cut       bool                        // the connection ends after a Job is stored
}

// TestExamine checks the findings for clusters in which something is wrong, and that nothing is left behind.
func TestExamine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cluster hospital
		want    []string // the findings that differ from those of a cluster in which all is well: "FAILS subject: state; fix: ..."
	}{
		"all is well": {hospital{}, nil},
		"no LeaderWorkerSet": {
			hospital{without: lws.AddToScheme}, []string{"FAILS kinds: the API server does not serve LeaderWorkerSet v1 of leaderworkerset.x-k8s.io; fix: install LeaderWorkerSet, at least v0.6"},
		},
		"the manager is down": {
			hospital{objects: []client.Object{manager(0)}}, []string{"FAILS manager: Deployment datacache-system/datacache-manager: 0 of 2 replicas are available; fix: kubectl -n datacache-system describe pods"},
		},
		"an authority that has expired": {
			hospital{objects: []client.Object{webhooks(authority(t, time.Now().Add(-time.Hour)))}}, []string{"FAILS webhook's authority: expired on "},
		},
		"no authority": {
			hospital{objects: []client.Object{webhooks(nil)}}, []string{"FAILS webhook's authority: MutatingWebhookConfiguration datacache.kubeflow.org has none"},
		},
		"the webhook can't be called": {
			hospital{webhook: apierrors.NewInternalError(errors.New(`failed calling webhook "mutate": tls: failed to verify certificate: x509: certificate signed by unknown authority`))},
			[]string{`FAILS webhook: Internal error occurred: failed calling webhook "mutate": tls: failed to verify certificate: x509: certificate signed by unknown authority; fix: if the error names a certificate, restart the manager`},
		},
		"TrainJobs are forbidden": {
			hospital{mine: "trainjobs"}, []string{"? webhook: you may not look: trainjobs.example.com \"x\" is forbidden"},
		},
		"a right of the manager": {
			hospital{forbidden: "secrets"}, []string{"FAILS manager's rights: system:serviceaccount:datacache-system:datacache-manager may not, in namespace team: create secrets; fix: bind ClusterRole datacache-manager"},
		},
		"a quota": {
			hospital{objects: []client.Object{quota()}}, []string{"FAILS quotas: used up: small: 4Gi of 4Gi of requests.memory; fix: a larger quota"},
		},
		"Pod Security": {
			hospital{admission: apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", errors.New("violates PodSecurity"))}, []string{"FAILS admission of pods: pods \"x\" is forbidden: violates PodSecurity"},
		},
		"two default storage classes": {
			hospital{objects: []client.Object{class("a"), class("b")}}, []string{"ok storage classes: 2 are the default, a, b: the newest is taken"},
		},
		"an image that can't be pulled": {
			hospital{pod: func(pod *corev1.Pod) {
				pod.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "denied"}}}}}
				pod.Spec.NodeName = "n1"
			}}, []string{"FAILS pod datacache-doctor-listens-", "ImagePullBackOff: denied; fix: make the image available"},
		},
		"no DNS": {
			hospital{fails: map[string]string{"kubernetes.default.svc:443": "dial tcp: lookup kubernetes.default.svc on 10.96.0.10:53: i/o timeout"}},
			[]string{"FAILS DNS: dial tcp: lookup kubernetes.default.svc on 10.96.0.10:53: i/o timeout; fix: look at the cluster's DNS"},
		},
		"pods are kept apart": {
			hospital{fails: map[string]string{"10.0.0.7:8080": "dial tcp 10.0.0.7:8080: i/o timeout"}},
			[]string{"FAILS network: a pod does not reach another one of its namespace: dial tcp 10.0.0.7:8080: i/o timeout; fix: look for a NetworkPolicy"},
		},
		"policies that nobody enforces": {
			hospital{open: true}, []string{"ok NetworkPolicies: are not enforced, or only after more than 1s: whoever reaches the network of pods reads the rows of caches; fix: a network plugin"},
		},
		"pods are forbidden": {
			hospital{mine: "jobs"}, []string{"? image: you may not start pods: "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := c.cluster.doctor(t)
			findings, err := d.Examine(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range findings {
				mark := "ok "
				switch {
				case f.Blocks:
					mark = "FAILS "
				case f.Unseen:
					mark = "? "
				}
				if f.Blocks || f.Unseen || f.Fix != "" || strings.Contains(f.State, "are the default") {
					got = append(got, mark+f.String())
				}
			}
			all := strings.Join(got, "\n")
			for _, want := range c.want {
				if !strings.Contains(all, want) {
					t.Errorf("no %q in\n%s", want, all)
				}
			}
			if len(c.want) == 0 && (len(got) > 0 || len(findings) != 13) {
				t.Errorf("%d findings, of which these are not well:\n%s", len(findings), all)
			}
			var left batchv1.JobList
			if err := d.Client.List(t.Context(), &left); err != nil || len(left.Items) > 0 {
				t.Errorf("%d Jobs are left: %v", len(left.Items), err)
			}
		})
	}
}

// doctor returns a doctor in the cluster.
func (h hospital) doctor(t *testing.T) *Doctor {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, appsv1.AddToScheme, authorizationv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme,
		storagev1.AddToScheme, trainer.AddToScheme, jobset.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	if h.without == nil {
		if err := lws.AddToScheme(scheme); err != nil {
			t.Fatal(err)
		}
	}
	objects := slices.Clone(h.objects)
	for _, usual := range []client.Object{manager(2), webhooks(authority(t, time.Now().Add(time.Hour))), class("standard"), twin()} {
		if !slices.ContainsFunc(h.objects, func(o client.Object) bool { return sameKind(o, usual) }) {
			objects = append(objects, usual)
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(testrestmapper.TestOnlyStaticRESTMapper(scheme)).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{Create: h.create}).Build()
	return &Doctor{Client: c, Namespace: "team", Pods: true, Patience: time.Second, settled: time.Second, Log: func(ctx context.Context, pod types.NamespacedName, _ string, _ int64) (string, error) {
		return h.log(ctx, c)
	}}
}

func sameKind(a, b client.Object) bool {
	switch a.(type) {
	case *appsv1.Deployment:
		_, same := b.(*appsv1.Deployment)
		return same
	case *admissionv1.MutatingWebhookConfiguration:
		_, same := b.(*admissionv1.MutatingWebhookConfiguration)
		return same
	case *storagev1.StorageClass:
		_, same := b.(*storagev1.StorageClass)
		return same
	}
	return false
}

// create answers as the API server, its admission and the controller of Jobs do.
func (h hospital) create(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
	refused := func(what string) error {
		return apierrors.NewForbidden(schema.GroupResource{Group: "example.com", Resource: what}, "x", errors.New(`User "u" cannot create resource`))
	}
	switch o := object.(type) {
	case *trainer.TrainJob:
		if h.mine == "trainjobs" {
			return refused(h.mine)
		}
		if h.webhook != nil {
			return h.webhook
		}
		return apierrors.NewForbidden(schema.GroupResource{Resource: "trainjobs"}, o.Name, errors.New(`admission webhook denied the request: CLUSTER_SIZE: "doctor": must be an integer`))
	case *authorizationv1.SubjectAccessReview:
		o.Status.Allowed = o.Spec.ResourceAttributes.Resource != h.forbidden
		return nil
	case *corev1.Pod:
		return h.admission
	case *batchv1.Job:
		if h.mine == "jobs" {
			return refused(h.mine)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name + "-x", Labels: o.Spec.Template.Labels}, Spec: o.Spec.Template.Spec}
		pod.Spec.NodeName, pod.Status = "n1", corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.7"}
		if h.pod != nil {
			h.pod(pod)
		}
		if err := c.Create(ctx, pod); err != nil {
			return err
		}
		if h.cut {
			return errors.Join(c.Create(ctx, object, options...), context.Canceled)
		}
	}
	return c.Create(ctx, object, options...)
}

// log is what the second pod prints.
func (h hospital) log(ctx context.Context, c client.Client) (string, error) {
	var policies networkingv1.NetworkPolicyList
	if err := c.List(ctx, &policies); err != nil {
		return "", err
	}
	var text strings.Builder
	for _, address := range []string{"10.0.0.7:8080", "kubernetes.default.svc:443", "datacache-webhook.datacache-system.svc:443"} {
		is := "ok"
		if why := h.fails[address]; why != "" {
			is = why
		}
		text.WriteString(address + " " + is + "\n")
	}
	if len(policies.Items) > 0 && !h.open {
		text.WriteString("10.0.0.7:8080 dial tcp 10.0.0.7:8080: i/o timeout\n")
	}
	return text.String(), nil
}

func manager(available int32) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "datacache-system", Name: "datacache-manager", Labels: map[string]string{"app.kubernetes.io/name": "datacache-manager"}}}
	d.Spec.Replicas, d.Status.AvailableReplicas = new(int32(2)), available
	d.Spec.Template.Spec.ServiceAccountName = "datacache-manager"
	return d
}

func webhooks(bundle []byte) *admissionv1.MutatingWebhookConfiguration {
	return &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: wellknown.Group}, Webhooks: []admissionv1.MutatingWebhook{{ClientConfig: admissionv1.WebhookClientConfig{CABundle: bundle}}}}
}

// authority returns a certificate that is valid until a time.
func authority(t *testing.T, until time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: until.Add(-24 * time.Hour), NotAfter: until, IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func class(name string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}}}
}

func quota() *corev1.ResourceQuota {
	full := corev1.ResourceList{"requests.memory": resource.MustParse("4Gi")}
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "small"}, Status: corev1.ResourceQuotaStatus{Hard: full, Used: full}}
}

func twin() *trainer.ClusterTrainingRuntime {
	step := jobset.ReplicatedJob{Name: wellknown.StepName}
	step.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: wellknown.StepName, Image: "example.com/cacheserver:1"}}
	rt := &trainer.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "torch-data-cache", Labels: map[string]string{wellknown.LabelGate: "true"}}}
	rt.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{step}
	return rt
}

// TestInterruptedCreation checks that a Job whose creation is interrupted does not stay.
func TestInterruptedCreation(t *testing.T) {
	t.Parallel()
	d := hospital{cut: true}.doctor(t)
	if _, err := d.Examine(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
	var left batchv1.JobList
	if err := d.Client.List(t.Context(), &left); err != nil || len(left.Items) > 0 {
		t.Errorf("%d Jobs are left: %v", len(left.Items), err)
	}
}

// TestStopsWithoutItsContext checks that a doctor that is interrupted deletes its Jobs.
func TestStopsWithoutItsContext(t *testing.T) {
	t.Parallel()
	d := hospital{pod: func(pod *corev1.Pod) { pod.Status.PodIP = "" }}.doctor(t)
	d.Patience = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := d.Examine(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ends with %v", err)
	}
	var left batchv1.JobList
	if err := d.Client.List(t.Context(), &left); err != nil || len(left.Items) > 0 {
		t.Errorf("%d Jobs are left: %v", len(left.Items), err)
	}
}
