// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/kubeflow/datacache/objectcache/mirror/upstream"
)

// answer is a document, or a refusal. It is stored, and sent between object caches, as a frame, which is its JSON after the JSON's length
// in four bytes (big-endian), and the document's body.
type answer struct {
	upstream.Document
	Refused bool
	Message []byte // of a refusal
}

// maxFrame is the maximum length of an answer's JSON.
const maxFrame = 1 << 20

func (a answer) frame() ([]byte, error) {
	text, err := json.Marshal(a)
	if err == nil && len(text) > maxFrame {
		err = fmt.Errorf("the header of an answer has %d bytes, at most %d are kept", len(text), maxFrame)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...), err
}

// readFrame reads an answer of size bytes (-1: unknown), whose body remains to be read from the reader.
func readFrame(from io.Reader, closer io.Closer, size int64) (a answer, err error) {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return answer{}, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxFrame {
		return answer{}, fmt.Errorf("a header of %d bytes, want at most %d", n, maxFrame)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(from, text); err != nil {
		return answer{}, err
	}
	err = json.Unmarshal(text, &a)
	a.Length = -1
	if size >= 0 {
		a.Length = size - int64(len(length)) - int64(n)
	}
	a.Body = struct {
		io.Reader
		io.Closer
	}{from, closer}
	return a, err
}

// refusal is the error for a refusal; nil for a document.
func (a answer) refusal() error {
	if !a.Refused {
		return nil
	}
	a.Body, a.Length = nil, 0
	return &upstream.Refused{Answer: a.Document, Message: a.Message}
}

func (a answer) result() (upstream.Document, error) {
	if err := a.refusal(); err != nil {
		_ = a.Close() // opened for reading: closing can't lose data
		return upstream.Document{}, err
	}
	return a.Document, nil
}
