// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// terminationGrace is the server's --grace (20 s for running streams) plus some seconds to exit.
const terminationGrace = 30

// Server is the cache server's image, its pull settings, and the object cache that it may read through.
type Server struct {
	Image          string
	Policy         corev1.PullPolicy
	Secrets        []corev1.LocalObjectReference
	ObjectCacheURL string
	ObjectCacheCA  string            // Options.ObjectCacheCA
	ClusterDomain  string            // Options.ClusterDomain
	Traces         map[string]string // Options.TracesEnv
}

// LeaderWorkerSet returns the cache's LeaderWorkerSet: the head is the leader and the data nodes are workers; each group is a copy of
// the table. It fails only if the DataCache's pod template can't be merged.
//
// Three settings are essential. Startup policy LeaderCreated: a head is ready only when its nodes have loaded, so nodes must not wait
// for it. Restart policy None: a restarted data node loads its own rows again, which the head notices, and the rest of the copy stays
// in memory. rolloutStrategy and networkConfig are always set, because LWS dereferences them even if its webhook is disabled
// (leaderworkerset_controller.go:293).
func LeaderWorkerSet(dc *v1alpha1.DataCache, server Server) (*lws.LeaderWorkerSet, error) {
	arrow := dc.Spec.Arrow
	meta := kube.Owned(dc, wellknown.CacheName(dc.Name))
	hash, err := podSettingsHash(dc)
	if err != nil {
		return nil, err
	}
	meta.Annotations = map[string]string{kube.AnnotationPodSettings: hash}
	for _, label := range []string{kube.LabelQueue, kube.LabelPriority} {
		if value, ok := dc.Labels[label]; ok {
			meta.Labels[label] = value
		}
	}
	leader, err := mergeTemplate(headPod(dc, server), arrow.Head.Template)
	if err != nil {
		return nil, &TemplateError{"spec.arrow.head.template", err}
	}
	worker, err := mergeTemplate(nodePod(dc, server), arrow.DataNode.Template)
	if err != nil {
		return nil, &TemplateError{"spec.arrow.dataNode.template", err}
	}
	addTraces(&leader.Spec, wellknown.RoleHead, dc, server.Traces)
	addTraces(&worker.Spec, wellknown.RoleNode, dc, server.Traces)
	TolerateOutages(&leader.Spec)
	TolerateOutages(&worker.Spec)
	return &lws.LeaderWorkerSet{
		ObjectMeta: meta,
		Spec: lws.LeaderWorkerSetSpec{
			Replicas: new(copiesToRun(dc)),
			LeaderWorkerTemplate: lws.LeaderWorkerTemplate{
				LeaderTemplate: &leader,
				WorkerTemplate: worker,
				Size:           new(arrow.DataNodes + 1),
				RestartPolicy:  lws.NoneRestartPolicy,
			},
			RolloutStrategy: lws.RolloutStrategy{
				Type: lws.RollingUpdateStrategyType,
				RollingUpdateConfiguration: &lws.RollingUpdateConfiguration{
					Partition: new(int32(0)), MaxUnavailable: intstr.FromInt32(1), MaxSurge: intstr.FromInt32(0),
				},
			},
			StartupPolicy: lws.LeaderCreatedStartupPolicy,
			NetworkConfig: &lws.NetworkConfig{SubdomainPolicy: new(lws.SubdomainShared)},
		},
	}, nil
}

// copiesToRun is one until the snapshot is pinned, because two heads that plan concurrently might select different snapshots: a
// catalog's current snapshot may change in between. With a metadata file this can't happen.
func copiesToRun(dc *v1alpha1.DataCache) int32 {
	arrow := dc.Spec.Arrow
	fixed := arrow.MetadataLocation != nil || arrow.Snapshot != nil && arrow.Snapshot.ID != nil
	if fixed || dc.Status.Snapshot != "" {
		return arrow.Replicas
	}
	return min(arrow.Replicas, 1)
}

