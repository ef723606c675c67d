// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package manage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller"
	"github.com/kubeflow/datacache/internal/inject"
)

// imageContainer is the init container of the manager's own pod that has the image for caches
// (manifests/base/manager/deployment.yaml).
const imageContainer = "cacheserver"

// CacheFlags are the flags that configure how caches are made. Both managers have them. The zero value is ready for Register.
type CacheFlags struct {
	image, pullPolicy string
	domain            string
	objectCache       string
	objectCacheCA     string
	status, statusURL string
	metricsFrom       []string
	noAffinity        bool
	gangs, kueue      bool
	readers           string
	allowAnyone       bool
	hub               inject.HubMirror
	pod               client.ObjectKey
	env               func(string) string
}

// Register adds the flags. Defaults come from the environment: env returns a variable's value, empty if it is not set. fallback is
// the manager's namespace if neither POD_NAMESPACE nor --namespace is set.
func (f *CacheFlags) Register(flags *pflag.FlagSet, env func(string) string, fallback string) {
	namespace := env("POD_NAMESPACE")
	if namespace == "" {
		namespace = fallback
	}
	f.env, f.pod.Name = env, env("POD_NAME")
	flags.StringVar(&f.pod.Namespace, "namespace", namespace, "namespace that this manager runs in (env POD_NAMESPACE)")
	flags.StringVar(&f.image, "cache-image", env("CACHE_IMAGE"), "image of the cache server, for heads, data nodes and the initializer step; empty: the image of the init container "+imageContainer+" of this manager's pod, env POD_NAME (env CACHE_IMAGE)")
	flags.StringVar(&f.pullPolicy, "cache-image-pull-policy", env("CACHE_IMAGE_PULL_POLICY"), "Always, IfNotPresent or Never; empty: that of the init container, or the kubelet's default (env CACHE_IMAGE_PULL_POLICY)")
	flags.StringVar(&f.domain, "cluster-domain", "cluster.local", "DNS domain of the cluster, the end of the names of Services")
	flags.StringVar(&f.objectCache, "object-cache", env("OBJECT_CACHE"), "URL of the object cache, for DataCaches that name a bucket of it (default: the Service of manifests/object-cache; env OBJECT_CACHE)")
	flags.StringVar(&f.objectCacheCA, "object-cache-ca", env("OBJECT_CACHE_CA"), "ConfigMap whose key ca.crt has the authorities of the object cache's certificates, for an https URL: NAMESPACE/NAME, which the manager copies to caches, or NAME, in the DataCaches' namespaces; empty: those of the image (default: without --object-cache, that of manifests/object-cache; env OBJECT_CACHE_CA)")
	flags.StringVar(&f.hub.Endpoint, "hub-mirror", env("HUB_MIRROR"), "URL of a mirror of the Hugging Face hub, which becomes HF_ENDPOINT of initializers and trainers; empty: none (env HUB_MIRROR)")
	flags.StringVar(&f.hub.Audience, "hub-audience", "datacache-object-cache", "what the ServiceAccount tokens for that mirror are made for")
	flags.StringVar(&f.status, "status", env("STATUS_ADDRESS"), "host:port on which steps that wait for files ask for the state of their cache; empty serves none, and caches of files are refused (env STATUS_ADDRESS)")
	flags.StringVar(&f.statusURL, "status-url", "", "URL at which those steps reach --status of any manager (default: that of the Service datacache-status in --namespace)")
	flags.StringArrayVar(&f.metricsFrom, "metrics-from", fromEnv(env, "METRICS_FROM"), "who may read the metrics of caches through their NetworkPolicies, as NAMESPACE or NAMESPACE/POD-LABELS, such as monitoring/app.kubernetes.io/name=prometheus; may be given several times (env METRICS_FROM: one)")
	flags.BoolVar(&f.gangs, "gangs", env("GANGS") == "true", "serve runtimes with a podGroupPolicy, for which this manager needs rights for PodGroups (manifests/components/gangs); off: refuse their TrainJobs a cache (env GANGS)")
	flags.StringVar(&f.readers, "readers", cmp.Or(env("READERS"), string(v1alpha1.ReadersKnown)), "whom caches serve whose access.readers is unset: Known, ServiceAccounts that prove themselves by a token over TLS, or Anyone (env READERS)")
	flags.BoolVar(&f.allowAnyone, "allow-anyone", env("ALLOW_ANYONE") != "false", "allow DataCaches and TrainJobs to choose Anyone themselves; false: all caches serve known readers only, and TrainJobs that ask for others are refused (env ALLOW_ANYONE)")
	flags.BoolVar(&f.kueue, "kueue", env("KUEUE") == "true", "answer Kueue's AdmissionCheck of caches, for which Kueue must be installed and this manager needs rights for Workloads (manifests/components/kueue; env KUEUE)")
	flags.BoolVar(&f.noAffinity, "no-zone-affinity", false, "don't make training pods prefer the zone of their cache")
}

