// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/internal/view"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

// TestAsk sends requests to real HTTP servers through a dialer that stands for the pod network.
func TestAsk(t *testing.T) {
	t.Parallel()
	reply := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			fmt.Fprint(w, body)
		}
	}
	const whole = `{"state":"Loading","reason":"loading 42%","table":"db.t","snapshot":7,"rows":120,"bytes":4096,"splits":{"done":12,"total":28},"nodes":[{"index":0}],"access":{"readers":"Known","unknownKey":"k1"}}`
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    string // the state, or a part of the error
		fails   bool
		timeout time.Duration // 0: longer than any machine needs
	}{
		"loads":             {handler: reply(http.StatusOK, whole), want: "{State:Loading Reason:loading 42% Snapshot:7 Rows:120 Bytes:4096 Splits:{Done:12 Total:28} Nodes:[{Index:0 State: Rows:0 Restarts:0 Memory:{Used:0 Limit:0} Spill:<nil>}] Datasets:[] Readers:[] Access:{Readers:Known UnknownKey:k1}}"},
		"answers an error":  {handler: reply(http.StatusBadGateway, "no"), want: "/status?nodes=0 answers 502 Bad Gateway", fails: true},
		"answers no JSON":   {handler: reply(http.StatusOK, "hello"), want: "read http://reviews-cache-0:8080/status?nodes=0: invalid character", fails: true},
		"answers for ever":  {handler: reply(http.StatusOK, `{"reason":"`+strings.Repeat("x", maxAnswer)+`"}`), want: "unexpected EOF", fails: true},
		"keeps us waiting":  {handler: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, want: "Client.Timeout exceeded", fails: true, timeout: 100 * time.Millisecond},
		"is not there":      {want: "ask head reviews-cache-0: connect: connection refused", fails: true},
		"breaks the answer": {handler: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, want: "EOF", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(c.handler)
			t.Cleanup(server.Close)
			if c.handler == nil {
				server.Close()
			}
			head := cachetest.Pod(wellknown.RoleHead, "reviews-cache-0")
			dial := func(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
				if pod != head {
					return nil, fmt.Errorf("dialled %s, want %s", pod.Name, head.Name)
				}
				return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
			}
			got, err := Client{dial, cmp.Or(c.timeout, time.Minute)}.Ask(t.Context(), head)
			if c.fails != (err != nil) {
				t.Fatalf("ask = %+v, %v; want an error: %v", got, err, c.fails)
			}
			text := fmt.Sprintf("%+v", got)
			if err != nil {
				text = err.Error()
			} else {
				text = strings.TrimPrefix(text, "&")
			}
			if c.fails && !strings.Contains(text, c.want) || !c.fails && text != c.want {
				t.Errorf("ask = %s\nwant  %s", text, c.want)
			}
		})
	}
}

// TestTheFirstVersionIsRecorded checks that the version of what has rows is recorded also if it is 0, as the first one of a Delta table is.
func TestTheFirstVersionIsRecorded(t *testing.T) {
	t.Parallel()
	for splits, want := range map[int64]string{0: "", 3: "0"} {
		h := &view.HeadStatus{State: "Loading"}
		h.Splits.Total = splits
		if got := progressOf(h).Snapshot; got != want {
			t.Errorf("with %d splits, snapshot 0 is recorded as %q, want %q", splits, got, want)
		}
	}
}
