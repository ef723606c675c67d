// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/kubeflow/datacache/objectcache/mirror/upstream"
	"github.com/kubeflow/datacache/objectcache/pace"
)

// Blob is content whose digest and size upstream announced.
type Blob struct {
	Kind   string // the kind of mirror, for metrics
	Bucket string
	Digest Digest
	Size   int64
	// Scope names the repository that announced the digest. Blocks of a blob that was never verified are kept for it alone: another
	// repository may announce the same digest, and send other bytes.
	Scope string
	// Read requests a range from upstream.
	Read func(ctx context.Context, first, length int64) (io.ReadCloser, error)
}

// place is the name of a block by which the node is chosen that owns it.
func (b Blob) place(block int64) string {
	return b.Digest.String() + "#" + strconv.FormatInt(block, 10)
}

// verified is the scope of blocks that are known to match the digest. It is as long as those of repositories, which store.Rename wants.
const verified = "00000000000000000000000000000000"

// key is the key of a block of a scope in the store.
func (b Blob) key(block int64, scope string) string { return b.place(block) + "@" + scope }

// own is the scope of the blob's repository.
func (b Blob) own() string {
	sum := sha256.Sum256([]byte(b.Kind + " " + b.Scope))
	return hex.EncodeToString(sum[:len(verified)/2])
}

// blocks returns the number of a blob's blocks; an empty blob has none.
func (c *Cache) blocks(b Blob) int64 { return (b.Size + c.unit - 1) / c.unit }

// block is one block of a blob.
type block struct {
	*Cache
	Blob
	number int64
}

func (c *Cache) at(b Blob, number int64) block { return block{Cache: c, Blob: b, number: number} }

// length is the length of the block.
func (k block) length() int64 { return min(k.unit, k.Size-k.number*k.unit) }

// open returns a reader of one block: from this node's disk, from the block's owner, or from upstream.
func (k block) open(ctx context.Context, r *Request) (io.ReadCloser, error) {
	if body := k.openKept(verified); body != nil {
		k.countRead(k.Kind, k.Bucket, true)
		return body, nil
	}
	if !r.IsHop() {
		if member, elsewhere := k.cfg.Router.Elsewhere(k.Bucket, k.place(k.number)); elsewhere {
			response, err := k.ask(ctx, member, r, http.MethodGet, strconv.FormatInt(k.number, 10))
			if err == nil {
				return k.fromOwner(response, k.length())
			}
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			k.cfg.Log.Debug("a block's owner does not answer: upstream is asked", "owner", member.Name, "error", err)
		}
	}
	fetched, err := k.fill(ctx)
	if err != nil && !errors.Is(err, errNotKept) {
		return nil, err
	}
	body, known := k.lookup(ctx)
	if body == nil {
		return k.pass(ctx, known)
	}
	if !fetched {
		k.countRead(k.Kind, k.Bucket, true)
	}
	return body, nil
}

// lookup opens a block on this node's disk; nil if it is not there for the blob's repository. It also returns the blob's proof.
func (k block) lookup(ctx context.Context) (io.ReadCloser, *proof) {
	known := k.proofOf(ctx, k.Blob)
	body := k.openOwn(known)
	if body == nil && known == nil {
		if known = k.proofOf(ctx, k.Blob); known != nil { // the blob was verified, and its block may have been promoted, since the first lookup
			body = k.openOwn(known)
		}
	}
	return body, known
}

// openOwn opens a block that was kept for one repository: the blob's own, or, once the blob is known to match its digest, the one by which
// it was verified. The block is verified then, and is there for all.
func (k block) openOwn(known *proof) io.ReadCloser {
	if k.blocks(k.Blob) == 1 {
		return k.openKept(verified)
	}
	if known == nil {
		return k.openKept(k.own())
	}
	_, _, _ = k.promotions.Do(k.Bucket+"/"+k.place(k.number), func() (any, error) { // once for all who wait: while a block is renamed, it is not there
		if k.cfg.Store.Has(k.Bucket, k.key(k.number, verified)) {
			return nil, nil
		}
		for _, scope := range []string{k.own(), known.scope} {
			if k.promote(scope, known) {
				return nil, nil
			}
		}
		return nil, nil
	})
	return k.openKept(verified)
}

