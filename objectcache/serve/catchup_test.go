// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/store"
)

// trio starts three servers that are members of one cache.
func trio(t *testing.T) (servers []*member, members []router.Member) {
	t.Helper()
	for _, name := range []string{"one", "two", "three"} {
		s := start(t, name)
		servers, members = append(servers, s), append(members, router.Member{Name: name, Address: s.address})
	}
	for _, s := range servers {
		s.Membership.slack = 0 // the servers have not been running for that long
		s.router.SetHosts([]string{"127.0.0.1"})
		s.router.Set(members)
	}
	return servers, members
}

func targetOf(i int) string { return fmt.Sprint("/v1/objects/open/", i) }

// TestOldObjectsDoNotComeBack removes a member and adds it again. Meanwhile the others store and remove objects whose keys it owns.
func TestOldObjectsDoNotComeBack(t *testing.T) {
	t.Parallel()
	servers, members := trio(t)
	began := time.Now()
	const objects = 90
	for i := range objects {
		if got := ask(t, servers[0].address, "PUT", targetOf(i), "old", asA); got.Status != 201 {
			t.Fatal(got)
		}
	}
	for _, s := range servers { // more than a request takes, however busy the machine is, and less than the servers have run
		s.Membership.slack = time.Since(began) / 2
	}
	without := slices.Clone(members[:2])
	for _, s := range servers {
		s.Membership.SetMembers(t.Context(), without)
	}
	for i := range objects {
		switch i % 3 {
		case 0:
			ask(t, servers[0].address, "PUT", targetOf(i), "new", asA)
		case 1:
			ask(t, servers[0].address, "DELETE", targetOf(i), "", asA)
		}
	}
	for _, s := range servers {
		s.Membership.SetMembers(t.Context(), members)
	}
	kept := 0
	for i := range objects {
		got := ask(t, servers[0].address, "GET", targetOf(i), "", asA)
		if got.Status == 200 && (i%3 == 1 || i%3 == 0 && got.Body != "new") {
			t.Errorf("object %d: %q came back", i, got.Body)
		}
		if got.Status == 200 && i%3 == 2 {
			kept++
		}
	}
	if kept != objects/3 {
		t.Errorf("%d of %d objects that nobody changed are there", kept, objects/3)
	}
	for _, s := range servers { // an object stored on behalf of an absent owner is not served during the next absence
		for i := range objects {
			if _, elsewhere := s.router.Elsewhere("open", fmt.Sprint(i)); !elsewhere {
				ask(t, s.address, "PUT", targetOf(i), "newest", asA)
			}
		}
	}
	for _, s := range servers[:2] {
		s.Membership.SetMembers(t.Context(), without)
	}
	for i := range objects {
		if got := ask(t, servers[0].address, "GET", targetOf(i), "", asA); got.Status == 200 && got.Body != "newest" {
			t.Errorf("object %d: %q came back after the node left again", i, got.Body)
		}
	}
}

// forgets makes a member's log of changes begin now, as if there had been an earlier one.
func (m *member) forgets(t *testing.T) {
	t.Helper()
	record := binary.LittleEndian.AppendUint64(make([]byte, store.IDSize), uint64(time.Now().UnixNano()))
	if err := os.WriteFile(filepath.Join(m.dir, "changes"), record, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestWhoCantLearnWhatChangedStartsEmpty checks that a node removes its objects if another's log starts after its absence began.
func TestWhoCantLearnWhatChangedStartsEmpty(t *testing.T) {
	t.Parallel()
	servers, _ := trio(t)
	servers[0].holdsX(t)
	servers[1].forgets(t)
	if err := servers[0].Membership.returned(t.Context(), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if !servers[0].store.Empty() || servers[0].Membership.doubt.Load() != nil {
		t.Error("objects are left of which nobody knows whether they are current")
	}
}

// TestObjectsAreInDoubtUntilAllAnswered lets a member return while another does not answer: its objects are misses until that one answers,
// or is a member no more. What it stores meanwhile is there.
func TestObjectsAreInDoubtUntilAllAnswered(t *testing.T) {
	t.Parallel()
	servers, members := trio(t)
	s := servers[0]
	var own []string
	for i := range 30 {
		if _, elsewhere := s.router.Elsewhere("open", fmt.Sprint(i)); !elsewhere {
			own = append(own, targetOf(i))
			ask(t, s.address, "PUT", targetOf(i), "old", asA)
		}
	}
	gone := listen(t)
	gone.Close()
	silent := slices.Clone(members)
	silent[1].Address = gone.Addr().String()
	s.router.Set(silent)
	time.Sleep(3 * clockGrain) //nolint:forbidigo // the times of files must be earlier than what follows
	if err := s.Membership.returned(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	expect := func(when string, want int) {
		t.Helper()
		if got := ask(t, s.address, "GET", own[0], "", asA); got.Status != want {
			t.Errorf("%s: %d, want %d", when, got.Status, want)
		}
		if _, entries := askBatch(t, s.address, "open", strings.TrimPrefix(own[0], "/v1/objects/open/")); strings.Contains(entries[0], "=old") != (want == 200) {
			t.Errorf("%s, in a batch: %v", when, entries)
		}
	}
	expect("while one does not answer", 404)
	ask(t, s.address, "PUT", own[1], "new", asA)
	if got := ask(t, s.address, "GET", own[1], "", asA); got.Body != "new" {
		t.Errorf("what was stored meanwhile: %+v", got)
	}
	if err := s.Membership.catchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("while it still does not", 404)
	s.router.Set(slices.Delete(slices.Clone(silent), 1, 2))
	if err := s.Membership.catchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("when it is no member", 200)
	s.router.Set(members) // it has changed what this node owns, while that was away
	if got := ask(t, servers[1].address, "PUT", own[0], "newest", asA, "Datacache-Hop: 1"); got.Status != 201 {
		t.Fatal(got)
	}
	s.Membership.slack = time.Minute
	if err := s.Membership.catchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("when it has returned", 404)
	if got := ask(t, s.address, "GET", own[1], "", asA); got.Body != "new" {
		t.Errorf("what was stored meanwhile: %+v", got)
	}
}

// TestChangesAreForMembersAlone sends a request from an address that is not a member's.
func TestChangesAreForMembersAlone(t *testing.T) {
	t.Parallel()
	m := start(t, "one")
	if got := ask(t, m.address, "GET", changesPath+"?ms=1", "", asA); got.Status != 403 {
		t.Errorf("from a stranger: %d, want 403", got.Status)
	}
	m.router.SetHosts([]string{"127.0.0.1"})
	for target, want := range map[string]int{"?ms=0": 200, "?ms=100000000": 200, "?ms=x": 400} {
		if got := ask(t, m.address, "GET", changesPath+target, ""); got.Status != want {
			t.Errorf("%s: %d, want %d", target, got.Status, want)
		}
	}
	m.forgets(t)
	if got := ask(t, m.address, "GET", changesPath+"?ms=100000000", ""); got.Status != 410 {
		t.Errorf("without the log of then: %d, want 410", got.Status)
	}
}
