// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/internal/reference"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// parameterNames are the environment variables that select what to cache and how, in the order in which errors list them. The first
// ones are those of the Kubeflow SDK's DataCacheInitializer.
var parameterNames = []string{
	"METADATA_LOC", "CLUSTER_SIZE", "HEAD_CPU", "HEAD_MEM", "WORKER_CPU", "WORKER_MEM", "SPILL_LIMIT", "SPILL_STORAGE_CLASS", folderName, "IAM_ROLE",
	"SCHEMA_NAME", "TABLE_NAME", "CATALOG_URI", "CATALOG_WAREHOUSE", "COLUMNS", "FILTER", "SNAPSHOT_ID", "TRUST_MANIFESTS", "PUTS", deriveName, firstEpochName, "CACHE_SCOPE", "IDLE_TTL",
	"READERS", "SUSPEND_GRACE", "READINESS_INITIAL_DELAY_SECONDS", "READINESS_PERIOD_SECONDS", "READINESS_TIMEOUT_SECONDS", "READINESS_FAILURE_THRESHOLD",
}

// gateNames are the gate's own variables (cacheserver initializer --help), which are passed to it unchanged.
var gateNames = []string{"READY_TIMEOUT", "PROGRESS_INTERVAL", gateName}

// gateName is the variable that says until when the gate waits.
const gateName = "GATE"

// firstEpochName is the variable of the epoch whose rows are loaded first.
const firstEpochName = "FIRST_EPOCH"

// deriveName is the variable of the step that makes a dataset of the cache's rows, which the TrainJob reads in their place.
const deriveName = reference.DeriveVariable

// folderName is the variable of a folder of the machines for rows.
const folderName = "SPILL_HOST_PATH"

// fluidNames are the variables that only a cache of files reads; IDLE_TTL and CACHE_SCOPE are shared with caches of tables.
var fluidNames = []string{
	"MOUNT_PATH", "SUB_DIR_NAME", "CACHE_RUNTIME", "CACHE_PROFILE", "CACHE_QUOTA", "CACHE_MEDIUM", "CACHE_PATH", "CACHE_REPLICAS",
	"CACHE_NAME", "WARM_UP",
}

// storeName matches the variables of object stores' clients, which DataCache.spec.arrow.env accepts.
var storeName = regexp.MustCompile(`^((AWS|AZURE|GCS|GOOGLE|S3)_[A-Z0-9_]+|HF_ENDPOINT)$`)

// queryNames maps the query parameters of a cache:// URI to the corresponding variables, folderNames those of a cache+ URI, and deltaNames those
// of one of a Delta table. PARTITIONS can be set only there.
var (
	queryNames  = map[string]string{"columns": "COLUMNS", "filter": "FILTER", "snapshot": "SNAPSHOT_ID"}
	folderNames = map[string]string{"columns": "COLUMNS", "filter": "FILTER", "partitions": "PARTITIONS"}
	deltaNames  = map[string]string{"columns": "COLUMNS", "filter": "FILTER", versionName: "SNAPSHOT_ID"}
)

// platformNames are the variables that only a runtime may set, each with the reason.
var platformNames = map[string]string{
	imageName:        "the platform chooses the cache's image",
	"TRAIN_JOB_NAME": "the runtime sets it to the TrainJob's own name",
	folderName:       "the platform chooses folders of its machines",
}

// StatusVariable is the variable by which the gate learns where it can ask for the state of a cache without a head
// (cacheserver initializer --status). Only admission sets it.
const StatusVariable = "CACHE_STATUS"

// IsParameter reports whether a cache or its gate reads a variable.
func IsParameter(name string) bool {
	return slices.Contains(parameterNames, name) || slices.Contains(fluidNames, name) || slices.Contains(gateNames, name) || storeName.MatchString(name)
}

var (
	datasetPath = field.NewPath("spec", "initializer", "dataset")
	uriPath     = datasetPath.Child("storageUri")
	envPath     = datasetPath.Child("env")
	secretPath  = datasetPath.Child("secretRef")
	runtimePath = field.NewPath("spec", "runtimeRef")
)

// parameter is a given value and where it was given.
type parameter struct {
	name  string // of the variable or the query parameter
	value string // never empty
	path  *field.Path
	whose string // prefix of the fix in errors: whose value it is, if the path does not tell
	own   bool   // set by the TrainJob, not by its runtime
}

// invalid returns the error for the value.
func (p parameter) invalid(format string, args ...any) *field.Error {
	value := p.value
	if !p.own || p.path == uriPath {
		value = p.name + "=" + p.value
	}
	return field.Invalid(p.path, value, p.whose+fmt.Sprintf(format, args...))
}

// parameters are the given values by the name of their variable.
type parameters map[string]parameter

// gather collects a TrainJob's variables and, for those that are missing or empty, its runtime's.
func gather(j *Job, defaults []corev1.EnvVar) *spec {
	given := parameters{}
	errs := given.addOwn(j.env)
	own := maps.Clone(given)
	for _, v := range defaults {
		if _, overridden := own[v.Name]; overridden || !IsParameter(v.Name) {
			continue
		}
		if v.ValueFrom != nil {
			errs = append(errs, field.Invalid(runtimePath, v.Name,
				"the runtime's step "+wellknown.StepName+" sets this variable by valueFrom, which the cache can't read: set a value, or give credentials by spec.initializer.dataset.secretRef"))
			continue
		}
		if v.Value != "" {
			given[v.Name] = parameter{name: v.Name, value: v.Value, path: runtimePath, whose: "from the runtime's step " + wellknown.StepName + ": "}
		}
	}
	return &spec{job: j, given: given, errs: errs}
}

