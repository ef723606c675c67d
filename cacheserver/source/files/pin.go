// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/kubeflow/datacache/cacheserver/source/hub"
)

// Kind is Pin.Kind.
const Kind = "files"

// pinVersion is the version of the format of pins.
const pinVersion = 1

// Pin identifies a version of the files, so that another process can open the same. It is plain data.
type Pin struct {
	V    int    `json:"v"`
	Kind string `json:"kind"` // "files"
	Location
	Roots []string `json:"roots"` // of each URI: the folder that paths are relative to
	Files int      `json:"files"`
	Hash  string   `json:"hash"` // SHA-256, in hex, of a line for each file: path, size and version, divided by tabs
	// Schema is that of all columns as an Arrow IPC stream; Partitions are the names of those of the folders' names, which are its last.
	Schema     []byte   `json:"schema"`
	Partitions []string `json:"partitions,omitempty"`
}

// newPin returns the pin of some files, without their schema.
func newPin(location Location, roots []string, files []file) *Pin {
	digest := sha256.New()
	for _, f := range files {
		fmt.Fprintf(digest, "%s\t%d\t%s\n", hub.WithoutCommit(f.URI), f.Size, f.Version)
	}
	return &Pin{V: pinVersion, Kind: Kind, Location: location, Roots: roots, Files: len(files), Hash: hex.EncodeToString(digest.Sum(nil))}
}

func decodePin(text json.RawMessage) (*Pin, error) {
	pin := &Pin{}
	if err := json.Unmarshal(text, pin); err != nil {
		return nil, fmt.Errorf("the pin of files: %w", err)
	}
	if pin.V != pinVersion || pin.Kind != Kind || len(pin.Roots) != len(pin.URIs) {
		return nil, fmt.Errorf("the pin of files has version %d, kind %q and %d roots of %d addresses, want version %d and kind %q: head and data nodes are of different releases", pin.V, pin.Kind, len(pin.Roots), len(pin.URIs), pinVersion, Kind)
	}
	return pin, nil
}

// String names the files in messages.
func (p *Pin) String() string { return strings.Join(p.URIs, ", ") }

// Snapshot is a number for the version, which is not 0: 63 bits of Hash.
func (p *Pin) Snapshot() int64 {
	digest, err := hex.DecodeString(p.Hash)
	if err != nil || len(digest) < 8 {
		return 1
	}
	return max(int64(binary.BigEndian.Uint64(digest)>>1), 1)
}

// setSchema stores the schema.
func (p *Pin) setSchema(schema *arrow.Schema) error {
	var out bytes.Buffer
	w := ipc.NewWriter(&out, ipc.WithSchema(schema))
	if err := w.Close(); err != nil {
		return fmt.Errorf("encode the schema of %s: %w", p, err)
	}
	p.Schema = out.Bytes()
	return nil
}

func (p *Pin) schema() (*arrow.Schema, error) {
	r, err := ipc.NewReader(bytes.NewReader(p.Schema))
	if err != nil {
		return nil, fmt.Errorf("the schema in the pin of %s: %w", p, err)
	}
	defer r.Release()
	return r.Schema(), nil
}

// relative returns the path of a file relative to the root that it lies in.
func (p *Pin) relative(uri string) string {
	for _, root := range p.Roots {
		if rest, ok := strings.CutPrefix(uri, root); ok {
			return strings.TrimPrefix(rest, "/")
		}
	}
	return uri
}
