// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// DefaultMountPath is where files are mounted if a TrainJob does not say: where Trainer's own initializers put a dataset
// (kubeflow/trainer v2.3.0 pkg/constants/constants.go).
const DefaultMountPath = "/workspace/dataset"

// Limits of the API (api/v1alpha1/fluid_types.go).
const (
	maxPath         = 1024
	maxFluidWorkers = 1000
	maxCacheName    = 43
	maxMountName    = 63
)

var (
	mountPathForm = regexp.MustCompile(`^/[^:]*[^/:]$`)
	mountNameForm = regexp.MustCompile(`^[a-z0-9A-Z]([-_.a-z0-9A-Z]*[a-z0-9A-Z])?$`)
)

var (
	fluidKinds = []v1alpha1.FluidKind{v1alpha1.FluidAlluxio, v1alpha1.FluidJuiceFS, v1alpha1.FluidJindo, v1alpha1.FluidGooseFS, v1alpha1.FluidThin}
	fluidMedia = []v1alpha1.FluidMedium{v1alpha1.FluidMemory, v1alpha1.FluidSSD, v1alpha1.FluidHDD}
)

// isFluidParameter reports whether a variable is read by a cache of files or its gate.
func isFluidParameter(name string) bool {
	return slices.Contains(fluidNames, name) || isGate(name) || name == "IDLE_TTL" || name == "CACHE_SCOPE" || name == StatusVariable
}

// files parses the request of a TrainJob that names files. Their cache is always one of the namespace, because its name must be known
// when the TrainJob is admitted, also where the TrainJob's own name is generated.
func (s *spec) files() (*Request, field.ErrorList) {
	for _, p := range s.given.sorted() {
		if p.own && !isFluidParameter(p.name) && !isIgnored(p) {
			s.refuse(p, "has no effect on files that Fluid caches: leave %s out, or name a table by %s", p.name, tableScheme)
		}
	}
	cache := &v1alpha1.FluidCache{Mounts: []v1alpha1.FluidMount{s.mount()}, MountPath: s.mountPath()}
	cache.Runtime = s.fluidRuntime()
	cache.WarmUp = s.warmUp(cache.Runtime.Kind)
	cache.EncryptOptions = s.encryptOptions(cache)
	s.gate()
	idle := s.idleTTL()
	name := s.cacheName()
	if len(s.errs) > 0 {
		return nil, s.errs
	}
	request := &Request{Cache: v1alpha1.DataCacheSpec{Fluid: cache}, Shared: true, Name: name}
	request.Cache.Retention.IdleTTL = &metav1.Duration{Duration: idle}
	request.Cache.Retention.DeleteAfterIdle = &metav1.Duration{Duration: max(idle, deleteAfterIdle)}
	if name == "" {
		request.Name = sharedFluidName(cache)
	}
	return request, nil
}

// mount parses the location, and the folder below the mount path in which its files are found.
func (s *spec) mount() v1alpha1.FluidMount {
	location := strings.TrimPrefix(s.job.uri, fluidScheme)
	if !uriForm.MatchString(location) || strings.ContainsFunc(location, unreadable) || runes(location) > maxURI {
		s.errs = append(s.errs, field.Invalid(uriPath, s.job.uri, fluidForm))
	}
	mount := v1alpha1.FluidMount{Name: "dataset", MountPoint: location, Path: "/", ReadOnly: new(true)}
	if p, ok := s.lookup("SUB_DIR_NAME"); ok {
		if !mountNameForm.MatchString(p.value) || len(p.value) > maxMountName {
			s.refuse(p, "must be the name of one folder: at most %d letters, digits, -, _ and ., such as imagenet", maxMountName)
		}
		mount.Name, mount.Path = p.value, "/"+p.value
	}
	return mount
}

func (s *spec) mountPath() string {
	p, ok := s.lookup("MOUNT_PATH")
	if !ok {
		return DefaultMountPath
	}
	if !mountPathForm.MatchString(p.value) || runes(p.value) > maxPath {
		s.refuse(p, "must be an absolute path with no colon and no / at its end, of at most %d characters, such as /data", maxPath)
	}
	return p.value
}