// addOwn adds the TrainJob's variables.
func (g parameters) addOwn(env []corev1.EnvVar) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, v := range env {
		at := envPath.Index(i)
		reason, platform := platformNames[v.Name]
		switch {
		case platform:
			errs = append(errs, field.Forbidden(at.Child("name"), fmt.Sprintf("%s can't be set by a TrainJob: %s; leave it out", v.Name, reason)))
		case v.Name != StatusVariable && !IsParameter(v.Name):
			errs = append(errs, field.Invalid(at.Child("name"), v.Name, "is no parameter of a cache; those are "+
				strings.Join(slices.Concat(parameterNames, gateNames, fluidNames), ", ")+
				", HF_ENDPOINT and what begins with AWS_, AZURE_, GCS_, GOOGLE_ or S3_; variables for training go into spec.trainer.env"))
		case seen[v.Name]:
			errs = append(errs, field.Duplicate(at.Child("name"), v.Name))
		case v.ValueFrom != nil:
			errs = append(errs, field.Forbidden(at.Child("valueFrom"),
				fmt.Sprintf("%s must be a plain value, for nobody but a pod can read what this points at; credentials go into %s", v.Name, secretPath)))
		case v.Value != "":
			g[v.Name] = parameter{name: v.Name, value: v.Value, path: at.Child("value"), own: true}
		}
		seen[v.Name] = true
	}
	return errs
}

// addQuery adds the parameters of a URI whose names are known. They override the runtime's, and the TrainJob's variables must not repeat them.
func (g parameters) addQuery(query map[string][]string, names map[string]string) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(query)) {
		values := query[name]
		variable, known := names[name]
		if !known {
			errs = append(errs, field.Invalid(uriPath, name, "is no parameter of such a URI; those are "+strings.Join(slices.Sorted(maps.Keys(names)), ", ")))
			continue
		}
		if len(values) > 1 {
			errs = append(errs, field.Invalid(uriPath, name+"="+values[1], "is given twice: give "+name+" once"))
			continue
		}
		if values[0] == "" {
			continue
		}
		p := parameter{name: name, value: values[0], path: uriPath, own: true}
		if env, twice := g[variable]; twice && env.own {
			errs = append(errs, env.invalid("%s is also given by %s of the storageUri: give it once", variable, name))
			continue
		}
		g[variable] = p
	}
	return errs
}

// refuseFluid rejects the variables of a TrainJob that only a cache of files reads. A runtime may set them for other TrainJobs.
func (s *spec) refuseFluid() {
	for _, p := range s.given.sorted() {
		if p.own && (slices.Contains(fluidNames, p.name) || p.name == StatusVariable) {
			s.refuse(p, "has no effect on a cache of a table: leave %s out, or name files by %ss3://bucket/folder", p.name, fluidScheme)
		}
	}
}

// spec converts parameters to a DataCache's spec and collects errors.
type spec struct {
	job   *Job
	given parameters
	errs  field.ErrorList
}

// lookup returns a parameter; ok is false if it was not given.
func (s *spec) lookup(name string) (parameter, bool) {
	p, ok := s.given[name]
	return p, ok
}

func (s *spec) refuse(p parameter, format string, args ...any) {
	s.errs = append(s.errs, p.invalid(format, args...))
}

// gate checks the gate's own variables, which it would reject only when it runs.
func (s *spec) gate() {
	for _, name := range gateNames {
		p, ok := s.lookup(name)
		if !ok {
			continue
		}
		if name == gateName {
			if p.value != "ready" && p.value != "counted" {
				s.refuse(p, `must be "ready" or "counted"`)
			}
			continue
		}
		if d, err := time.ParseDuration(p.value); err != nil || d <= 0 {
			s.refuse(p, "must be a time such as 90s, 30m or 2h")
		}
	}
}

func isGate(name string) bool { return slices.Contains(gateNames, name) }

// whole parses an integer in [least, most]; a non-empty string is the reason why it is invalid.
func whole(text string, least, most int) (int32, string) {
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, fmt.Sprintf("must be an integer from %d to %d", least, most)
	}
	return int32(n), "" // most is well within 32 bits
}

// isIgnored reports whether a variable is one that the Kubeflow SDK always sets (kubeflow 0.5.0 backends/kubernetes/utils.py:653).
func isIgnored(p parameter) bool { return p.name == "CLUSTER_SIZE" && p.value == "1" }

// badSecret returns the error for a name that no Secret can have.
func badSecret(name string) *field.Error {
	if wrong := validation.IsDNS1123Subdomain(name); wrong != nil {
		return field.Invalid(secretPath.Child("name"), name, "must be the name of a Secret of the TrainJob's namespace: "+wrong[0])
	}
	return nil
}

// sorted returns the parameters sorted by name.
func (g parameters) sorted() []parameter {
	all := make([]parameter, 0, len(g))
	for _, p := range g {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b parameter) int { return cmp.Compare(a.name, b.name) })
	return all
}
