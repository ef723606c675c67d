// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
)

// checkpointFields are the columns of the checkpoints that tests write.
func checkpointFields(names ...string) []arrow.Field {
	var out []arrow.Field
	for _, f := range checkpointColumns {
		for _, name := range names {
			if f.Name == name {
				out = append(out, nullable(f.Name, f.Type))
			}
		}
	}
	return out
}

// rows are actions as rows of a checkpoint: Arrow's JSON has the entries of maps in a list.
func rows(t *testing.T, actions ...object) string {
	t.Helper()
	entries := func(of object, field string) {
		list := []object{}
		for key, value := range of[field].(object) {
			list = append(list, object{"key": key, "value": value})
		}
		of[field] = list
	}
	for _, a := range actions {
		if add, ok := a["add"].(object); ok {
			entries(add, "partitionValues")
		}
		if meta, ok := a["metaData"].(object); ok {
			meta["configuration"] = object{}
			entries(meta, "configuration")
		}
	}
	text, err := json.Marshal(actions)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestCheckpoints reads a version of which only a checkpoint is left, in each form, and versions after it.
func TestCheckpoints(t *testing.T) {
	const uuid = "80a083e8-7026-4e79-81be-64bd76c43a11"
	name := func(middle string) string { return fmt.Sprintf("%s/%020d.checkpoint.%s", logFolder, 4, middle) }
	about := func(features ...string) []object { return []object{protocolOf(3, features...), metaOf(idField, nil)} }
	none := object{}
	forms := map[string]func(m *madeTable, adds []object){
		"classic": func(m *madeTable, adds []object) {
			m.parquet(name("parquet"), checkpointFields("protocol", "metaData", "add"), rows(m.t, append(about("deletionVectors"), adds...)...))
		},
		"of several parts": func(m *madeTable, adds []object) {
			m.parquet(name("0000000002.0000000002.parquet"), checkpointFields("protocol", "metaData", "add"), rows(m.t, append(about(), adds[0])...))
			m.parquet(name("0000000001.0000000002.parquet"), checkpointFields("add"), rows(m.t, adds[1:]...))
		},
		"v2 in JSON": func(m *madeTable, adds []object) {
			m.write(name(uuid+".json"), m.lines(append(about("v2Checkpoint"), adds...)...))
		},
		"v2 with sidecars": func(m *madeTable, adds []object) {
			m.write(name(uuid+".json"), m.lines(append(about("v2Checkpoint"), object{"sidecar": object{"path": "a.parquet"}}, object{"sidecar": object{"path": "b%20c.parquet"}}, object{"txn": none})...))
			m.parquet(logFolder+"/_sidecars/a.parquet", checkpointFields("add"), rows(m.t, adds[0]))
			m.parquet(logFolder+"/_sidecars/b c.parquet", checkpointFields("add"), rows(m.t, adds[1:]...))
		},
		"v2 in Parquet with a sidecar": func(m *madeTable, adds []object) {
			m.parquet(name(uuid+".parquet"), checkpointFields("protocol", "metaData", "sidecar"), rows(m.t, append(about("v2Checkpoint"), object{"sidecar": object{"path": "a.parquet"}})...))
			m.parquet(logFolder+"/_sidecars/a.parquet", checkpointFields("add"), rows(m.t, adds...))
		},
	}
	for form, write := range forms {
		t.Run(form, func(t *testing.T) {
			m := makeTable(t)
			adds := []object{m.add("0.parquet", 1, 0, 0), m.add("1.parquet", 2, 1, 2)}
			write(m, adds)
			m.write(fmt.Sprintf("%s/%020d.checkpoint.0000000001.0000000003.parquet", logFolder, 5), []byte("a part of a checkpoint that was never finished"))
			m.next = 5
			m.commit(remove("0.parquet"))
			m.commit(m.add("2.parquet", 3, 3, 3))
			m.want(m.versionOf(4), rowsOf(0, 1, 2))
			m.want(m.versionOf(5), rowsOf(1, 2))
			m.want(m.source(), rowsOf(1, 2, 3))
			m.fails(m.versionOf(3), "its log was cleaned up", "of version 4")
			if err := os.Remove(m.commitFile(5)); err != nil {
				t.Fatal(err)
			}
			m.fails(m.source(), "version 6", "00000000000000000005.json is missing")
		})
	}
}

// TestCheckpointsAreRight reads the same version from the log and from a checkpoint, with a vector and values of partitions.
func TestCheckpointsAreRight(t *testing.T) {
	m := makeTable(t)
	vector := object{"storageType": "i", "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", "sizeInBytes": 44, "cardinality": 6}
	actions := func() []object {
		return []object{
			protocolOf(3, "deletionVectors"), metaOf(idField+`,{"name":"p","type":"string","nullable":true,"metadata":{}}`, nil, "p"),
			with(with(m.add("0.parquet", 1, 0, 31), "deletionVector", vector), "partitionValues", object{"p": "x"}), with(m.add("1.parquet", 2, 1, 2), "partitionValues", object{"p": nil}),
		}
	}
	m.commit(actions()...)
	want, err := read(t, m.source())
	if err != nil || strings.Count(want, "\n") != 28 {
		t.Fatalf("%s %v", want, err)
	}
	m.parquet(fmt.Sprintf("%s/%020d.checkpoint.parquet", logFolder, 0), checkpointFields("protocol", "metaData", "add"), rows(t, actions()...))
	if err := os.Remove(m.commitFile(0)); err != nil {
		t.Fatal(err)
	}
	m.want(m.source(), want)
	m.write(fmt.Sprintf("%s/%020d.checkpoint.parquet", logFolder, 0), []byte("PAR1 nothing PAR1"))
	m.fails(m.source(), "checkpoint of version 0", ".checkpoint.parquet")
}