// Namespace is the namespace that the manager runs in.
func (f *CacheFlags) Namespace() string { return f.pod.Namespace }

// Settings returns the settings for admission.
func (f *CacheFlags) Settings() inject.Settings {
	settings := inject.Settings{NoZoneAffinity: f.noAffinity, NoAnyone: !f.allowAnyone, Gangs: f.gangs, HubMirror: f.hub, StatusURL: f.statusURL}
	if f.status != "" && f.statusURL == "" {
		settings.StatusURL = fmt.Sprintf("http://datacache-status.%s.svc", f.pod.Namespace)
	}
	return settings
}

// Options returns the options of the controllers. If no flag sets an image, the image and its pull secrets are read from the
// manager's own pod.
func (f *CacheFlags) Options(ctx context.Context, reader client.Reader) (controller.Options, error) {
	gate := inject.Gate{Image: f.image, ImagePullPolicy: corev1.PullPolicy(f.pullPolicy)}
	switch gate.ImagePullPolicy {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		return controller.Options{}, fmt.Errorf("--cache-image-pull-policy: %q, want Always, IfNotPresent or Never", f.pullPolicy)
	}
	if f.readers != string(v1alpha1.ReadersKnown) && f.readers != string(v1alpha1.ReadersAnyone) {
		return controller.Options{}, fmt.Errorf("--readers: %q, want Known or Anyone", f.readers)
	}
	if err := f.complete(ctx, reader, &gate); err != nil {
		return controller.Options{}, err
	}
	traces, err := tracesEnv(f.env)
	if err != nil {
		return controller.Options{}, err
	}
	from, err := peers(f.metricsFrom)
	if err != nil {
		return controller.Options{}, err
	}
	return controller.Options{
		Image: gate.Image, Gate: gate, Namespace: f.pod.Namespace, ClusterDomain: f.domain,
		ObjectCacheURL: f.objectCache, ObjectCacheCA: f.objectCacheCA, StatusAddress: f.status, Gangs: f.gangs, Kueue: f.kueue, TracesEnv: traces, MetricsFrom: from,
		Readers: v1alpha1.Readers(f.readers), NoAnyone: !f.allowAnyone,
	}, nil
}

// complete sets, from the manager's own pod, the image settings of caches that no flag sets.
func (f *CacheFlags) complete(ctx context.Context, reader client.Reader, gate *inject.Gate) error {
	if f.pod.Name == "" {
		if gate.Image == "" {
			return errors.New("--cache-image (env CACHE_IMAGE) is empty: name the image of the cache server, or set env POD_NAME so that it is read from this pod")
		}
		return nil
	}
	var pod corev1.Pod
	if err := reader.Get(ctx, f.pod, &pod); err != nil {
		return fmt.Errorf("read this manager's own pod %s (env POD_NAME) for the image of caches: %w", f.pod, err)
	}
	gate.ImagePullSecrets = pod.Spec.ImagePullSecrets
	at := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == imageContainer })
	switch {
	case gate.Image != "":
		return nil
	case at < 0:
		return fmt.Errorf("pod %s has no init container %s whose image caches could run: add it as manifests/base/manager has it, or set --cache-image", f.pod, imageContainer)
	}
	own := pod.Spec.InitContainers[at]
	gate.Image = own.Image
	if gate.ImagePullPolicy == "" {
		gate.ImagePullPolicy = own.ImagePullPolicy
	}
	return nil
}

// fromEnv returns the value of a variable; nil if it has none.
func fromEnv(env func(string) string, name string) []string {
	if value := env(name); value != "" {
		return []string{value}
	}
	return nil
}

// peers parses the values of --metrics-from.
func peers(values []string) ([]networkingv1.NetworkPolicyPeer, error) {
	var out []networkingv1.NetworkPolicyPeer
	for _, value := range values {
		namespace, pods, some := strings.Cut(value, "/")
		if errs := validation.IsDNS1123Label(namespace); len(errs) > 0 {
			return nil, fmt.Errorf("--metrics-from: %q, want NAMESPACE or NAMESPACE/POD-LABELS: namespace %q: %s", value, namespace, errs[0])
		}
		peer := networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}}
		if some {
			selector, err := metav1.ParseToLabelSelector(pods)
			if err != nil {
				return nil, fmt.Errorf("--metrics-from: %q, want NAMESPACE or NAMESPACE/POD-LABELS: %w", value, err)
			}
			peer.PodSelector = selector
		}
		out = append(out, peer)
	}
	return out, nil
}
