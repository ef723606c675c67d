// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/kubeflow/datacache/objectcache/byterange"
	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/store"
)

const (
	// batchSuffix follows the bucket in the target of a request for many objects.
	batchSuffix = "?batch"
	// Limits of such a request.
	maxBatchKeys  = 65536
	maxBatchBytes = 8 << 20

	// missingPrefix precedes the names of objects that are missing, and missingRecord is their PAX record. Its value is the status
	// that a GET would return.
	missingPrefix = "__404__/"
	missingRecord = "DATACACHE.status"
	// keyRecord is the PAX record with the key, if the entry's name differs from it: see entryName.
	keyRecord = "DATACACHE.key"

	batchBuffer = 256 << 10
	// batchMemory is what a batch request takes beside the list of keys, once here and once for their owners: slices of keys, buffers.
	batchMemory = 4 << 20
)

// serveBatch answers POST /v1/objects/BUCKET?batch, whose body has one key per line, with a tar stream of the objects in that order.
// It sends one batch request to each owner of keys, concurrently.
func (r *request) serveBatch() {
	if r.Method != http.MethodPost {
		r.answer.Header().Set("Allow", "POST")
		r.refuse(http.StatusMethodNotAllowed, r.Method+" is not for many objects")
		return
	}
	if r.server.Membership.absent.Load() != nil {
		unavailable("asking the others what changed").answer(r)
		return
	}
	memory := 2*batchLength(r) + batchMemory
	if err := r.server.cfg.Memory.Large().Take(r.Context(), memory); err != nil {
		r.busy()
		return
	}
	defer r.server.cfg.Memory.Large().Put(memory)
	keys, no := batchKeys(r)
	if no != nil {
		no.answer(r)
		return
	}
	b := &batch{request: r, owners: make([]*ownerStream, len(keys))}
	defer b.close()
	if r.Header.Get(hopHeader) == "" {
		b.askOwners(keys)
	}
	r.answer.Header().Set("Content-Type", "application/x-tar")
	r.answer.WriteHeader(http.StatusOK)
	b.out = bufio.NewWriterSize(r.server.limits.Writer(r.answer), batchBuffer)
	b.tar = tar.NewWriter(b.out)
	for i, key := range keys {
		if err := b.add(i, key); err != nil {
			panic(http.ErrAbortHandler) // closes the connection, so that the client notices that the stream is incomplete
		}
	}
	if err := errors.Join(b.tar.Close(), b.out.Flush()); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// batchLength is the length of the list of keys, or the longest possible one if it is not announced.
func batchLength(r *request) int64 {
	if r.ContentLength < 0 {
		return maxBatchBytes
	}
	return min(r.ContentLength, maxBatchBytes)
}

// batchKeys reads the keys from the body.
func batchKeys(r *request) ([]string, *refusal) {
	var text strings.Builder
	text.Grow(int(batchLength(r)))
	_, err := io.Copy(&text, http.MaxBytesReader(r.answer, r.Body, maxBatchBytes))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, &refusal{status: http.StatusRequestEntityTooLarge, why: fmt.Sprintf("the list of keys has more than %d bytes", maxBatchBytes)}
	}
	if err != nil {
		return nil, &refusal{status: http.StatusBadRequest, why: "the body broke off: " + err.Error(), name: "Connection", value: "close"}
	}
	keys := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	if len(keys) > maxBatchKeys {
		return nil, &refusal{status: http.StatusRequestEntityTooLarge, why: fmt.Sprintf("%d keys, at most %d are taken", len(keys), maxBatchKeys)}
	}
	for i, key := range keys {
		if key == "" || len(key) > maxKey || strings.ContainsAny(key, "\x00 \r") {
			return nil, &refusal{status: http.StatusBadRequest, why: fmt.Sprintf("line %d: want a key of 1 to %d bytes, as in a request target", i+1, maxKey)}
		}
		if strings.HasSuffix(key, "/") { // archive/tar encodes no file with such a name
			why := fmt.Sprintf("line %d: the name of a file in a tar stream can't end with a slash, GET this key by itself", i+1)
			return nil, &refusal{status: http.StatusBadRequest, why: why}
		}
	}
	return keys, nil
}