// podSettingsHash covers the mutable parts of a DataCache's spec that determine its pods. What the manager chooses itself, such as
// the image, is left out: a new manager must not restart running caches.
func podSettingsHash(dc *v1alpha1.DataCache) (string, error) {
	arrow := dc.Spec.Arrow
	var catalog *v1alpha1.Credentials
	if arrow.Catalog != nil {
		catalog = arrow.Catalog.Credentials
	}
	settings := []any{dc.Spec.Credentials, catalog, arrow.Head, arrow.DataNode, arrow.Env, arrow.ObjectCache, arrow.Readiness}
	if arrow.Spill != nil || arrow.MayPut() { // caches without them keep the hash that they have
		settings = append(settings, arrow.Spill, arrow.Puts.OfPods())
	}
	if arrow.FirstEpoch != "" {
		settings = append(settings, arrow.FirstEpoch)
	}
	text, err := json.Marshal(settings)
	if err != nil {
		return "", fmt.Errorf("write the settings of pods as JSON: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8]), nil
}

func headPod(dc *v1alpha1.DataCache, server Server) corev1.PodTemplateSpec {
	resources := sized(dc.Spec.Arrow.Head.Resources, corev1.ResourceList{corev1.ResourceCPU: quantity("1"), corev1.ResourceMemory: quantity("1Gi")})
	env := append(sourceEnv(dc), selectionEnv(dc)...)
	if dc.Spec.Arrow.MayPut() {
		env = append(env, variable(envPuts, "true"))
		if keep := dc.Spec.Arrow.Puts.Keep; keep != "" {
			env = append(env, variable(envPutKeep, strings.ToLower(string(keep))))
		}
	}
	// A head's memory is all Go heap (plan and footers); data nodes keep rows outside the heap, under their own limit.
	memory := resources.Limits[corev1.ResourceMemory]
	env = append(env, variable(envGoMemory, Decimal(memory.Value()/10*9)), variable(envNames, serviceNames(dc, server.ClusterDomain)))
	return podTemplate(dc, wellknown.RoleHead, server, cacheContainer(dc, wellknown.RoleHead, env, resources))
}

func nodePod(dc *v1alpha1.DataCache, server Server) corev1.PodTemplateSpec {
	resources := sized(dc.Spec.Arrow.DataNode.Resources, corev1.ResourceList{corev1.ResourceCPU: quantity("2"), corev1.ResourceMemory: quantity("2Gi")})
	machine := corev1.EnvVar{Name: envMachine, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}
	env := append(sourceEnv(dc), machine)
	if puts := dc.Spec.Arrow.Puts; dc.Spec.Arrow.MayPut() {
		if puts.Limit != nil {
			env = append(env, variable(envPutLimit, Decimal(puts.Limit.Value())))
		}
		if puts.LimitPerWriter != nil {
			env = append(env, variable(envPutWriter, Decimal(puts.LimitPerWriter.Value())))
		}
	}
	template := podTemplate(dc, wellknown.RoleNode, server, cacheContainer(dc, wellknown.RoleNode, env, resources))
	mountSharing(dc, &template.Spec)
	mountSpill(dc, &template.Spec)
	template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: kube.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: kube.PodsOf(dc, wellknown.RoleNode)},
	}}
	return template
}

// podTemplate satisfies the restricted Pod Security Standard. The user is the image's, which is not root.
func podTemplate(dc *v1alpha1.DataCache, role string, server Server, container corev1.Container) corev1.PodTemplateSpec {
	container.Image, container.ImagePullPolicy = server.Image, server.Policy
	volumes := readThrough(dc, server, &container)
	labels := kube.CacheLabels(dc)
	maps.Copy(labels, kube.PodsOf(dc, role))
	if unique, ok := dc.Labels[wellknown.LabelPlacement]; ok {
		labels[wellknown.LabelPlacement] = unique
	}
	// A sidecar injected into user namespaces would add nothing (gRPC to the pods' own names) and would block the ports until it is ready.
	labels["sidecar.istio.io/inject"] = "false"
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{container},
			Volumes:                       volumes,
			ImagePullSecrets:              server.Secrets,
			ServiceAccountName:            wellknown.CacheName(dc.Name),
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			TerminationGracePeriodSeconds: new(int64(terminationGrace)),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   new(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
		},
	}
	mountAccess(dc, &template.Spec)
	return template
}

