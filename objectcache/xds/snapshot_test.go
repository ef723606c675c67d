// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

var update = flag.Bool("update", false, "write the golden file anew") //nolint:forbidigo // a flag of the test binary

// typeURLs are the types of resources.
var typeURLs = []string{resource.ListenerType, resource.RouteType, resource.ClusterType, resource.EndpointType}

var trio = []router.Member{
	{Name: "node-c", Address: "[2001:db8::3]:8000", Zone: "east"},
	{Name: "node-a", Address: "10.0.0.1:8000", Zone: "east"},
	{Name: "node-b", Address: "10.0.0.2:8000", Zone: "west"},
}

var on = netip.MustParseAddrPort("0.0.0.0:10000")

// TestGolden compares the snapshots of three members in two zones with testdata/snapshots.json. -update writes it anew.
func TestGolden(t *testing.T) {
	t.Parallel()
	made, err := snapshots(trio, Config{Listener: on})
	if err != nil {
		t.Fatal(err)
	}
	all := map[audience]map[string]map[string]json.RawMessage{}
	for who, snapshot := range made {
		all[who] = map[string]map[string]json.RawMessage{}
		for _, typeURL := range typeURLs {
			for name, r := range snapshot.GetResources(typeURL) {
				text, err := protojson.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				short := typeURL[strings.LastIndex(typeURL, ".")+1:]
				if all[who][short] == nil {
					all[who][short] = map[string]json.RawMessage{}
				}
				all[who][short][name] = text
			}
		}
	}
	got, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	got = normalize(t, got)
	file := filepath.Join("testdata", "snapshots.json")
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil { //nolint:gosec // a file of the repository
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("the snapshots changed; if that is right: go test ./objectcache/xds -update\n%s", diff)
	}
}

// normalize sorts fields and indents; protojson deliberately varies its spaces.
func normalize(t *testing.T, text []byte) []byte {
	t.Helper()
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// versions returns the versions of all types and resources.
func versions(t *testing.T, members []router.Member) map[string]string {
	t.Helper()
	made, err := snapshots(members, Config{Listener: on})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for who, snapshot := range made {
		for _, typeURL := range typeURLs {
			found[fmt.Sprintf("%s %s", who, typeURL)] = snapshot.GetVersion(typeURL)
			for name, version := range snapshot.GetVersionMap(typeURL) {
				found[fmt.Sprintf("%s %s %s", who, typeURL, name)] = version
			}
		}
	}
	return found
}

// TestReplicasAgree gives members in other orders, with a node's older pod, and then one member less.
func TestReplicasAgree(t *testing.T) {
	t.Parallel()
	random := seedtest.New(t)
	members := []router.Member{{Name: "node-5", Address: "10.0.1.5:8000", Zone: "zone-0"}}
	for i := range 20 {
		members = append(members, router.Member{
			Name: fmt.Sprintf("node-%d", i), Address: fmt.Sprintf("10.0.0.%d:8000", i), Zone: fmt.Sprintf("zone-%d", i%3),
		})
	}
	want := versions(t, members)
	for range 20 {
		shuffled := slices.Clone(members)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if diff := cmp.Diff(want, versions(t, shuffled)); diff != "" {
			t.Fatalf("the versions depend on the order of members:\n%s", diff)
		}
	}
	for name, version := range versions(t, members[:len(members)-1]) {
		if changed := version != want[name]; changed != strings.Contains(name, resource.EndpointType) {
			t.Errorf("with one member less: %s has changed: %v, want only endpoints to", name, changed)
		}
	}
}

// TestTLSIsForEnvoys compares the configuration without TLS with others.
func TestTLSIsForEnvoys(t *testing.T) {
	t.Parallel()
	of := func(objects *ObjectTLS) map[string]string {
		t.Helper()
		made, err := snapshots(trio, Config{Listener: on, Objects: objects})
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for who, snapshot := range made {
			for _, typeURL := range typeURLs {
				found[string(who)+" "+typeURL] = snapshot.GetVersion(typeURL)
			}
		}
		return found
	}
	cluster, listener := string(envoys)+" "+resource.ClusterType, string(envoys)+" "+resource.ListenerType
	one := &ObjectTLS{Authorities: func() string { return "one" }, ServerName: "cache"}
	two := &ObjectTLS{Authorities: func() string { return "two" }, ServerName: "cache"}
	front := &ObjectTLS{Authorities: one.Authorities, ServerName: "cache", EnvoyCertificate: "/etc/objects.yaml"}
	for name, test := range map[string]struct {
		a, b    *ObjectTLS
		changed []string
	}{
		"TLS":         {nil, one, []string{cluster}},
		"authorities": {one, two, []string{cluster}},
		"certificate": {one, front, []string{listener}},
	} {
		was := of(test.a)
		for key, version := range of(test.b) {
			if changed := version != was[key]; changed != slices.Contains(test.changed, key) {
				t.Errorf("%s: %s has changed: %v, want only %v to", name, key, changed, test.changed)
			}
		}
	}
}

func TestMembersWithoutIPAddress(t *testing.T) {
	t.Parallel()
	_, err := snapshots([]router.Member{{Name: "node-a", Address: "cache.example.com:8000"}}, Config{Listener: on})
	if err == nil || !strings.Contains(err.Error(), `"node-a"`) || !strings.Contains(err.Error(), "cache.example.com:8000") {
		t.Errorf("error %v, want one that names the member and its address", err)
	}
}
