// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

func TestSecondProcessTakesThePlace(t *testing.T) {
	c, nodes := readyCluster(t, 1, 1)
	other := &fakeNode{t: t, c: c, index: 0, incarnation: "other"}
	other.join(nil)
	m := <-nodes[0].s.out
	if m.Abort == nil || !m.Abort.Final {
		t.Errorf("the first process was told %+v, want to end", m)
	}
	select {
	case <-nodes[0].s.closed:
	default:
		t.Error("the first process' session is still open")
	}
	if err := c.apply(nodes[0].s, peer.ToHead{Progress: &peer.Progress{}}, start); err == nil {
		t.Error("the first process still reports")
	}
	c.leave(nodes[0].s, "late", start) // must not free the index that the second one has
	other.load("h")
	expectState(t, c, protocol.StateReady, "ready")
}

func TestRefusedHellos(t *testing.T) {
	tests := []struct {
		name string
		in   peer.Hello
		code codes.Code
	}{
		{"another protocol", peer.Hello{V: 99, Incarnation: "x", Address: "a"}, codes.FailedPrecondition},
		{"index below", peer.Hello{V: peer.Version, Index: -1, Incarnation: "x", Address: "a"}, codes.InvalidArgument},
		{"index above", peer.Hello{V: peer.Version, Index: 2, Incarnation: "x", Address: "a"}, codes.InvalidArgument},
		{"no address", peer.Hello{V: peer.Version, Incarnation: "x"}, codes.InvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := newCluster(t, 2).join(tt.in, start); status.Code(err) != tt.code {
				t.Errorf("%v, want %s", err, tt.code)
			}
		})
	}
}

func TestStopRefusesAll(t *testing.T) {
	c, nodes := readyCluster(t, 1, 1)
	c.stop()
	expectState(t, c, protocol.StateDegraded, "stopping")
	<-nodes[0].s.closed
	if _, err := c.join(peer.Hello{V: peer.Version, Incarnation: "x", Address: "a"}, start); status.Code(err) != codes.Unavailable {
		t.Errorf("a stopping head admits nodes: %v", err)
	}
}

// FuzzNodeMessages applies arbitrary messages of a node.
func FuzzNodeMessages(f *testing.F) {
	f.Add([]byte(`{"v":4,"index":0,"incarnation":"i","address":"a"}`), []byte(`{"progress":{"plan":"PLAN","done":[{"split":0,"rows":10,"hash":"aGFzaGhhc2hoYXNoaGFzaA=="}]}}`))
	f.Add([]byte(`{"v":4,"index":0,"incarnation":"i","address":"a","held":{"plan":"p","request":"q","ready":true}}`), []byte(`{"loaded":{"plan":"PLAN","rows":0,"column_bytes":[1]}}`))
	f.Add([]byte(`{"v":4,"index":0,"incarnation":"i","address":"a"}`), []byte(`{"loaded":{"plan":"PLAN","rows":0,"column_bytes":[0]}}`))
	f.Add([]byte(`{"index":-1}`), []byte(`{"progress":{"plan":"PLAN","done":[{"split":-9,"rows":-1}]}}`))
	f.Add([]byte(`{}`), []byte(`{"failed":{"reason":""},"leaving":{}}`))
	f.Fuzz(func(t *testing.T, hello, message []byte) {
		c := newCluster(t, 1)
		c.setPlan(splits10(t, 1, 4), start)
		h, err := peer.Decode[peer.Hello](hello)
		if err != nil {
			return
		}
		s, err := c.join(h, start)
		if err != nil {
			return
		}
		m, err := peer.Decode[peer.ToHead](bytes.ReplaceAll(message, []byte("PLAN"), []byte(c.data.plan.fingerprint)))
		if err != nil {
			return
		}
		_ = c.apply(s, m, start) // an error ends the session; a panic would end the head
		state := c.status("")
		if state.State == protocol.StateReady { // it takes a report of the splits and one that all are loaded
			t.Errorf("one message made the cache ready: %s %s", hello, message)
		}
	})
}
