// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/pack"
)

func path(elements ...string) *flight.FlightDescriptor {
	return &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: elements}
}

func command(text string) *flight.FlightDescriptor {
	return &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(text)}
}

const someMix = `{"v":1,"kind":"mix","part":1,"parts":[{"rows":50,"weights":[7,1]},{"rows":9,"weights":[3,9]}],"phases":[40],"unit":"row",` +
	`"length":120,"seed":7,"epoch":2,"clump":1,"global_batch":8,"tail":"keep","rank":1,"world":3,"columns":["a"]}`

func TestParseDescriptor(t *testing.T) {
	tests := []struct {
		name string
		in   *flight.FlightDescriptor
		want Request
	}{
		{"path", path("3", "8"), Request{Kind: Shard, Index: 3, Total: 8}},
		{"path with a large total", path("0", "9223372036854775807"), Request{Kind: Shard, Total: 1<<63 - 1}},
		{"shard", command(`{"v":1,"kind":"shard","index":3,"total":8,"columns":["a","b"]}`), Request{Kind: Shard, Index: 3, Total: 8, Columns: []string{"a", "b"}}},
		{"take", command(`{"v":1,"kind":"take"}`), Request{Kind: Take}},
		{"take, narrow", command(`{"v":1,"kind":"take","narrow":true}`), Request{Kind: Take, Narrow: true}},
		{"take for a job", command(`{"v":1,"kind":"take","job":"team-a/trial-7"}`), Request{Kind: Take, Job: "team-a/trial-7"}},
		{
			"epoch", command(`{"v":1,"kind":"epoch","seed":18446744073709551615,"epoch":2,"shuffle":true,"clump":4,"window":6,"global_batch":1024,"tail":"pad","rank":3,"world":8,"worker":1,"workers":2,"start_step":5,"columns":["a"]}`),
			Request{
				Kind: Epoch, Columns: []string{"a"},
				Epoch: epoch.Epoch{Seed: 1<<64 - 1, Number: 2, Shuffle: true, Clump: 4, Window: 6, GlobalBatch: 1024, Tail: "pad"},
				Share: epoch.Share{Rank: 3, World: 8, Worker: 1, Workers: 2, StartStep: 5},
			},
		},
		{
			"epoch with defaults", command(`{"v":1,"kind":"epoch","seed":0,"epoch":0,"shuffle":false,"global_batch":1,"tail":"keep","rank":0,"world":1}`),
			Request{Kind: Epoch, Epoch: epoch.Epoch{Clump: 1, GlobalBatch: 1, Tail: "keep"}, Share: epoch.Share{World: 1, Workers: 1}},
		},
		{
			"mix", command(someMix),
			Request{
				Kind: Mix, Columns: []string{"a"},
				Epoch: epoch.Epoch{Rows: 120, Seed: 7, Number: 2, Shuffle: true, Clump: 1, GlobalBatch: 8, Tail: "keep"},
				Share: epoch.Share{Rank: 1, World: 3, Workers: 1},
				Mix: &epoch.Mix{
					Part: 1, Parts: []epoch.Part{{Rows: 50, Weights: []uint64{7, 1}}, {Rows: 9, Weights: []uint64{3, 9}}},
					Phases: []uint64{40}, Unit: epoch.RowUnit,
				},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseDescriptor(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// epochWith returns a valid epoch command with the text of one field replaced or added.
func epochWith(field, value string) *flight.FlightDescriptor {
	fields := map[string]string{"seed": "7", "epoch": "2", "shuffle": "true", "global_batch": "8", "tail": `"drop"`, "rank": "0", "world": "2"}
	return commandWith(Epoch, fields, field, value)
}

// packsWith is epochWith for a command of kind pack.
func packsWith(field, value string) *flight.FlightDescriptor {
	fields := map[string]string{"seed": "7", "epoch": "2", "column": `"a"`, "tokens": "8192", "packs": "64", "rank": "0", "world": "8"}
	return commandWith(Pack, fields, field, value)
}

func commandWith(kind Kind, fields map[string]string, field, value string) *flight.FlightDescriptor {
	fields[field] = value
	text := []string{`{"v":1,"kind":"` + string(kind) + `"`}
	for name, v := range fields {
		if v != "" {
			text = append(text, `"`+name+`":`+v)
		}
	}
	return command(strings.Join(text, ",") + "}")
}

func TestParseDescriptorRefuses(t *testing.T) {
	tests := []struct {
		name, says string // says: text that the message must contain
		in         *flight.FlightDescriptor
	}{
		{"nothing", "descriptor", &flight.FlightDescriptor{}},
		{"one element", "two elements", path("0")},
		{"three elements", "two elements", path("0", "1", "2")},
		{"index is no number", `index: "x"`, path("x", "2")},
		{"total is no number", `total: "y"`, path("0", "y")},
		{"a sign", `index: "+0"`, path("+0", "1")},
		{"a space", `index: " 0"`, path(" 0", "1")},
		{"negative index", `index: "-1"`, path("-1", "2")},
		{"total zero", "total: 0", path("0", "0")},
		{"total 2^63", `total: "9223372036854775808"`, path("0", "9223372036854775808")},
		{"index is total", "index: 5", path("5", "5")},
		{"a huge element", "bytes", path(strings.Repeat("1", MaxBytes+1), "2")},
		{"empty command", "JSON", command("")},
		{"no JSON", "JSON", command("nonsense")},
		{"an array", "JSON", command("[1]")},
		{"no version", "v:", command("{}")},
		{"another version", "v: want 1", command(`{"v":99,"kind":"shard","index":0,"total":1}`)},
		{"no kind", "kind: missing", command(`{"v":1}`)},
		{"unknown kind", `"nope"`, command(`{"v":1,"kind":"nope"}`)},
		{"unknown field", "surprise", command(`{"v":1,"kind":"shard","index":0,"total":1,"surprise":1}`)},
		{"a field in another case", `"Index" is no field`, command(`{"v":1,"kind":"shard","Index":0,"total":1}`)},
		{"a field of another kind", "seed", command(`{"v":1,"kind":"shard","index":0,"total":1,"seed":1}`)},
		{"missing index", "index: missing", command(`{"v":1,"kind":"shard","total":1}`)},
		{"a fraction", "index", command(`{"v":1,"kind":"shard","index":0.5,"total":1}`)},
		{"shard of none", "total: 0", command(`{"v":1,"kind":"shard","index":0,"total":0}`)},
		{"two objects", "after top-level value", command(`{"v":1,"kind":"take"}{}`)},
		{"a long command", "bytes", command(`{"v":1,"kind":"take","columns":["` + strings.Repeat("a", MaxBytes) + `"]}`)},
		{"no columns", "columns: empty", command(`{"v":1,"kind":"take","columns":[]}`)},
		{"a column twice", `"a" is named twice`, command(`{"v":1,"kind":"take","columns":["a","a"]}`)},
		{"narrow is no bool", "narrow: string does not fit, want true or false", epochWith("narrow", `"yes"`)},
		{"an empty job", `job: ""`, epochWith("job", `""`)},
		{"a job with a space", `job: "a b"`, epochWith("job", `"a b"`)},
		{"a long job", "1 to 63", epochWith("job", `"`+strings.Repeat("a", 64)+`"`)},
		{"job is no string", "job: number does not fit, want a string", epochWith("job", "7")},
		{"epoch without seed", "seed: missing", epochWith("seed", "")},
		{"epoch without world", "world: missing", epochWith("world", "")},
		{"batch zero", "global_batch", epochWith("global_batch", "0")},
		{"window of 2^62", "window", epochWith("window", "4611686018427387904")},
		{"clump zero", "clump", epochWith("clump", "0")},
		{"unknown tail", "tail", epochWith("tail", `"cut"`)},
		{"rank outside the world", "rank", epochWith("rank", "2")},
		{"world zero", "world", epochWith("world", "0")},
		{"worker outside", "worker", epochWith("worker", "1")},
		{"negative seed", "seed", epochWith("seed", "-1")},
		{"shuffle is no boolean", "shuffle: number does not fit, want true or false", epochWith("shuffle", "1")},
		{"seed is no integer", "seed: string does not fit, want an integer in [0, 2^64)", epochWith("seed", `"1"`)},
		{"tail is no string", "tail: number does not fit, want a string", epochWith("tail", "1")},
		{"a list of another kind", "command: columns: number does not fit, want a string", epochWith("columns", "[1]")},
		{"split is no object", "command: split: string does not fit, want an object", epochWith("split", `"1"`)},
		{"packs without tokens", "tokens: missing", packsWith("tokens", "")},
		{"no tokens", "tokens = 0: want 1 <= tokens <= 1048576", packsWith("tokens", "0")},
		{"too many tokens", "tokens = 1048577: want", packsWith("tokens", "1048577")},
		{"too many packs", "packs = 2147483648: want 1 <= packs <= 65536", packsWith("packs", "2147483648")},
		{"a window of too many packs", "window = 1025: want at most 1024 steps of 64 packs", packsWith("window", "1025")},
		{"multiple is no divisor", "multiple = 3: want a divisor of tokens = 8192", packsWith("multiple", "3")},
		{"multiple zero", "multiple = 0: want", packsWith("multiple", "0")},
		{"quadratic is too large", "quadratic = 16777217: want at most 16777216", packsWith("quadratic", "16777217")},
		{"unknown long", `long = "cut": want "refuse", "split"`, packsWith("long", `"cut"`)},
		{"no column", "column: empty", packsWith("column", `""`)},
		{"no steps", "steps = 0: want 1 to 4096", packsWith("steps", "0")},
		{"too many steps", "steps = 4097: want 1 to 4096", packsWith("steps", "4097")},
		{"packs with a batch", `"global_batch" is no field of kind "pack"`, packsWith("global_batch", "1")},
		{"packs of a rank outside the world", "rank = 8: want", packsWith("rank", "8")},
		{"kind is no string", "kind: number does not fit, want a string", command(`{"v":1,"kind":1}`)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseDescriptor(tt.in)
			if status.Code(err) != codes.InvalidArgument {
				t.Fatalf("%+v, error %v: want INVALID_ARGUMENT", got, err)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%q does not name %q", err, tt.says)
			}
		})
	}
}

func FuzzParseDescriptor(f *testing.F) {
	f.Add([]byte(`{"v":1,"kind":"shard","index":3,"total":8,"columns":["a","b"]}`), "0", "1")
	f.Add([]byte(`{"v":1,"kind":"take"}`), "", "")
	f.Add([]byte(someMix), "0", "9")
	f.Add(packsWith("long", `"split"`).Cmd, "1", "2")
	f.Add([]byte(`{"v":1,"kind":"epoch","seed":7,"epoch":2,"shuffle":true,"clump":1,"global_batch":1024,"tail":"drop","rank":3,"world":8}`), "-1", "99999999999999999999999")
	f.Fuzz(func(t *testing.T, cmd []byte, index, total string) {
		for _, d := range []*flight.FlightDescriptor{{Type: flight.DescriptorCMD, Cmd: cmd}, path(index, total)} {
			r, err := ParseDescriptor(d)
			if err != nil {
				if status.Code(err) != codes.InvalidArgument {
					t.Errorf("%v is not INVALID_ARGUMENT", err)
				}
				continue
			}
			if r.Kind == Shard && (r.Total < 1 || r.Total >= 1<<63 || r.Index >= r.Total) {
				t.Errorf("accepted %+v", r)
			}
			if r.Kind == Epoch && r.Share.Rank >= r.Share.World {
				t.Errorf("accepted %+v", r)
			}
			if r.Kind == Mix {
				readSome(t, r)
			}
			if r.Kind == Pack && (r.Packs.Room() < 1 || r.Packs.Room() > pack.MostTokens*pack.MostPacks || r.Packs.Tokens%r.Packs.Multiple != 0) {
				t.Errorf("accepted %+v", r.Packs)
			}
		}
	})
}

// readSome reads the begin of an accepted mixture.
func readSome(t *testing.T, r Request) {
	t.Helper()
	cursor, err := Ticket{Epoch: r.Epoch, Share: r.Share, Mix: r.Mix}.Cursor()
	if err != nil {
		t.Fatalf("accepted %+v, whose cursor fails: %v", r, err)
	}
	var runs [16]epoch.Run
	n, _ := cursor.Next(runs[:], 16)
	for _, run := range runs[:n] {
		if run.Rows == 0 || run.First+run.Rows > r.Mix.Parts[r.Mix.Part].Rows {
			t.Errorf("%+v reads rows %+v", r, run)
		}
	}
}
