// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package workload computes the Kubernetes objects of a cache of a table: its LeaderWorkerSet, Services, policies and variables. It reads
// no cluster.
package workload

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/authority"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Port names, the same on pods and Services.
const (
	flightPort = "flight"
	httpPort   = "http"
)

// Objects are the objects of a cache that exist from its first start until it is deleted, even while its pods are released:
// they cost nothing, and clients can resolve names again as soon as the pods are back.
func Objects(dc *v1alpha1.DataCache, access Access, watchers []networkingv1.NetworkPolicyPeer) []client.Object {
	return []client.Object{
		cacheAccount(dc),
		settings(dc),
		AccessConfig(dc, access),
		Service(dc),
		cachePolicy(dc, watchers),
		cacheBudget(dc),
	}
}

// cacheAccount is the account of the cache's pods. It gets no API server token, since the pods never call the API server; the
// webhooks of cloud providers add their own tokens according to its annotations.
func cacheAccount(dc *v1alpha1.DataCache) *corev1.ServiceAccount {
	account := &corev1.ServiceAccount{
		ObjectMeta:                   kube.Owned(dc, wellknown.CacheName(dc.Name)),
		AutomountServiceAccountToken: new(false),
	}
	account.Annotations = dc.Spec.Arrow.ServiceAccount.Annotations
	return account
}

// settings holds what may change while the cache's pods run. In the pod template it would be a change for which LeaderWorkerSet would
// recreate all pods. If it is deleted, pods wait until it exists again.
//
// It passes the first planned snapshot to every head that starts later, as environment variables that head containers get when they
// start: without it a head would plan the catalog's current snapshot. Data nodes read spec.sharing from a file of a volume.
func settings(dc *v1alpha1.DataCache) *corev1.ConfigMap {
	sharing := struct {
		v1alpha1.Sharing
		Namespace string `json:"namespace,omitempty"` // of the jobs in weights without a slash
	}{Sharing: dc.Spec.Sharing}
	if len(sharing.Weights) > 0 {
		sharing.Namespace = dc.Namespace
	}
	text, err := json.Marshal(sharing)
	if err != nil {
		panic(err) // names and numbers can always be encoded
	}
	config := &corev1.ConfigMap{ObjectMeta: kube.Owned(dc, wellknown.CacheName(dc.Name)), Data: map[string]string{sharingKey: string(text)}}
	if dc.Status.Snapshot != "" {
		config.Data[EnvPin] = dc.Status.Snapshot
	}
	return config
}

const (
	// sharingKey is the key of the settings for spec.sharing. It is a valid name of a variable too, as heads get all keys as variables.
	sharingKey    = "SHARING"
	sharingVolume = "sharing"
	sharingMount  = "/etc/datacache/sharing"
	sharingFile   = "sharing.json"
)

// mountSharing adds the file of spec.sharing to a data node's pod. The kubelet updates it when the settings change.
func mountSharing(dc *v1alpha1.DataCache, pod *corev1.PodSpec) {
	container := &pod.Containers[0]
	container.Env = append(container.Env, variable(envSharing, sharingMount+"/"+sharingFile))
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: sharingVolume, MountPath: sharingMount, ReadOnly: true})
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: sharingVolume, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: wellknown.CacheName(dc.Name)},
		Items:                []corev1.KeyToPath{{Key: sharingKey, Path: sharingFile}},
	}}})
}

// Service is the Service through which clients find the head. With one copy it includes a head that is not ready, so that the
// waiting step and people can read its /status; with several copies only ready ones.
func Service(dc *v1alpha1.DataCache) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: kube.Owned(dc, wellknown.ServiceName(dc.Name)),
		Spec: corev1.ServiceSpec{
			Type:                     corev1.ServiceTypeClusterIP,
			Selector:                 kube.PodsOf(dc, wellknown.RoleHead),
			Ports:                    ServicePorts(),
			PublishNotReadyAddresses: dc.Spec.Arrow.Replicas <= 1,
		},
	}
}

// ServicePorts are the ports of a Service of a head.
func ServicePorts() []corev1.ServicePort {
	port := func(name string, number int32) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: number, TargetPort: intstr.FromString(name), Protocol: corev1.ProtocolTCP}
	}
	return []corev1.ServicePort{port(flightPort, wellknown.FlightPort), port(httpPort, wellknown.HTTPPort)}
}

// cachePolicy admits, besides the cache's own pods, those that may use it (with readers: Anyone all who reach the head read the table), and watchers,
// which read /status and /metrics. It does not restrict egress, since object stores can be anywhere.
func cachePolicy(dc *v1alpha1.DataCache, watchers []networkingv1.NetworkPolicyPeer) *networkingv1.NetworkPolicy {
	users := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}} // every pod of this namespace, including the cache's
	switch access := dc.Spec.Access.Namespaces; access.From {
	case v1alpha1.AccessNames:
		users = append(users, FromNamespaces(slices.Sorted(slices.Values(access.Names))...))
	case v1alpha1.AccessSelector:
		users = append(users, networkingv1.NetworkPolicyPeer{NamespaceSelector: access.Selector})
	}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: kube.Owned(dc, wellknown.CacheName(dc.Name)),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: kube.PodsOf(dc, "")},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{
				{From: users, Ports: policyPorts(wellknown.FlightPort, wellknown.HTTPPort)},
				{From: watchers, Ports: policyPorts(wellknown.HTTPPort)},
			},
		},
	}
}

// FromNamespaces admits the pods of the namespaces.
func FromNamespaces(names ...string) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: kube.LabelNamespaceName, Operator: metav1.LabelSelectorOpIn, Values: names},
	}}}
}

func policyPorts(numbers ...int32) []networkingv1.NetworkPolicyPort {
	ports := make([]networkingv1.NetworkPolicyPort, 0, len(numbers))
	for _, n := range numbers {
		ports = append(ports, networkingv1.NetworkPolicyPort{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromInt32(n))})
	}
	return ports
}

// cacheBudget lets a drain evict one pod of the cache, and the next one only when the rows of the first are in memory again. Pods
// that are not ready may always be evicted, since they serve no rows.
func cacheBudget(dc *v1alpha1.DataCache) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: kube.Owned(dc, wellknown.CacheName(dc.Name)),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable:             new(intstr.FromInt32(1)),
			Selector:                   &metav1.LabelSelector{MatchLabels: kube.PodsOf(dc, "")},
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
		},
	}
}

// authorityKey is the key of the Secret with the certificate of the cache's authority and its private key.
const authorityKey = "CACHE_CA"

// Secret holds the key with which head and data nodes authenticate each other and tickets, and the cache's authority. It is written once and
// never read by the controller, which has no permission to read Secrets.
func Secret(dc *v1alpha1.DataCache, key string, certificate, private []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: kube.Owned(dc, kube.SecretName(dc)),
		Immutable:  new(true),
		Type:       corev1.SecretTypeOpaque,
		StringData: map[string]string{envSecret: key, authorityKey: string(authority.Join(certificate, private))},
	}
}