func (s *spec) fluidRuntime() v1alpha1.FluidRuntime {
	runtime := v1alpha1.FluidRuntime{Kind: oneOf(s, "CACHE_RUNTIME", v1alpha1.FluidAlluxio, fluidKinds), Replicas: 1}
	if p, ok := s.lookup("CACHE_REPLICAS"); ok {
		replicas, reason := whole(p.value, 1, maxFluidWorkers)
		if reason != "" {
			s.refuse(p, "%s: the number of workers", reason)
		}
		runtime.Replicas = replicas
	}
	profile, ok := s.lookup("CACHE_PROFILE")
	thin := runtime.Kind == v1alpha1.FluidThin
	switch {
	case thin && !ok:
		s.errs = append(s.errs, field.Required(envPath, "CACHE_PROFILE must name a ThinRuntimeProfile where CACHE_RUNTIME is Thin: "+
			"'kubectl get thinruntimeprofiles' lists what there is"))
	case thin && validation.IsDNS1123Subdomain(profile.value) != nil:
		s.refuse(profile, "must be the name of a ThinRuntimeProfile")
	case !thin && ok && profile.own:
		s.refuse(profile, "has an effect only with CACHE_RUNTIME=Thin: leave it out")
	}
	if thin {
		runtime.Profile = profile.value
	}
	if tier := s.tier(thin); tier != nil {
		runtime.Tiers = []v1alpha1.FluidTier{*tier}
	}
	return runtime
}

// tier parses the one tier that variables can describe; several tiers need a DataCache. It is nil for a runtime of kind Thin without a
// quota.
func (s *spec) tier(thin bool) *v1alpha1.FluidTier {
	quota, ok := s.lookup("CACHE_QUOTA")
	if !ok && thin {
		return nil
	}
	tier := &v1alpha1.FluidTier{Medium: oneOf(s, "CACHE_MEDIUM", v1alpha1.FluidMemory, fluidMedia)}
	if !ok {
		s.errs = append(s.errs, field.Required(envPath, "CACHE_QUOTA must be set to the bytes of files that a worker keeps, such as 4Gi"))
	} else {
		amount, reason := parseQuantity(quota.value, "memory")
		if reason != "" {
			s.refuse(quota, "%s", reason)
			amount = resource.Quantity{}
		}
		tier.Quota = amount
	}
	path, given := s.lookup("CACHE_PATH")
	switch {
	case given && (!strings.HasPrefix(path.value, "/") || runes(path.value) > maxPath):
		s.refuse(path, "must be an absolute path of at most %d characters: the folder on the node", maxPath)
	case !given && tier.Medium != v1alpha1.FluidMemory:
		s.errs = append(s.errs, field.Required(envPath, fmt.Sprintf("CACHE_PATH must be set to the folder on the node where CACHE_MEDIUM is %s", tier.Medium)))
	}
	tier.Path = path.value
	return tier
}

// oneOf parses a word, in any case.
func oneOf[T ~string](s *spec, name string, fallback T, allowed []T) T {
	p, ok := s.lookup(name)
	if !ok {
		return fallback
	}
	words := make([]string, len(allowed))
	for i, word := range allowed {
		if strings.EqualFold(p.value, string(word)) {
			return word
		}
		words[i] = string(word)
	}
	s.refuse(p, "must be one of %s", strings.Join(words, ", "))
	return fallback
}

func (s *spec) warmUp(kind v1alpha1.FluidKind) bool {
	p, ok := s.lookup("WARM_UP")
	if !ok {
		return false
	}
	on, err := strconv.ParseBool(p.value)
	if err != nil {
		s.refuse(p, "must be true or false")
	}
	if on && kind == v1alpha1.FluidThin {
		if !p.own {
			return false
		}
		s.refuse(p, "must be false with CACHE_RUNTIME=Thin: Fluid has no DataLoad for it")
	}
	return on
}

// s3Secret maps Alluxio's options to the keys of a Secret, which are those that a cache of a table reads.
var s3Secret = [][2]string{{"aws.accessKeyId", "AWS_ACCESS_KEY_ID"}, {"aws.secretKey", "AWS_SECRET_ACCESS_KEY"}}

