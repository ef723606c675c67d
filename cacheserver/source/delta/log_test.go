// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"testing"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

func TestResolve(t *testing.T) {
	for _, tt := range []struct{ root, path, want string }{
		{"s3://b/t", "x/a%20b.parquet", "s3://b/t/x/a b.parquet"},
		{"s3://b/t", "p=a%252Fb/c.parquet", "s3://b/t/p=a%2Fb/c.parquet"},
		{"s3://b/t", "s3://other/t/c.parquet", "s3://other/t/c.parquet"},
		{"s3://b/t", "/t2/c.parquet", "s3://b/t2/c.parquet"},
		{"/t", "a:b/c.parquet", "/t/a:b/c.parquet"},
		{"/t", "a%3A/b.parquet", "/t/a:/b.parquet"},
		{"/t", "file:/u/c.parquet", "/u/c.parquet"},
		{"/t", "file:///u/c.parquet", "/u/c.parquet"},
		{"file:///t", "file:///t/c.parquet", "/t/c.parquet"},
		{"/t", "/u/c%20d.parquet", "/u/c d.parquet"},
		{"s3://b/t", "file:///etc/passwd", ""},
		{"s3://b/t", "a/../../c.parquet", ""},
		{"s3://b/t", "a/%2e%2e/c.parquet", ""},
		{"s3://b/t", "%zz", ""},
		{"s3://b/t", "", ""},
	} {
		got, err := resolve(tt.root, tt.path)
		if (err != nil) != (tt.want == "") || err == nil && got != tt.want {
			t.Errorf("resolve(%q, %q) is %q, %v; want %q", tt.root, tt.path, got, err, tt.want)
		}
	}
}

// FuzzLog checks that the text of a commit, which is untrusted, breaks nothing: it is a version with files, or an error.
func FuzzLog(f *testing.F) {
	m := &madeTable{}
	for _, seed := range [][]object{
		{protocolOf(1), metaOf(idField, nil), {"add": object{"path": "a%20b", "size": 1, "stats": `{"numRecords":1}`}}, remove("c")},
		{protocolOf(3, "columnMapping", "deletionVectors"), metaOf(`{"name":"m","type":{"type":"map","keyType":"string","valueType":{"type":"array","elementType":"decimal(3,1)"}},"metadata":{"delta.columnMapping.id":1,"delta.columnMapping.physicalName":"x"}}`,
			map[string]string{"delta.columnMapping.mode": "id"})},
		{protocolOf(1), metaOf(idField, nil, "id"), {"add": object{"path": "s3://b/a", "partitionValues": object{"id": "-1e3"}}}},
		{protocolOf(3, "deletionVectors"), metaOf(idField, nil), {"add": object{"path": "a", "deletionVector": object{"storageType": "i", "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", "sizeInBytes": 44, "cardinality": 6}}}},
	} {
		f.Add(m.lines(seed...))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		actions, err := parseActions(text)
		if err != nil {
			return
		}
		s := &state{root: "s3://b/t", files: map[fileKey]*file{}}
		if s.apply(actions) != nil || s.check() != nil {
			return
		}
		mapping, err := s.protocol.mapping(s.metaData)
		if err != nil {
			return
		}
		store := objstore.New(objstore.Config{})
		of, err := newTable(store, &Pin{Table: *s.metaData, Mapping: mapping}, scan.Selection{})
		if err != nil {
			return
		}
		files, err := of.planned(s)
		if err == nil && len(files) != len(s.files) {
			t.Errorf("%d files of %d", len(files), len(s.files))
		}
		for _, f := range s.files {
			if f.Vector != nil && f.Vector.Storage == "i" {
				if keep, err := f.Vector.keep(t.Context(), store, s.root, 64); err == nil && len(keep) < 8 {
					t.Errorf("%d bytes for 64 rows", len(keep))
				}
			}
		}
	})
}
