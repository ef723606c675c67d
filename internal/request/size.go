// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"math"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

const (
	// defaultDataNodes corresponds to 3, upstream's default of CLUSTER_SIZE (kubeflow/trainer v2.3.0
	// pkg/initializers/types/types.py:64).
	defaultDataNodes = 2
	maxDataNodes     = 1000
	maxVariables     = 64
	maxValue         = 4096
	maxVariable      = 128
)

// leastSpill is the smallest limit of a volume for rows that the API accepts.
var leastSpill = resource.MustParse("16Mi")

// defaultIdleTTL is the idleTTL of a shared cache whose TrainJobs don't set IDLE_TTL: since nobody created it by hand, nobody would
// delete it.
const defaultIdleTTL = time.Hour

// deleteAfterIdle is when a shared DataCache itself is deleted, for the same reason, unless its idleTTL is longer.
const deleteAfterIdle = 24 * time.Hour

// size parses the number and the size of pods.
func (s *spec) size(arrow *v1alpha1.ArrowCache) {
	arrow.DataNodes = defaultDataNodes
	if p, ok := s.lookup("CLUSTER_SIZE"); ok {
		size, reason := whole(p.value, 2, maxDataNodes+1)
		if reason != "" {
			s.refuse(p, "%s: the head and at least one data node", reason)
		}
		arrow.DataNodes = size - 1
	}
	arrow.Head.Resources = s.resources("HEAD_CPU", "HEAD_MEM")
	if memory, ok := arrow.Head.Resources.Requests[corev1.ResourceMemory]; ok && memory.Value() < headPerNode*int64(arrow.DataNodes) {
		p, _ := s.lookup("HEAD_MEM")
		s.refuse(p, "must be at least %dMi: that is what a head needs for %d data nodes", headPerNode*int64(arrow.DataNodes)>>20+1, arrow.DataNodes)
	}
	arrow.DataNode.Resources = s.resources("WORKER_CPU", "WORKER_MEM")
	arrow.Spill = s.spill()
}

// spill parses the volume for the rows of a data node; nil if none is wanted. A TrainJob's class replaces its runtime's folder.
func (s *spec) spill() *v1alpha1.Spill {
	limit, wanted := s.lookup("SPILL_LIMIT")
	class, claims := s.lookup("SPILL_STORAGE_CLASS")
	folder, folders := s.lookup(folderName)
	if !wanted {
		if class.own {
			s.refuse(class, "has an effect only with SPILL_LIMIT, which says how much of such a volume the rows of a data node may take, such as 200Gi")
		}
		return nil
	}
	amount, reason := parseQuantity(limit.value, corev1.ResourceMemory)
	if reason == "" && amount.Cmp(leastSpill) < 0 {
		reason = "must be at least 16Mi: it counts bytes"
	}
	if reason != "" {
		s.refuse(limit, "%s", reason)
	}
	spill := &v1alpha1.Spill{Limit: amount}
	switch {
	case claims && folders && !class.own:
		s.refuse(class, "excludes %s: leave one of them out", folderName)
	case claims:
		if wrong := validation.IsDNS1123Subdomain(class.value); wrong != nil {
			s.refuse(class, "must be the name of a StorageClass: %s", wrong[0])
		}
		spill.Ephemeral = &v1alpha1.SpillClaim{StorageClassName: &class.value}
	case folders:
		if !path.IsAbs(folder.value) || slices.Contains(strings.Split(folder.value, "/"), "..") {
			s.refuse(folder, "must be the absolute path of a folder of the machines, without ..")
		}
		spill.HostPath = &v1alpha1.SpillFolder{Path: folder.value}
	}
	return spill
}

func (s *spec) resources(cpu, memory string) corev1.ResourceRequirements {
	var requests corev1.ResourceList
	for _, of := range []struct {
		name     string
		resource corev1.ResourceName
	}{{cpu, corev1.ResourceCPU}, {memory, corev1.ResourceMemory}} {
		p, ok := s.lookup(of.name)
		if !ok {
			continue
		}
		amount, reason := parseQuantity(p.value, of.resource)
		if reason != "" {
			s.refuse(p, "%s", reason)
			continue
		}
		if requests == nil {
			requests = corev1.ResourceList{}
		}
		requests[of.resource] = amount
	}
	return corev1.ResourceRequirements{Requests: requests}
}

