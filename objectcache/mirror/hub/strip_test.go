// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// stripped is what stripper and replacer make of a text that is written in random pieces.
func stripped(t *testing.T, random *rand.Rand, text string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	large := 0
	replaced := &replacer{to: bufio.NewWriter(&out), old: []byte("https://hub"), new: []byte("http://mirror/hub")}
	s := &stripper{to: bufio.NewWriterSize(replaced, 16), large: func() { large++ }}
	for rest := []byte(text); len(rest) > 0; {
		n := 1 + random.IntN(min(len(rest), 40))
		if _, err := s.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := replaced.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String(), large
}

// value returns a random JSON value and what it is without the fields that lead to Xet.
func value(random *rand.Rand, depth int) (given, want any) {
	switch kind := random.IntN(7); {
	case kind == 0 && depth > 0:
		g, w := []any{}, []any{}
		for range random.IntN(4) {
			a, b := value(random, depth-1)
			g, w = append(g, a), append(w, b)
		}
		return g, w
	case kind < 4 && depth > 0:
		g, w := map[string]any{}, map[string]any{}
		for range random.IntN(5) {
			name := []string{"a", "size ", "xetHash ", "ä\"\\", strings.Repeat("n", maxHeld+random.IntN(3)), "path"}[random.IntN(6)]
			g[name], w[name] = value(random, depth-1)
		}
		isLarge := random.IntN(4) == 0
		if size := float64(random.IntN(1 << 20)); random.IntN(2) == 0 {
			if isLarge {
				size += largest
			}
			g["size"], w["size"] = size, size
		} else {
			isLarge = false
		}
		switch random.IntN(3) {
		case 0:
			g["xetHash"] = `ha"sh\`
			if isLarge {
				w["xetHash"] = g["xetHash"]
			}
		case 1:
			g["xetHash"] = nil
			if isLarge {
				w["xetHash"] = nil
			}
		}
		return g, w
	case kind == 4:
		text := []string{"", "text", `"}{][,:\`, "https://hub/x https://https://hub"}[random.IntN(4)]
		return text, strings.ReplaceAll(text, "https://hub", "http://mirror/hub")
	case kind == 5:
		return float64(random.IntN(1000)), nil
	}
	return []any{true, nil, "x"}[random.IntN(3)], nil
}

func TestStripper(t *testing.T) {
	t.Parallel()
	random := seedtest.New(t)
	for range 20_000 {
		given, want := same(value(random, 5))
		text, err := json.MarshalIndent(given, "", strings.Repeat(" ", random.IntN(2)))
		if err != nil {
			t.Fatal(err)
		}
		out, _ := stripped(t, random, string(text))
		var got any
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%s\nbecomes %s: %v", text, out, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s\nbecomes %s (-want +got):\n%s", text, out, diff)
		}
	}
}

// same fills in the values that value leaves as they are.
func same(given, want any) (any, any) {
	switch g := given.(type) {
	case []any:
		w := want.([]any)
		for i := range g {
			_, w[i] = same(g[i], w[i])
		}
		return given, w
	case map[string]any:
		w := want.(map[string]any)
		for name := range w {
			_, w[name] = same(g[name], w[name])
		}
		return given, w
	case string:
		if want != nil {
			return given, want
		}
	}
	return given, given
}

// TestStripperOfOtherTexts writes what is no JSON, or more than a hub sends.
func TestStripperOfOtherTexts(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for text, want := range map[string]string{
		`{"xetHash": {"a": 1}, "b": [2]}`:               `{"xetHash":{"a":1},"b":[2]}`,
		`{"xetHash": 5, "size": 3}`:                     `{"size":3}`,
		`{"xetHash": "x"}`:                              `{}`,
		`]}"xetHash":`:                                  `]}"xetHash":`,
		`{"a": "` + strings.Repeat("long", 1000) + `"}`: `{"a":"` + strings.Repeat("long", 1000) + `"}`,
		`{"size": 50000000001, "xetHash": "x", "b": 1}`: `{"size":50000000001,"b":1,"xetHash":"x"}`,
		`{"xetHash": "x", "size": 50000000001}`:         `{"size":50000000001,"xetHash":"x"}`,
		`{"lfs": {"size": 50000000001}, "xetHash": ""}`: `{"lfs":{"size":50000000001}}`,
	} {
		if got, _ := stripped(t, random, text); got != want {
			t.Errorf("%.60s becomes %.60s, want %.60s", text, got, want)
		}
	}
	for range 5000 {
		text := make([]byte, random.IntN(60))
		for i := range text {
			text[i] = `{}[],:"\ xetHash09`[random.IntN(18)]
		}
		stripped(t, random, string(text))
	}
	if _, err := fmt.Fprint(&stripper{to: bufio.NewWriter(&bytes.Buffer{})}, strings.Repeat("[", maxDepth+1)); err == nil {
		t.Error("any depth is taken")
	}
}
