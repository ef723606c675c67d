// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/kubeflow/datacache/objectcache/budget"
	"github.com/kubeflow/datacache/objectcache/byterange"
	"github.com/kubeflow/datacache/objectcache/pace"
)

// readAhead is the number of blocks, with the one being sent, that a response has requested from their owners.
const readAhead = 4

// Serve answers a client's GET or HEAD of a blob, with the one range that it asks for, or another object cache's request for a block.
// The caller has authorized the request and set the response's other fields. On an error nothing was sent, and the response has no fields,
// except for ErrCut.
func (c *Cache) Serve(w http.ResponseWriter, r *http.Request, b Blob, from *Request) error {
	err := c.serve(w, r, b, from)
	if err != nil && !errors.Is(err, ErrCut) {
		clear(w.Header())
	}
	return err
}

func (c *Cache) serve(w http.ResponseWriter, r *http.Request, b Blob, from *Request) error {
	if block, ok := from.block(); ok {
		return c.serveBlock(w, r, b, block, from)
	}
	asked, ok := byterange.Of(w, r, b.Size)
	if !ok {
		return nil
	}
	status := asked.Header(w.Header(), b.Size)
	if r.Method == http.MethodHead || asked.Length == 0 {
		w.WriteHeader(status)
		return nil
	}
	s := &response{cache: c, blob: b, from: from, out: w, status: status, next: asked.First, end: asked.First + asked.Length}
	err := s.send(r.Context())
	if err != nil && s.started {
		c.cfg.Log.Debug("a response broke off", "digest", b.Digest, "error", err)
		return ErrCut
	}
	return err
}

// response is the response to a client's GET.
type response struct {
	cache     *Cache
	blob      Blob
	from      *Request
	out       http.ResponseWriter
	status    int
	started   bool  // the header was sent
	next, end int64 // the range of the blob that is still to be sent
	requested int64 // blocks before this one are requested
	buf       *budget.Buffer
	check     *verification
}

// send sends the range.
func (s *response) send(ctx context.Context) (err error) {
	c := s.cache
	if s.buf, err = c.cfg.Peers.Memory().Buffer(ctx, 0); err != nil {
		return err
	}
	defer s.buf.Free()
	if s.next == 0 && s.end == s.blob.Size && c.blocks(s.blob) > 1 && c.proofOf(ctx, s.blob) == nil {
		s.check = newVerification(s.blob)
	}
	ctx, cancel := context.WithCancel(ctx)
	var ahead sync.WaitGroup
	defer ahead.Wait()
	defer cancel()
	for s.next < s.end {
		block := s.next / c.unit
		s.prefetch(ctx, &ahead, block)
		if err := s.sendBlock(ctx, block); err != nil {
			return err
		}
	}
	return nil
}

// prefetch requests the blocks after one from their owners.
func (s *response) prefetch(ctx context.Context, ahead *sync.WaitGroup, block int64) {
	c := s.cache
	last := (s.end - 1) / c.unit
	s.requested = max(s.requested, block+1)
	for ; s.requested <= min(block+readAhead-1, last); s.requested++ {
		n := s.requested
		ahead.Go(func() {
			if err := c.ensure(ctx, s.blob, n, s.from); err != nil {
				c.cfg.Log.Debug("a block was not read ahead", "digest", s.blob.Digest, "block", n, "error", err)
			}
		})
	}
}

// ensure makes the owner of a block fetch it if it is missing.
func (c *Cache) ensure(ctx context.Context, b Blob, block int64, r *Request) error {
	member, elsewhere := c.cfg.Router.Elsewhere(b.Bucket, b.place(block))
	if !elsewhere {
		body, err := c.at(b, block).open(ctx, r)
		if err != nil {
			return err
		}
		return body.Close()
	}
	response, err := c.ask(ctx, member, r, http.MethodHead, strconv.FormatInt(block, 10))
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// sendBlock sends the part of one block that the client asked for.
func (s *response) sendBlock(ctx context.Context, block int64) error {
	c := s.cache
	body, err := c.at(s.blob, block).open(ctx, s.from)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // opened for reading: closing can't lose data
	begin := block * c.unit
	if _, err := io.CopyN(io.Discard, body, s.next-begin); err != nil { // its buffers are a pool of package io
		return err
	}
	length := min(s.end, begin+c.at(s.blob, block).length()) - s.next
	if !s.started {
		s.out.WriteHeader(s.status)
		s.started = true
	}
	pace.Default.Extend(s.out, length)
	before := s.next
	defer func() { countSent(body, s.next-before) }()
	if s.check == nil {
		n, err := io.CopyBuffer(struct{ io.Writer }{s.out}, io.LimitReader(body, length), s.buf.Bytes) // hides ReadFrom, which would ignore buf
		s.next += n
		if err == nil && n < length {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return s.sendVerified(ctx, body, length)
}

// sendVerified sends a block while hashing it. The last bytes of the blob are sent only if its digest matches.
func (s *response) sendVerified(ctx context.Context, body io.Reader, length int64) error {
	s.check.beginBlock()
	for length > 0 {
		part := s.buf.Bytes[:min(budget.BufferSize, length)]
		if _, err := io.ReadFull(body, part); err != nil {
			return err
		}
		s.check.write(part)
		length -= int64(len(part))
		if length == 0 {
			s.check.endBlock()
		}
		if s.next+int64(len(part)) == s.blob.Size {
			if err := s.finish(ctx); err != nil {
				return err
			}
		}
		n, err := s.out.Write(part)
		s.next += int64(n)
		if err != nil {
			return err
		}
	}
	return nil
}

// finish compares the digest of the whole blob. A match is recorded for later readers; otherwise the blob's blocks are removed.
func (s *response) finish(ctx context.Context) error {
	c := s.cache
	if s.blob.Digest.matches(s.check.whole) {
		c.keepProof(ctx, s.blob, s.check.sums)
		return nil
	}
	c.cfg.Metrics.Poison(s.blob.Kind)
	c.cfg.Log.Warn("a blob does not match its digest: its blocks are removed", "digest", s.blob.Digest)
	return errors.Join(ErrPoisoned, c.remove(ctx, s.blob))
}

// verification hashes a blob and each of its blocks.
type verification struct {
	whole, block hash.Hash
	sums         []byte // of the blocks
}

func newVerification(b Blob) *verification {
	return &verification{whole: b.Digest.newHash(b.Size), block: sha256.New()}
}

func (v *verification) beginBlock() { v.block.Reset() }

func (v *verification) endBlock() { v.sums = v.block.Sum(v.sums) }

func (v *verification) write(p []byte) { // writing to a hash never fails
	_, _ = v.whole.Write(p)
	_, _ = v.block.Write(p)
}