// access parses how the cache's pods authenticate to the object store; nil credentials mean none.
func (s *spec) access(arrow *v1alpha1.ArrowCache) (credentials *v1alpha1.Credentials) {
	if p, ok := s.lookup("IAM_ROLE"); ok {
		arrow.ServiceAccount.Annotations = accountAnnotations(p.value)
	}
	if ref := s.job.OwnSecret; ref != nil && ref.Name == "" {
		s.errs = append(s.errs, field.Required(secretPath.Child("name"), "must name a Secret of the TrainJob's namespace: set it, or leave secretRef out"))
	}
	if name := s.job.secret; name != "" {
		if wrong := badSecret(name); wrong != nil {
			s.errs = append(s.errs, wrong)
		}
		credentials = &v1alpha1.Credentials{SecretRef: corev1.LocalObjectReference{Name: name}}
		if arrow.Catalog != nil {
			arrow.Catalog.Credentials = credentials.DeepCopy()
		}
	}
	for _, p := range s.given.sorted() {
		if !storeName.MatchString(p.name) {
			continue
		}
		if runes(p.name) > maxVariable || runes(p.value) > maxValue {
			s.refuse(p, "%s is too long: at most %d characters in the name and %d in the value are allowed", p.name, maxVariable, maxValue)
		}
		arrow.Env = append(arrow.Env, v1alpha1.StoreVariable{Name: p.name, Value: p.value})
	}
	if len(arrow.Env) > maxVariables {
		s.errs = append(s.errs, field.TooMany(envPath, len(arrow.Env), maxVariables))
	}
	return credentials
}

// accountAnnotations returns the annotations with which clouds assign a role to a ServiceAccount: that of upstream's initializer for
// AWS (kubeflow/trainer v2.3.0 pkg/initializers/dataset/cache.py:123), or GKE's if the role is a Google service account's e-mail
// address.
func accountAnnotations(role string) map[string]string {
	if strings.HasSuffix(role, ".gserviceaccount.com") {
		return map[string]string{"iam.gke.io/gcp-service-account": role}
	}
	return map[string]string{"eks.amazonaws.com/role-arn": role, "eks.amazonaws.com/sts-regional-endpoints": "true"}
}

// readiness parses the probes' timings; nil if none is given. Missing ones stay 0, so that the API sets the defaults.
func (s *spec) readiness() *v1alpha1.Readiness {
	var timings v1alpha1.Readiness
	given := false
	for _, of := range []struct {
		name  string
		into  *int32
		least int
	}{
		{"READINESS_INITIAL_DELAY_SECONDS", &timings.InitialDelaySeconds, 0},
		{"READINESS_PERIOD_SECONDS", &timings.PeriodSeconds, 1},
		{"READINESS_TIMEOUT_SECONDS", &timings.TimeoutSeconds, 1},
		{"READINESS_FAILURE_THRESHOLD", &timings.FailureThreshold, 1},
	} {
		p, ok := s.lookup(of.name)
		if !ok {
			continue
		}
		n, reason := whole(p.value, of.least, math.MaxInt32)
		if reason != "" {
			s.refuse(p, "%s", reason)
		}
		*of.into, given = n, true
	}
	if !given {
		return nil
	}
	return &timings
}

// lifetime parses whether other TrainJobs may share the cache, and how long it is kept after the last one. A cache with a step is shared by default, so
// that the trials of a sweep run the step once.
func (s *spec) lifetime() (shared bool, idle time.Duration) {
	scope, _ := s.lookup("CACHE_SCOPE")
	switch scope.value {
	case "":
		_, shared = s.lookup(deriveName)
	case "job":
	case "namespace":
		shared = true
	default:
		s.refuse(scope, `must be "job", for a cache that goes with its TrainJob, or "namespace", for one that the namespace's TrainJobs share`)
	}
	ttl, ok := s.lookup("IDLE_TTL")
	if !ok {
		return shared, defaultIdleTTL
	}
	if ttl.own && !shared {
		s.refuse(ttl, "has an effect only with CACHE_SCOPE=namespace: a TrainJob's own cache goes when it ends")
	}
	idle, err := time.ParseDuration(ttl.value)
	if err != nil || idle < 0 {
		s.refuse(ttl, "must be a time that is not negative, such as 30m or 10h")
	}
	return shared, idle
}

// suspendGrace parses how long a TrainJob's own cache is kept while the TrainJob is suspended; nil if it is not given.
func (s *spec) suspendGrace() *metav1.Duration {
	p, ok := s.lookup("SUSPEND_GRACE")
	if !ok {
		return nil
	}
	grace, err := time.ParseDuration(p.value)
	if err != nil || grace < 0 {
		s.refuse(p, "must be a time that is not negative, such as 0s or 10m")
	}
	return &metav1.Duration{Duration: grace}
}