// promote makes a scope's block one that is known to match the digest, if it does; otherwise it removes it.
func (k block) promote(scope string, known *proof) bool {
	object, err := k.cfg.Store.Get(k.Bucket, k.key(k.number, scope))
	if err != nil {
		return false
	}
	defer func() { _ = object.Close() }() // opened for reading: closing can't lose data
	body, err := object.Reader(0, object.Size())
	if err != nil {
		return false
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, body); err != nil {
		return false
	}
	if object.Size() != k.length() || !bytes.Equal(sum.Sum(nil), known.sum(k.number)) {
		_ = k.cfg.Store.Delete(k.Bucket, k.key(k.number, scope)) // a failure is counted, and the next read tries again
		return false
	}
	return k.cfg.Store.Rename(k.Bucket, k.key(k.number, scope), k.key(k.number, verified)) == nil
}

// fromOwner returns the body of an owner's answer.
func (c *Cache) fromOwner(response *http.Response, length int64) (io.ReadCloser, error) {
	if response.StatusCode == http.StatusOK && response.ContentLength == length {
		return response.Body, nil
	}
	defer func() { _ = response.Body.Close() }() // opened for reading: closing can't lose data
	if response.StatusCode == http.StatusOK {
		return nil, fmt.Errorf("a block's owner has %d bytes of it, want %d", response.ContentLength, length)
	}
	if response.Header.Get(hopHeader) == hopPoisoned {
		return nil, ErrPoisoned
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, 16<<10)) // only for people
	return nil, &upstream.Refused{Answer: upstream.Document{Status: response.StatusCode, Header: response.Header, Fetched: time.Now()}, Message: text}
}

// openKept opens a scope's block on this node's disk; nil if it is not there.
func (k block) openKept(scope string) io.ReadCloser {
	object, err := k.cfg.Store.Get(k.Bucket, k.key(k.number, scope))
	if err != nil {
		return nil
	}
	body, err := object.Reader(0, object.Size())
	if err != nil || object.Size() != k.length() {
		_ = object.Close() // opened for reading: closing can't lose data
		return nil
	}
	return &keptBlock{Reader: body, Closer: object, sent: func(n int64) { k.cfg.Peers.Traffic().Sent(k.Bucket, n) }}
}

// keptBlock is a block on this node's disk.
type keptBlock struct {
	io.Reader
	io.Closer
	sent func(n int64) // counts bytes that were sent to a client or another node
}

// countSent counts n bytes that were sent of a block, if it is on this node's disk: otherwise the node that has it counts them.
func countSent(block io.ReadCloser, n int64) {
	if kept, ok := block.(*keptBlock); ok {
		kept.sent(n)
	}
}

// errNotKept says that a block could not be stored.
var errNotKept = errors.New("no room for the block, or the disk fails")

