// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestFieldsSayWhetherTheyChangeRows checks that each field of a cache is marked, since TrainJobs share a cache if the marked fields are
// equal, and that a field that changes rows can't be changed in a cache that exists.
func TestFieldsSayWhetherTheyChangeRows(t *testing.T) {
	t.Parallel()
	crd, err := os.ReadFile(crdFile)
	if err != nil {
		t.Fatal(err)
	}
	rules := strings.Join(strings.Fields(string(crd)), " ")
	fixed := func(field string) bool { return strings.Contains(rules, "self."+field+" == oldSelf."+field) }
	for field := range fieldsOf(t, reflect.TypeFor[ArrowCache]()) {
		if whole, _, _ := strings.Cut(field, "."); !fixed(field) && !fixed(whole) {
			t.Errorf("%s changes rows, but no rule of the CRD compares it with oldSelf.%s", field, field)
		}
	}
}

// fieldsOf returns the paths of the fields that change rows, those of structs that they point to included.
func fieldsOf(t *testing.T, of reflect.Type) map[string]bool {
	t.Helper()
	fields := map[string]bool{}
	for field := range of.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch mark := field.Tag.Get("rows"); mark {
		case "yes":
			if field.Type.Kind() != reflect.Pointer || field.Type.Elem().Kind() != reflect.Struct {
				fields[name] = true
				continue
			}
			for inner := range fieldsOf(t, field.Type.Elem()) {
				fields[name+"."+inner] = true
			}
		case "no":
		default:
			t.Errorf("%s.%s has the tag rows:%q: want yes or no", of.Name(), field.Name, mark)
		}
	}
	return fields
}
