// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet_test

import (
	"bytes"
	"errors"
	"testing"

	pq "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/metadata"

	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// TestFooters reads footers that are inconsistent or use unsupported features: the error must name the file, and the column if it
// concerns one, before any page is read.
func TestFooters(t *testing.T) {
	data := write(t, arrowSchema(t, fields()), rows(0, 30), pq.WithMaxRowGroupLength(10))
	tests := map[string]struct {
		change func(*metadata.FileMetaData)
		want   []string
	}{
		"unchanged": {func(*metadata.FileMetaData) {}, nil},
		"codec": {func(m *metadata.FileMetaData) { m.RowGroups[1].Columns[2].MetaData.Codec = 3 },
			[]string{"row group 1", `column "tokens.list.element"`, "LZO", "rewrite", "ZSTD"}},
		"codec of a later format": {func(m *metadata.FileMetaData) { m.RowGroups[2].Columns[0].MetaData.Codec = 99 },
			[]string{"row group 2", `column "id"`, "rewrite"}},
		"rows of the file":      {func(m *metadata.FileMetaData) { m.NumRows++ }, []string{"footer says 31 rows", "row groups have 30"}},
		"rows of a row group":   {func(m *metadata.FileMetaData) { m.RowGroups[0].NumRows-- }, []string{"footer says 30 rows", "row groups have 29"}},
		"a row group is gone":   {func(m *metadata.FileMetaData) { m.RowGroups = m.RowGroups[1:] }, []string{"footer says 30 rows", "row groups have 20"}},
		"values of a column":    {func(m *metadata.FileMetaData) { m.RowGroups[0].Columns[1].MetaData.NumValues = 9 }, []string{"row group 0", `column "text"`, "9 values in 10 rows"}},
		"negative values":       {func(m *metadata.FileMetaData) { m.RowGroups[0].Columns[2].MetaData.NumValues = -1 }, []string{`column "tokens.list.element"`, "overflowed"}},
		"negative bytes":        {func(m *metadata.FileMetaData) { m.RowGroups[0].Columns[0].MetaData.TotalUncompressedSize = -5 }, []string{`column "id"`, "-5", "overflowed"}},
		"past the file's end":   {func(m *metadata.FileMetaData) { m.RowGroups[1].Columns[0].MetaData.TotalCompressedSize = 1 << 40 }, []string{"row group 1", `column "id"`, "truncated or corrupt"}},
		"before the file":       {func(m *metadata.FileMetaData) { m.RowGroups[1].Columns[3].MetaData.DataPageOffset = -4 }, []string{"row group 1", `column "place.x"`, "truncated or corrupt"}},
		"more rows than values": {moreRows, []string{`column "`, "corrupt", "restore"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := readAll(t, withFooter(t, data, tt.change))
			if tt.want == nil && err != nil {
				t.Fatal(err)
			}
			if tt.want != nil {
				wantError(t, err, tt.want...)
			}
		})
	}
}

// moreRows changes the counts of a footer consistently to more rows than the pages of a row group contain.
func moreRows(m *metadata.FileMetaData) {
	m.NumRows++
	m.RowGroups[0].NumRows++
	for _, c := range m.RowGroups[0].Columns {
		c.MetaData.NumValues++
	}
}

// readAll checks and reads a file as a head and a data node do: it returns an error that names the file unless everything in the
// footer could be read.
func readAll(t *testing.T, data []byte) error {
	t.Helper()
	o, err := project(t, data, fields()...)
	if err != nil {
		wantError(t, err, "data.parquet")
		return err
	}
	for group := range o.footer.Groups() {
		if err := o.projection.Check(group); err != nil {
			wantError(t, err, "data.parquet")
			return err
		}
		o.footer.Extent(group)
	}
	var read int64
	for group := range o.footer.Groups() {
		got, err := o.read(t, group, 0, o.footer.Rows(group))
		if err != nil {
			return err
		}
		read += int64(len(got))
	}
	if read != o.footer.Total() {
		t.Errorf("%d rows without an error, the footer promises %d", read, o.footer.Total())
	}
	return nil
}

// TestUnsupportedCodec checks that the error for an unsupported codec differs from that for a corrupt file.
func TestUnsupportedCodec(t *testing.T) {
	data := write(t, arrowSchema(t, fields()), rows(0, 10))
	data = withFooter(t, data, func(m *metadata.FileMetaData) { m.RowGroups[0].Columns[0].MetaData.Codec = 3 })
	if err := must(t, data, fields()[0]).projection.Check(0); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("error %v, want one that is %v", err, errors.ErrUnsupported)
	}
	if err := must(t, data, fields()[1:3]...).projection.Check(0); err != nil {
		t.Errorf("the other columns: %v", err)
	}
}

// TestNoFooter reads files that do not end in a footer.
func TestNoFooter(t *testing.T) {
	good := write(t, arrowSchema(t, fields()), rows(0, 10))
	for name, data := range map[string][]byte{
		"empty": nil, "four bytes": []byte("PAR1"), "truncated": good[:len(good)-9], "half": good[:len(good)/2],
		"other magic": append(bytes.Clone(good[:len(good)-4]), "PAR2"...), "zeros": make([]byte, len(good)),
		"footer's length": append(bytes.Clone(good[:len(good)-8]), "\xff\xff\xff\x7fPAR1"...),
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t, data)
			_, err := parquet.ReadFooter(t.Context(), f, nil)
			wantError(t, err, "data.parquet", "footer cannot be read", "restore or rewrite")
			_, err = parquet.FileRows(t.Context(), f)
			wantError(t, err, "data.parquet", "footer cannot be read")
		})
	}
	if n, err := parquet.FileRows(t.Context(), open(t, good)); n != 10 || err != nil {
		t.Errorf("%d rows of a good file, error %v, want 10", n, err)
	}
}

// TestEncrypted checks that a file with encrypted columns is rejected as unsupported, with an error that names it.
func TestEncrypted(t *testing.T) {
	key := pq.NewFileEncryptionProperties("0123456789abcdef", pq.WithPlaintextFooter())
	_, err := project(t, write(t, arrowSchema(t, fields()), rows(0, 10), pq.WithEncryptionProperties(key)), fields()...)
	wantError(t, err, "data.parquet", "encrypted")
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("error %v is not %v", err, errors.ErrUnsupported)
	}
}