// batch is the response to one batch request.
type batch struct {
	*request
	owners  []*ownerStream // by key; nil: this node has it
	streams []*ownerStream
	out     *bufio.Writer
	tar     *tar.Writer
	buf     []byte
}

// add writes the tar entry of one key.
func (b *batch) add(i int, key string) error {
	if owner := b.owners[i]; owner != nil {
		return b.addFrom(owner, key)
	}
	s, bucket := b.server, b.bucket
	if s.Membership.staleBefore(bucket, key).IsZero() {
		if b.buf == nil {
			b.buf = make([]byte, batchBuffer)
		}
		data, err := s.cfg.Store.ReadSmall(bucket, key, b.buf)
		if err == nil {
			s.traffic.Read(bucket, true)
			s.traffic.Sent(bucket, int64(len(data)))
			if err := b.entry(key, int64(len(data))); err != nil {
				return err
			}
			_, err = b.tar.Write(data)
			return err
		}
		if !errors.Is(err, store.ErrNotSmall) {
			return b.missing(key, http.StatusNotFound)
		}
	}
	return b.addLarge(key)
}

// addLarge copies an object of any size from its file.
func (b *batch) addLarge(key string) error {
	s, bucket := b.server, b.bucket
	object, err := s.find(bucket, key)
	if err != nil {
		return b.missing(key, http.StatusNotFound)
	}
	defer func() { _ = object.Close() }() // opened for reading: closing can't lose data
	if object.IsLayout() {
		return b.addParts(key, object)
	}
	body, err := object.Reader(0, object.Size())
	if err != nil {
		return b.missing(key, http.StatusNotFound)
	}
	s.traffic.Read(bucket, true)
	if err := b.entry(key, object.Size()); err != nil {
		return err
	}
	n, err := io.Copy(b.tar, body)
	s.traffic.Sent(bucket, n)
	return err
}

// addParts copies an object in parts.
func (b *batch) addParts(key string, object *store.Object) error {
	text, err := readLayout(object)
	if err != nil {
		return b.missing(key, http.StatusNotFound)
	}
	p := b.decodeParts(key, text)
	if p == nil {
		return b.missing(key, http.StatusNotFound)
	}
	whole := byterange.Range{Length: p.Size}
	if err := p.check(b.Context(), whole); errors.Is(err, errNoPart) {
		return b.missing(key, http.StatusNotFound)
	} else if err != nil {
		return b.missing(key, http.StatusServiceUnavailable)
	}
	b.server.traffic.Read(b.bucket, true)
	if err := b.entry(key, p.Size); err != nil {
		return err
	}
	return p.copy(b.tar, whole, func() {})
}

func (b *batch) entry(key string, size int64) error {
	return b.writeHeader(key, &tar.Header{Name: entryName(key), Size: size})
}

// entryName returns the name of a key's tar entry: the key, with slashes at its start and parts ".." percent-encoded. The writer of an
// object chooses its key, and programs that unpack a stream must not write outside their folder.
func entryName(key string) string {
	rest := strings.TrimLeft(key, "/")
	parts := strings.Split(rest, "/")
	for i, part := range parts {
		if part == ".." {
			parts[i] = "%2E%2E"
		}
	}
	return strings.Repeat("%2F", len(key)-len(rest)) + strings.Join(parts, "/")
}

// writeHeader begins the tar entry of a key. header has no records other than that of a missing object.
func (b *batch) writeHeader(key string, header *tar.Header) error {
	header.Typeflag, header.Mode = tar.TypeReg, 0o644
	if entryName(key) != key {
		if header.PAXRecords == nil {
			header.PAXRecords = map[string]string{}
		}
		header.PAXRecords[keyRecord] = key
	}
	if header.PAXRecords != nil {
		header.Format = tar.FormatPAX
	}
	return b.tar.WriteHeader(header)
}