// cacheContainer runs `cacheserver head` or `cacheserver node`. LWS sets the head's address, the number of nodes and the node's index
// in the environment (LWS_LEADER_ADDRESS, LWS_GROUP_SIZE, LWS_WORKER_INDEX).
func cacheContainer(dc *v1alpha1.DataCache, role string, env []corev1.EnvVar, resources corev1.ResourceRequirements) corev1.Container {
	container := corev1.Container{
		Name: role,
		Args: []string{role},
		Env:  env,
		Ports: []corev1.ContainerPort{
			{Name: flightPort, ContainerPort: wellknown.FlightPort, Protocol: corev1.ProtocolTCP},
			{Name: httpPort, ContainerPort: wellknown.HTTPPort, Protocol: corev1.ProtocolTCP},
		},
		Resources: resources,
		// A server answers /healthz as soon as it starts, even while it loads or after a failure; one that does not is stuck.
		StartupProbe:   probe("/healthz", 0, 2, 5, 30),
		LivenessProbe:  probe("/healthz", 0, 10, 5, 6),
		ReadinessProbe: readiness(dc),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false),
			ReadOnlyRootFilesystem:   new(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	if keys := dc.Spec.Credentials; keys != nil {
		container.EnvFrom = append(container.EnvFrom, corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: keys.SecretRef}})
	}
	if role == wellknown.RoleHead {
		pin := corev1.LocalObjectReference{Name: wellknown.CacheName(dc.Name)}
		container.EnvFrom = append(container.EnvFrom, corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: pin}})
	}
	return container
}

// readiness returns the readiness probe. It sets defaults for objects that did not pass through the API server. The pods of a single copy in
// a queue of Kueue have none, and are ready when they run: Kueue's waitForPodsReady would evict them while they load. With several copies
// the Service must leave out those that load.
func readiness(dc *v1alpha1.DataCache) *corev1.Probe {
	if _, queued := dc.Labels[kube.LabelQueue]; queued && dc.Spec.Arrow.Replicas <= 1 {
		return nil
	}
	r := dc.Spec.Arrow.Readiness
	if r == nil {
		r = &v1alpha1.Readiness{}
	}
	return probe("/ready", r.InitialDelaySeconds, or(r.PeriodSeconds, 5), or(r.TimeoutSeconds, 5), or(r.FailureThreshold, 3))
}

func probe(path string, delay, period, timeout, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:        corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString(httpPort)}},
		InitialDelaySeconds: delay, PeriodSeconds: period, TimeoutSeconds: timeout, FailureThreshold: failures,
	}
}

func or(value, fallback int32) int32 {
	if value == 0 {
		return fallback
	}
	return value
}

// sized sets limits and requests to the same value where only one of them is given, and to the default where neither is. A request for
// less cpu than the default leaves the limit at the default: a low limit would stretch the start of a pod by seconds. A cpu limit is
// always set: the Kubeflow SDK can't parse pods with only a memory limit (utils.py:40-82).
func sized(given corev1.ResourceRequirements, defaults corev1.ResourceList) corev1.ResourceRequirements {
	out := corev1.ResourceRequirements{Limits: maps.Clone(defaults), Requests: corev1.ResourceList{}, Claims: given.Claims}
	maps.Copy(out.Limits, given.Requests)
	if cpu := defaults[corev1.ResourceCPU]; cpu.Cmp(out.Limits[corev1.ResourceCPU]) > 0 {
		out.Limits[corev1.ResourceCPU] = cpu
	}
	maps.Copy(out.Limits, given.Limits)
	maps.Copy(out.Requests, out.Limits)
	maps.Copy(out.Requests, given.Requests)
	return out
}

// OutageSeconds is how long the pods of a cache stay bound to a machine that is not ready or does not answer, in seconds. Kubernetes'
// default is 300, by when loaders have given up. Rows survive an outage that is shorter.
const OutageSeconds = 30

// TolerateOutages lets the pod's eviction begin OutageSeconds after its machine failed, unless the user's template says when.
func TolerateOutages(pod *corev1.PodSpec) {
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		t := corev1.Toleration{Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(OutageSeconds))}
		given := func(u corev1.Toleration) bool { return u.Key == taint && (u.Effect == t.Effect || u.Effect == "") }
		if !slices.ContainsFunc(pod.Tolerations, given) {
			pod.Tolerations = append(pod.Tolerations, t)
		}
	}
}