// encryptOptions parses the Secret with credentials. Fluid wants the name of every option and key, and nobody here can read the Secret:
// only for S3 by Alluxio both are known.
func (s *spec) encryptOptions(cache *v1alpha1.FluidCache) []v1alpha1.FluidEncryptOption {
	name := s.job.secret
	if name == "" && s.job.OwnSecret == nil {
		return nil
	}
	if wrong := badSecret(name); wrong != nil {
		s.errs = append(s.errs, wrong)
		return nil
	}
	scheme, _, _ := strings.Cut(cache.Mounts[0].MountPoint, "://")
	if cache.Runtime.Kind != v1alpha1.FluidAlluxio || scheme != "s3" && scheme != "s3a" {
		s.errs = append(s.errs, field.Invalid(secretPath.Child("name"), name, fmt.Sprintf(
			"which options of %s its keys are is known only for s3:// with CACHE_RUNTIME=Alluxio: make a DataCache with spec.fluid.encryptOptions, and name it by %s",
			cache.Runtime.Kind, referenceScheme)))
		return nil
	}
	var options []v1alpha1.FluidEncryptOption
	for _, pair := range s3Secret {
		options = append(options, v1alpha1.FluidEncryptOption{Name: pair[0], SecretName: name, Key: pair[1]})
	}
	return options
}

// idleTTL parses how long the cache is kept after its last TrainJob.
func (s *spec) idleTTL() time.Duration {
	if scope, ok := s.lookup("CACHE_SCOPE"); ok && scope.own && scope.value != "namespace" {
		s.refuse(scope, `must be "namespace" or left out: the namespace's TrainJobs share the files that Fluid caches`)
	}
	p, ok := s.lookup("IDLE_TTL")
	if !ok {
		return defaultIdleTTL
	}
	idle, err := time.ParseDuration(p.value)
	if err != nil || idle < 0 {
		s.refuse(p, "must be a time that is not negative, such as 30m or 10h")
	}
	return idle
}

func (s *spec) cacheName() string {
	p, ok := s.lookup("CACHE_NAME")
	if !ok {
		return ""
	}
	if wrong := validation.IsDNS1035Label(p.value); wrong != nil || len(p.value) > maxCacheName {
		s.refuse(p, "must be the name of a DataCache: at most %d characters a-z, 0-9 and -, the first of them a letter", maxCacheName)
	}
	return p.value
}

// sharedFluidName is the name of the cache shared by the TrainJobs of a namespace that name the same files, cached in the same way.
func sharedFluidName(cache *v1alpha1.FluidCache) string {
	var text strings.Builder
	for _, f := range fluidFields(cache) {
		fmt.Fprintf(&text, "%s=%s ", f.name, f.value)
	}
	sum := sha256.Sum256([]byte("fluid " + text.String()))
	return "shared-" + hex.EncodeToString(sum[:8])
}

// FluidDifference says in which field, and how, the cache that exists differs from the one that is requested; "" if both are of the same
// files, cached in the same way. The number of workers, and where a TrainJob mounts the files, do not matter.
func FluidDifference(have, want *v1alpha1.FluidCache) string {
	if have == nil {
		return "spec.fluid is not set, for it caches a table"
	}
	wanted := fluidFields(want)
	for i, f := range fluidFields(have) {
		if f.value != wanted[i].value {
			return fmt.Sprintf("spec.fluid.%s is %s, and %s is asked for", f.name, f.value, wanted[i].value)
		}
	}
	return ""
}

type fluidField struct{ name, value string }

// fluidFields are the fields that identify a cache, as canonical JSON: the same for a request and for the object that the API server
// stores.
func fluidFields(cache *v1alpha1.FluidCache) []fluidField {
	fields := []fluidField{
		{"mounts", canonical(cache.Mounts)},
		{"runtime.kind", canonical(cache.Runtime.Kind)},
		{"runtime.profile", canonical(cache.Runtime.Profile)},
		{"runtime.tiers", canonical(cache.Runtime.Tiers)},
		{"runtime.properties", canonical(cache.Runtime.Properties)},
		{"encryptOptions", canonical(cache.EncryptOptions)},
		{"warmUp", canonical(cache.WarmUp)},
	}
	return fields
}

func canonical(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // impossible: every value of this type can be encoded as JSON
	}
	return string(text)
}
