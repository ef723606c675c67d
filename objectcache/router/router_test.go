// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

var trio = []Member{
	{Name: "node-a", Address: "10.0.0.1:80"}, {Name: "node-b", Address: "10.0.0.2:80"}, {Name: "node-c", Address: "10.0.0.3:80"},
}

func TestMembersAgreeOnOneOwner(t *testing.T) {
	t.Parallel()
	routers := map[string]*Router{}
	for i, m := range trio {
		r := New(m.Name)
		r.Set([]Member{trio[i], trio[(i+1)%3], trio[(i+2)%3], {Name: m.Name, Address: "10.9.9.9:80"}}) // each gets the members in another order
		routers[m.Name] = r
	}
	owned := map[string]int{}
	for i := range 3000 {
		key := fmt.Sprintf("key-%d", i)
		owner := ""
		for name, r := range routers {
			at, elsewhere := r.Elsewhere("bucket", key)
			if !elsewhere {
				at.Name = name
			}
			if owner != "" && owner != at.Name {
				t.Fatalf("%s: some say %s has it, some %s", key, owner, at.Name)
			}
			owner = at.Name
		}
		owned[owner]++
	}
	for _, m := range trio {
		if owned[m.Name] < 800 {
			t.Errorf("%s has %d of 3000 keys, want about a third", m.Name, owned[m.Name])
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := Parse([]byte("# members\n\nnode-a 10.0.0.1:80\n  node-b\t10.0.0.2:80 east\n"))
	want := []Member{{Name: "node-a", Address: "10.0.0.1:80"}, {Name: "node-b", Address: "10.0.0.2:80", Zone: "east"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for text, want := range map[string]string{
		"node-a":                        `line 1: "node-a", want NAME HOST:PORT`,
		"\na b:1 c d":                   `line 2: "a b:1 c d"`,
		"node-a 10.0.0.1":               "line 1: want HOST:PORT",
		"node-a a:1\nb b:1\nnode-a c:1": `line 3: the name "node-a"`,
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q in it", text, err, want)
		}
	}
}

func TestAloneEverythingIsHere(t *testing.T) {
	t.Parallel()
	r := New("node-a")
	if at, elsewhere := r.Elsewhere("bucket", "key"); elsewhere {
		t.Errorf("with no members the key is at %+v", at)
	}
	r.Set(trio[:1])
	if at, elsewhere := r.Elsewhere("bucket", "key"); elsewhere {
		t.Errorf("alone, the key is at %+v", at)
	}
	r.Set(trio[1:2])
	if at, elsewhere := r.Elsewhere("bucket", "key"); !elsewhere || at != trio[1] {
		t.Errorf("one that is not among the members sends the key to %+v, %v, want %+v", at, elsewhere, trio[1])
	}
	if r.Members() != 1 {
		t.Errorf("%d members, want 1", r.Members())
	}
}

func TestANewAddressIsTaken(t *testing.T) {
	t.Parallel()
	r := New("self")
	r.Set(trio[:1])
	r.Set([]Member{{Name: "node-a", Address: "10.0.0.77:80"}})
	if at, _ := r.Elsewhere("bucket", "key"); at.Address != "10.0.0.77:80" {
		t.Errorf("the key is at %s, want the pod's new address", at.Address)
	}
}
