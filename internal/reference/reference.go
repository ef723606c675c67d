// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reference reads the storageUri datacache://... of a TrainJob, and names the Services at which the TrainJob's clients find the
// caches. Both the control plane and the step that waits use it, and python/src/kubeflow_datacache/services.py does the same.
package reference

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
)

// Scheme is the prefix of a storageUri that names DataCaches.
const Scheme = "datacache://"

// Max is the maximum number of DataCaches in a storageUri.
const Max = 16

// Names returns the names in a storageUri, unchecked and as they are written there: <name>, <namespace>/<name> or
// <namespace>/<name>/<dataset>. It is nil for a
// storageUri of another scheme.
func Names(uri string) []string {
	rest, ours := strings.CutPrefix(uri, Scheme)
	if !ours {
		return nil
	}
	return strings.Split(rest, ",")
}

// Dataset is the dataset that a name of a storageUri has, <namespace>/<name>/<dataset>; "" if it has none.
func Dataset(name string) string {
	if parts := strings.SplitN(name, "/", 3); len(parts) == 3 {
		return parts[2]
	}
	return ""
}

// DeriveVariable is the variable of a TrainJob with the step that makes a dataset of its cache's rows, as JSON.
const DeriveVariable = "DERIVE"

// Derived is the dataset that a step makes, by the value of DeriveVariable; "" if there is no step.
func Derived(step string) string {
	var s struct {
		Dataset string `json:"dataset"`
	}
	if json.Unmarshal([]byte(step), &s) != nil { // admission refuses it
		return ""
	}
	return s.Dataset
}

// Service is the name of the Service of a DataCache, and of the one at which a TrainJob's clients find the first or only cache that it
// uses.
func Service(owner string) string { return owner + "-cache-service" }

// NamedService is the name of the Service at which the clients of a TrainJob that names several caches find the one with the name, which
// must be written as in the storageUri. It has 23 characters more than the TrainJob's name.
func NamedService(job, name string) string { return Service(job) + "-" + Hash(name) }

// Hash tells a TrainJob's caches apart by their names, which must be written as in the storageUri.
func Hash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:4])
}