// fill reads a block from upstream and stores it if it is not here, once for all of the repository who wait for it.
func (k block) fill(ctx context.Context) (fetched bool, err error) {
	return k.reads.Do(ctx, k.Bucket+"/"+k.key(k.number, k.own()), fillTimeout, func(ctx context.Context) (bool, error) {
		body, known := k.lookup(ctx)
		if body != nil {
			return false, body.Close()
		}
		k.countRead(k.Kind, k.Bucket, false)
		select {
		case k.fills <- struct{}{}:
			defer func() { <-k.fills }()
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
		return true, k.store(ctx, known)
	})
}

// store reads a block from upstream into the store.
func (k block) store(ctx context.Context, known *proof) error {
	scope := k.own()
	if known != nil || k.blocks(k.Blob) == 1 {
		scope = verified
	}
	w, err := k.cfg.Store.Create(k.Bucket, k.key(k.number, scope), k.length())
	if err == nil {
		defer w.Abort()
		if err = k.read(ctx, known, w); err == nil {
			err = w.Commit()
		}
	}
	var notStored *writeError
	if err != nil && (w == nil || errors.As(err, &notStored)) {
		k.cfg.Log.Debug("not kept", "digest", k.Digest, "block", k.number, "error", err)
		return errNotKept
	}
	return err
}

// pass reads a block from upstream that can't be stored, for one request.
func (k block) pass(ctx context.Context, known *proof) (io.ReadCloser, error) {
	memory := k.cfg.Peers.Memory().Large()
	length := k.length()
	if err := memory.Take(ctx, length); err != nil {
		return nil, err
	}
	free := sync.OnceFunc(func() { memory.Put(length) })
	data := bytes.NewBuffer(make([]byte, 0, length))
	if err := k.read(ctx, known, data); err != nil {
		free()
		return nil, err
	}
	return &passedBlock{Reader: data, free: free}, nil
}

// passedBlock is a block in memory, which Close returns.
type passedBlock struct {
	io.Reader
	free func()
}

// Close returns the memory.
func (p *passedBlock) Close() error {
	p.free()
	return nil
}

// writeError is an error of the writer that a block is read into.
type writeError struct{ error }

func (e *writeError) Unwrap() error { return e.error }

// blockWriter writes a block and hashes it.
type blockWriter struct {
	to      io.Writer
	sum     hash.Hash // nil: not hashed
	written int64
}

// Write writes a part of the block.
func (w *blockWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	if w.sum != nil {
		_, _ = w.sum.Write(p[:n]) // writing to a hash never fails
	}
	w.written += int64(n)
	if err != nil {
		err = &writeError{err}
	}
	return n, err
}

// attempts is how often a block is requested from upstream when its answers break off.
const attempts = 3

// read reads a block from upstream and verifies it, if that is possible: if it is the whole blob, or if the blob was verified before. It
// continues after an answer that broke off.
func (k block) read(ctx context.Context, known *proof, to io.Writer) error {
	w, length := &blockWriter{to: to, sum: sha256.New()}, k.length()
	if k.blocks(k.Blob) == 1 {
		w.sum = k.Digest.newHash(k.Size)
	}
	buf, err := k.cfg.Peers.Memory().Buffer(ctx, upstream.Memory)
	if err != nil {
		return err
	}
	defer buf.Free()
	for range attempts {
		var body io.ReadCloser
		if body, err = k.Read(ctx, k.number*k.unit+w.written, length-w.written); err != nil {
			return err
		}
		var n int64
		n, err = io.CopyBuffer(w, io.LimitReader(body, length-w.written), buf.Bytes)
		_ = body.Close() // opened for reading: closing can't lose data
		k.countReceived(k.Kind, k.Bucket, n)
		if w.written == length {
			return k.check(w.sum, known)
		}
		var notStored *writeError
		if errors.As(err, &notStored) {
			return err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("upstream's answer broke off after %d of %d bytes: %w", w.written, length, cmp.Or(err, io.ErrUnexpectedEOF))
}

// check compares a block's hash with what is known of the block.
func (k block) check(sum hash.Hash, known *proof) error {
	switch {
	case k.blocks(k.Blob) == 1 && k.Digest.matches(sum):
		return nil
	case k.blocks(k.Blob) > 1 && (known == nil || bytes.Equal(known.sum(k.number), sum.Sum(nil))):
		return nil
	}
	k.cfg.Metrics.Poison(k.Kind)
	k.cfg.Log.Warn("upstream sent bytes that do not match their digest", "digest", k.Digest, "block", k.number)
	return ErrPoisoned
}

// serveBlock answers another object cache's request for a block. HEAD only fetches it.
func (c *Cache) serveBlock(w http.ResponseWriter, r *http.Request, b Blob, block int64, from *Request) error {
	if block >= c.blocks(b) {
		http.Error(w, "the blob has no such block", http.StatusRequestedRangeNotSatisfiable)
		return nil
	}
	body, err := c.at(b, block).open(r.Context(), from)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // opened for reading: closing can't lose data
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(c.at(b, block).length(), 10))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	pace.Default.Extend(w, c.at(b, block).length())
	n, _ := io.Copy(w, body) // the other object cache notices a body shorter than its Content-Length
	countSent(body, n)
	return nil
}

// ErrCut says that a response broke off after its header was sent. The handler must close the connection (http.ErrAbortHandler).
var ErrCut = errors.New("the response broke off")
