// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"encoding/json"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
)

// Environment variables of head and data nodes; cmd/cacheserver/flags.go reads them.
const (
	envMetadata   = "METADATA_LOC"
	envFiles      = "FILES"
	envDelta      = "DELTA"
	envPartitions = "PARTITIONS"
	envTypes      = "PARTITION_TYPES"
	envSchema     = "SCHEMA_NAME"
	envTable      = "TABLE_NAME"
	envCatalog    = "CATALOG_URI"
	envWarehouse  = "CATALOG_WAREHOUSE"
	envToken      = "CATALOG_TOKEN"
	envCredential = "CATALOG_CREDENTIAL"
	envSnapshot   = "SNAPSHOT_ID"
	envRef        = "SNAPSHOT_REF"
	envAsOf       = "SNAPSHOT_AS_OF"
	EnvPin        = "SNAPSHOT_PIN"
	envColumns    = "TABLE_COLUMNS"
	envFilter     = "FILTER"
	envTrust      = "TRUST_MANIFESTS"
	envSecret     = "CACHE_SECRET"
	envSharing    = "SHARING_FILE"
	envAccess     = "ACCESS_FILE"
	envAuthority  = "TLS_AUTHORITY"
	envNames      = "TLS_NAMES"
	envGoMemory   = "GOMEMLIMIT"
	envMachine    = "NODE_NAME"
	envFirst      = "FIRST_EPOCH"
	envPuts       = "PUTS"
	envPutKeep    = "PUT_KEEP"
	envPutLimit   = "PUT_LIMIT"
	envPutWriter  = "PUT_LIMIT_PER_WRITER"
	envCopy       = "COPY" // number of the copy that a pod belongs to
	envSpillDir   = "SPILL_DIR"
	envSpillLimit = "SPILL_LIMIT"

	envObjectCache       = "OBJECT_CACHE"
	envObjectCacheCA     = "OBJECT_CACHE_CA_FILE"
	envObjectCacheBucket = "OBJECT_CACHE_BUCKET"
	envObjectCacheToken  = "OBJECT_CACHE_TOKEN_FILE"
)

// sourceEnv returns the variables for the table's location and access, which head and data nodes both need.
func sourceEnv(dc *v1alpha1.DataCache) []corev1.EnvVar {
	arrow := dc.Spec.Arrow
	env := make([]corev1.EnvVar, 0, len(arrow.Env)+8)
	for _, v := range arrow.Env {
		env = append(env, variable(v.Name, v.Value))
	}
	switch s := arrow.Source; {
	case s == nil && arrow.Table == "":
	case s == nil:
		schema, table := splitTable(arrow.Table)
		env = append(env, variable(envSchema, schema), variable(envTable, table))
	case s.Delta != nil:
		env = append(env, variable(envDelta, s.Delta.URI))
	default:
		env = append(env, variable(envFiles, jsonList(s.Files.URIs)))
		if s.Files.Partitions == v1alpha1.PartitionsIgnore {
			env = append(env, variable(envPartitions, "off"))
		}
		if types := s.Files.PartitionTypes; len(types) > 0 {
			env = append(env, variable(envTypes, jsonObject(types)))
		}
	}
	if arrow.MetadataLocation != nil {
		env = append(env, variable(envMetadata, *arrow.MetadataLocation))
	}
	if c := arrow.Catalog; c != nil {
		env = append(env, variable(envCatalog, c.URI))
		if c.Warehouse != nil {
			env = append(env, variable(envWarehouse, *c.Warehouse))
		}
		if keys := c.Credentials; keys != nil {
			name := keys.SecretRef.Name
			env = append(env, fromSecret(envToken, name, "token", true), fromSecret(envCredential, name, "credential", true))
		}
	}
	return append(env, fromSecret(envSecret, kube.SecretName(dc), envSecret, false))
}

// selectionEnv returns the variables that select rows and columns according to the spec. The pinned snapshot is passed through the
// ConfigMap of settings instead: in the pod template it would be a change for which LeaderWorkerSet would recreate all pods.
func selectionEnv(dc *v1alpha1.DataCache) []corev1.EnvVar {
	arrow := dc.Spec.Arrow
	var env []corev1.EnvVar
	wanted := ptr.Deref(arrow.Snapshot, v1alpha1.Snapshot{})
	switch {
	case wanted.ID != nil:
		env = append(env, variable(envSnapshot, *wanted.ID))
	case wanted.Ref != nil:
		env = append(env, variable(envRef, *wanted.Ref))
	case wanted.AsOf != nil:
		env = append(env, variable(envAsOf, *wanted.AsOf))
	}
	if len(arrow.Columns) > 0 {
		env = append(env, variable(envColumns, jsonList(arrow.Columns)))
	}
	if arrow.Filter != nil {
		env = append(env, variable(envFilter, *arrow.Filter))
	}
	if arrow.TrustManifests {
		env = append(env, variable(envTrust, "true"))
	}
	if arrow.FirstEpoch != "" {
		env = append(env, variable(envFirst, arrow.FirstEpoch))
	}
	return env
}

// splitTable splits <schema>.<table> at the last dot: a schema may have several levels.
func splitTable(name string) (schema, table string) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return "", name
	}
	return name[:i], name[i+1:]
}

// variable returns a variable with the literal value: without escaping, the kubelet would expand $(NAME) and turn $$ into $
// (third_party/forked/golang/expansion).
func variable(name, value string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, Value: strings.ReplaceAll(value, "$", "$$")}
}

func fromSecret(name, secret, key string, optional bool) corev1.EnvVar {
	selector := &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: key}
	if optional {
		selector.Optional = new(true)
	}
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: selector}}
}

// jsonList encodes a list of names, which may contain commas.
func jsonList(names []string) string {
	text, err := json.Marshal(names)
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return string(text)
}

// jsonObject encodes the types of columns, by name, as cacheserver calls them.
func jsonObject(types map[string]v1alpha1.PartitionType) string {
	names := make(map[string]string, len(types))
	for column, t := range types {
		names[column] = strings.ToLower(string(t))
	}
	text, err := json.Marshal(names)
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return string(text)
}

// Decimal formats a number as the value of a variable.
func Decimal(n int64) string { return strconv.FormatInt(n, 10) }

func quantity(text string) resource.Quantity { return resource.MustParse(text) }
