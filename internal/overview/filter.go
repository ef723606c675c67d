// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package overview

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// Filter says which DataCaches a page lists.
type Filter struct {
	Namespace string           // empty: of all namespaces
	States    []v1alpha1.State // empty: in any state
}

// states are all states, those that want attention first.
var states = []v1alpha1.State{
	v1alpha1.StateFailed, v1alpha1.StateDegraded, v1alpha1.StatePending, v1alpha1.StatePlanning, v1alpha1.StateLoading,
	v1alpha1.StateReady, v1alpha1.StateReleased,
}

// ParseFilter reads the query parameters namespace and state; the latter may be there several times. Others are ignored. The error is for
// the sender of the request.
func ParseFilter(query url.Values) (Filter, error) {
	f := Filter{Namespace: query.Get("namespace")}
	if f.Namespace != "" && len(validation.IsDNS1123Label(f.Namespace)) > 0 {
		return Filter{}, fmt.Errorf("namespace: %q is not the name of a namespace", f.Namespace)
	}
	for _, text := range query["state"] {
		state := v1alpha1.State(text)
		switch {
		case state == "":
		case !slices.Contains(states, state):
			return Filter{}, fmt.Errorf("state: %q is none of %s", text, strings.Join(names(states), ", "))
		case !slices.Contains(f.States, state):
			f.States = append(f.States, state)
		}
	}
	return f, nil
}

func names(states []v1alpha1.State) []string {
	text := make([]string, len(states))
	for i, s := range states {
		text[i] = string(s)
	}
	return text
}

// Query is the filter as a URL that is relative to the page: a question mark and parameters.
func (f Filter) Query() string {
	values := url.Values{}
	if f.Namespace != "" {
		values.Set("namespace", f.Namespace)
	}
	if len(f.States) > 0 {
		values["state"] = names(f.States)
	}
	return "?" + values.Encode()
}

// has reports whether a state is one of the filter's.
func (f Filter) has(state v1alpha1.State) bool {
	return len(f.States) == 0 || slices.Contains(f.States, state)
}
