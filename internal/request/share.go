// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"time"

	"k8s.io/utils/ptr"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// SameRows reports whether two caches hold the same rows and columns: the same table, source, snapshot, columns in order, and
// equivalent filters, and the same dataset made of them by the same image and command. Sizes and credentials don't matter.
func SameRows(a, b *v1alpha1.ArrowCache) bool { return canonicalRows(a) == canonicalRows(b) }

// sharedName is the name of the cache shared by the TrainJobs of a namespace that request the same rows, as SameRows compares them, and say the
// same of who reads it. Sizes and credentials are those of the first TrainJob.
func sharedName(arrow *v1alpha1.ArrowCache, readers v1alpha1.Readers) string {
	sum := sha256.Sum256([]byte(canonicalRows(arrow) + string(readers)))
	return "shared-" + hex.EncodeToString(sum[:8])
}

// canonicalRows encodes in a canonical form which rows and columns a cache holds: the fields of the API whose tag isn't rows:"no", and the dataset made
// of the rows by the step. A request and the object that the API server stores for it have the same encoding.
func canonicalRows(arrow *v1alpha1.ArrowCache) string {
	rows := arrow.DeepCopy()
	clearOthers(reflect.ValueOf(rows).Elem())
	if step := arrow.Derive; step != nil { // its sizes don't matter either
		rows.Derive = &v1alpha1.Derive{Dataset: step.Dataset, Image: step.Image, Command: step.Command, Env: step.Env}
	}
	if canonical, err := syntax.Canonical(ptr.Deref(rows.Filter, "")); err == nil { // a filter that can't be parsed is compared literally
		rows.Filter = nilIfEmpty(canonical)
	}
	if s := rows.Snapshot; s != nil && s.AsOf != nil {
		if at, err := time.Parse(time.RFC3339, *s.AsOf); err == nil { // the API rejects other formats
			s.AsOf = new(at.UTC().Format(time.RFC3339Nano))
		}
	}
	if s := rows.Source; s != nil && s.Files != nil && s.Files.Partitions == v1alpha1.PartitionsAuto {
		s.Files.Partitions = "" // the default
	}
	text, err := json.Marshal(rows)
	if err != nil {
		panic(err) // strings, numbers and structs of them always have a JSON form
	}
	return string(text)
}

// clearOthers sets the fields tagged rows:"no" to their zero values, in the struct and in those that its other fields point to.
func clearOthers(of reflect.Value) {
	for i := range of.NumField() {
		field := of.Field(i)
		switch {
		case of.Type().Field(i).Tag.Get("rows") == "no":
			field.SetZero()
		case field.Kind() == reflect.Pointer && !field.IsNil() && field.Type().Elem().Kind() == reflect.Struct:
			clearOthers(field.Elem())
		}
	}
}

func nilIfEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
