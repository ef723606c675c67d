// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// action is a line of a commit or of a checkpoint; one of its fields is set. Actions that readers need not know set none.
type action struct {
	Protocol   *protocol   `json:"protocol"`
	MetaData   *metaData   `json:"metaData"`
	Add        *file       `json:"add"`
	Remove     *file       `json:"remove"`
	Sidecar    *sidecar    `json:"sidecar"`
	CommitInfo *commitInfo `json:"commitInfo"`
}

// protocol says what a reader must know.
type protocol struct {
	Reader   int      `json:"minReaderVersion"`
	Features []string `json:"readerFeatures"`
}

// metaData describes the table.
type metaData struct {
	ID            string   `json:"id"`
	Schema        string   `json:"schemaString"`
	Partitions    []string `json:"partitionColumns"`
	Configuration dict     `json:"configuration,omitempty"`
}

// dict is a map of texts. In commits it is a JSON object, in Arrow's JSON a list of its entries.
type dict map[string]*string

// UnmarshalJSON implements json.Unmarshaler.
func (d *dict) UnmarshalJSON(text []byte) error {
	var entries []struct {
		Key   string  `json:"key"`
		Value *string `json:"value"`
	}
	if json.Unmarshal(text, &entries) != nil {
		return json.Unmarshal(text, (*map[string]*string)(d))
	}
	*d = dict{}
	for _, e := range entries {
		(*d)[e.Key] = e.Value
	}
	return nil
}

// property returns a table property; empty if it isn't set.
func (m *metaData) property(name string) string {
	if v := m.Configuration[name]; v != nil {
		return *v
	}
	return ""
}

// file is a data file with a deletion vector, if it has one.
type file struct {
	Path             string  `json:"path"`
	PartitionValues  dict    `json:"partitionValues"`
	Size             int64   `json:"size"`
	ModificationTime int64   `json:"modificationTime"`
	Stats            string  `json:"stats"`
	Vector           *vector `json:"deletionVector"`

	uri string // set by state.apply
}

// rows is the number of rows that the log says the file has; -1: it says none.
func (f *file) rows() int64 {
	var stats struct {
		Rows *int64 `json:"numRecords"`
	}
	if json.Unmarshal([]byte(f.Stats), &stats) != nil || stats.Rows == nil {
		return -1
	}
	return *stats.Rows
}

// sidecar names a Parquet file with a part of a checkpoint.
type sidecar struct {
	Path string `json:"path"`
}

// commitInfo says when a commit was made, if the table records it.
type commitInfo struct {
	At *int64 `json:"inCommitTimestamp"` // milliseconds since 1970
}

// parseActions parses JSON lines.
func parseActions(text []byte) ([]action, error) {
	var actions []action
	line := 0
	for text := range bytes.SplitSeq(text, []byte("\n")) {
		line++
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		var a action
		if err := json.Unmarshal(text, &a); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		actions = append(actions, a)
	}
	return actions, nil
}

// features are the reader features that this package supports. Those of variants concern only columns of that type, which are refused.
var features = []string{
	columnMapping, "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck",
	"variantType", "variantType-preview", "variantShredding", "variantShredding-preview",
}

const columnMapping = "columnMapping"

// lastReader is the last version of the reader protocol; features came with it.
const lastReader = 3

// check returns an error if the table needs a reader that knows more.
func (p *protocol) check() error {
	if p.Reader < 1 || p.Reader > lastReader {
		return fmt.Errorf("protocol.minReaderVersion is %d: versions 1 to %d are read: write the rows to a table of such a version", p.Reader, lastReader)
	}
	if p.Reader < lastReader {
		return nil
	}
	for _, feature := range p.Features {
		if !slices.Contains(features, feature) {
			return fmt.Errorf("protocol.readerFeatures has %q, which is not supported; %s are: drop it (ALTER TABLE ... DROP FEATURE %s), or write the rows to a table without it", feature, strings.Join(features, ", "), feature)
		}
	}
	return nil
}

// mapping returns how columns are found in files: empty, by their names; name, by physical names; id, by field ids.
func (p *protocol) mapping(m *metaData) (string, error) {
	mode := m.property("delta.columnMapping.mode")
	if known := p.Reader == 2 || p.Reader == lastReader && slices.Contains(p.Features, columnMapping); !known || mode == "none" {
		return "", nil
	}
	if mode != "" && mode != byName && mode != byID {
		return "", fmt.Errorf("metaData.configuration: delta.columnMapping.mode is %q, want none, name or id: set one of them", mode)
	}
	return mode, nil
}

// The modes of column mapping.
const (
	byName = "name"
	byID   = "id"
)

// mostFiles bounds the data files of a table.
const mostFiles = 1_000_000

// state is a version of the table while its log is replayed.
type state struct {
	root     string
	protocol *protocol
	metaData *metaData
	files    map[fileKey]*file
}

// fileKey identifies a file with its deletion vector.
type fileKey struct{ uri, vector string }

// apply applies the actions of a commit, which have no order.
func (s *state) apply(actions []action) error {
	for _, a := range actions {
		if a.Protocol != nil {
			s.protocol = a.Protocol
		}
		if a.MetaData != nil {
			s.metaData = a.MetaData
		}
		if a.Remove != nil {
			key, err := s.key(a.Remove)
			if err != nil {
				return err
			}
			delete(s.files, key)
		}
	}
	for _, a := range actions {
		if a.Add == nil {
			continue
		}
		key, err := s.key(a.Add)
		if err != nil {
			return err
		}
		if s.files[key] = a.Add; len(s.files) > mostFiles {
			return fmt.Errorf("the table has more than %d files: at most that many are read: compact it (OPTIMIZE)", mostFiles)
		}
	}
	return nil
}

func (s *state) key(f *file) (fileKey, error) {
	uri, err := resolve(s.root, f.Path)
	f.uri = uri
	return fileKey{uri, f.Vector.id()}, err
}

var absolute = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]*):/`)

// resolve returns the URI of a path in the log: relative to the table's folder, or absolute, as those of a shallow clone are. Escapes are
// decoded, as the names of the objects have none.
func resolve(root, path string) (string, error) {
	decoded, err := url.PathUnescape(path)
	if err != nil || path == "" {
		return "", fmt.Errorf("path %q is empty or has a broken escape: repair the log", path)
	}
	own, scheme := absolute.FindString(root), absolute.FindString(path)
	local := own == "" || own == "file:/"
	switch {
	case scheme == "file:/" && local:
		return "/" + strings.TrimLeft(strings.TrimPrefix(decoded, scheme), "/"), nil
	case scheme == "file:/":
		return "", fmt.Errorf("path %q is of a file of this machine, and the table is at %s: repair the log", path, root)
	case scheme != "":
		return decoded, nil
	case path[0] == '/' && local:
		return decoded, nil
	case path[0] == '/':
		bucket, _, _ := strings.Cut(strings.TrimPrefix(root, own+"/"), "/")
		return own + "/" + bucket + decoded, nil
	case slices.Contains(strings.Split(decoded, "/"), ".."):
		return "", fmt.Errorf("path %q leads out of the table's folder: repair the log", path)
	}
	return root + "/" + decoded, nil
}