// missing writes the tar entry of an object that is missing.
func (b *batch) missing(key string, status int) error {
	if status == http.StatusNotFound {
		b.server.traffic.Read(b.bucket, false)
	}
	return b.absent(key, status)
}

// absent writes a tar entry without an object.
func (b *batch) absent(key string, status int) error {
	return b.writeHeader(key, &tar.Header{Name: missingPrefix + entryName(key), PAXRecords: map[string]string{missingRecord: strconv.Itoa(status)}})
}

// ownerStream is the response of the member that owns some of a batch's keys.
type ownerStream struct {
	member router.Member
	keys   []string
	cancel context.CancelFunc
	opened chan struct{} // closed when tar or failed is set
	body   io.Closer
	tar    *tar.Reader // nil: failed
}

// askOwners sends to each other member the keys that it owns.
func (b *batch) askOwners(keys []string) {
	byMember := map[router.Member]*ownerStream{}
	for i, key := range keys {
		member, elsewhere := b.server.cfg.Router.Elsewhere(b.bucket, key)
		if !elsewhere {
			continue
		}
		o, known := byMember[member]
		if !known {
			o = &ownerStream{member: member, opened: make(chan struct{})}
			byMember[member] = o
			b.streams = append(b.streams, o)
		}
		o.keys = append(o.keys, key)
		b.owners[i] = o
	}
	for _, o := range b.streams {
		ctx, cancel := context.WithCancel(b.Context())
		o.cancel = cancel
		go b.open(ctx, o)
	}
}

// open sends the batch request to one owner.
func (b *batch) open(ctx context.Context, o *ownerStream) {
	defer close(o.opened)
	peers, counted := b.server.Peers, &b.server.traffic.forwards
	if peers.isSuspended(o.member) {
		counted.spared.Add(1)
		return
	}
	body := strings.Join(o.keys, "\n") + "\n"
	out, err := http.NewRequestWithContext(ctx, http.MethodPost, peers.scheme+"://"+o.member.Address+prefix+b.bucket+batchSuffix, strings.NewReader(body))
	if err != nil {
		return
	}
	out.Header = http.Header{hopHeader: {"1"}, "User-Agent": {""}}
	copyHeaders(out.Header, b.Header, []string{"Authorization"})
	response, err := peers.transport.RoundTrip(out)
	if err != nil {
		counted.failed.Add(1)
		peers.noteFailure(b.Context(), o.member, err)
		return
	}
	counted.answered.Add(1)
	o.body = response.Body
	if response.StatusCode == http.StatusOK {
		o.tar = tar.NewReader(response.Body)
	}
}

// addFrom copies the next entry of an owner's response, which must be that of the key.
func (b *batch) addFrom(o *ownerStream, key string) error {
	<-o.opened
	if o.tar == nil {
		return b.missing(key, http.StatusServiceUnavailable)
	}
	header, err := o.tar.Next()
	if name := entryName(key); err != nil || header.Name != name && header.Name != missingPrefix+name {
		o.tar = nil
		return b.missing(key, http.StatusServiceUnavailable)
	}
	if status, missing := header.PAXRecords[missingRecord]; missing {
		n, err := strconv.Atoi(status)
		if err != nil {
			n = http.StatusServiceUnavailable
		}
		return b.absent(key, n)
	}
	if err := b.entry(key, header.Size); err != nil {
		return err
	}
	_, err = io.Copy(b.tar, o.tar)
	return err
}

// close ends the requests to owners.
func (b *batch) close() {
	for _, o := range b.streams {
		o.cancel()
		<-o.opened
		if o.body != nil {
			_ = o.body.Close() // opened for reading: closing can't lose data
		}
	}
}
