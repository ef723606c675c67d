// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/kubeflow/datacache/objectcache/budget"
	"github.com/kubeflow/datacache/objectcache/mirror/upstream"
	"github.com/kubeflow/datacache/objectcache/pace"
)

// Forever is the age limit of documents that never change.
const Forever = time.Duration(math.MaxInt64)

const (
	// documentTimeout is the time limit of a document's fetch.
	documentTimeout = time.Minute
	// shortBody is the length of a body from which it is not held in memory.
	shortBody = 64 << 10
)

// ErrNotKept says that a document is too long to be held in memory and could not be stored.
var ErrNotKept = errors.New("no room for the document, or the disk fails")

// Query asks for a document.
type Query struct {
	Kind   string // the kind of mirror, for metrics
	Bucket string
	Key    string // all answers with the same key are the same for everybody who is authorized
	// MaxAge is how long a document is served without asking upstream, and StaleIfError how long after that while upstream fails.
	MaxAge, StaleIfError time.Duration
	Request              *Request // the client's request, to be sent on to the owner of the key
	Fetch                func(ctx context.Context) (upstream.Document, error)
	Digest               Digest // of the body; the zero value: not known
	// Keeps reports whether a refusal (*upstream.Refused) may be kept like a document. Nil: none is.
	Keeps func(refusal upstream.Document) bool
}

// errAnswered says that another object cache asked for the document, and was answered.
var errAnswered = errors.New("answered")

// Document returns a document, which the caller closes, from the owner of its key or from upstream. A refusal is an error of type
// *upstream.Refused, whether it was kept or not. The caller has authorized the request, and must not change the document. Another object cache's request for the
// document is answered here; the error is one for Ended then.
func (c *Cache) Document(ctx context.Context, q Query) (upstream.Document, error) {
	d, err := c.document(ctx, q)
	if q.Request.isForDocument() {
		answerPeer(q.Request.out, d, err)
		return upstream.Document{}, errAnswered
	}
	return d, err
}

func (c *Cache) document(ctx context.Context, q Query) (upstream.Document, error) {
	if a, ok := c.kept(q, q.MaxAge); ok {
		c.countRead(q.Kind, q.Bucket, true)
		return a.result()
	}
	if member, elsewhere := c.cfg.Router.Elsewhere(q.Bucket, q.Key); elsewhere && !q.Request.isForDocument() {
		response, err := c.ask(ctx, member, q.Request, q.Request.Method, hopDocument)
		if err == nil {
			return decodeAnswer(response)
		}
		if ctx.Err() != nil {
			return upstream.Document{}, context.Cause(ctx)
		}
		c.cfg.Log.Debug("a document's owner does not answer: upstream is asked", "owner", member.Name, "error", err)
	}
	got, err := c.fetches.Do(ctx, q.Bucket+"/"+q.Key, documentTimeout, func(ctx context.Context) (fetched, error) {
		return c.fetch(ctx, q)
	})
	if err != nil {
		return upstream.Document{}, err
	}
	if !got.isKept {
		d := got.document
		d.Body, d.Length = io.NopCloser(bytes.NewReader(got.body)), int64(len(got.body))
		return d, nil
	}
	if a, ok := c.kept(q, got.age); ok {
		return a.result()
	}
	return upstream.Document{}, ErrNotKept
}

// fetched is the result of a fetch, for all who wait for it.
type fetched struct {
	isKept   bool          // the document is in the store
	age      time.Duration // its maximum age there
	document upstream.Document
	body     []byte // of document, which is not only in the store
}

// fetch requests a document from upstream and keeps it.
func (c *Cache) fetch(ctx context.Context, q Query) (fetched, error) {
	c.countRead(q.Kind, q.Bucket, false)
	buf, err := c.cfg.Peers.Memory().Buffer(ctx, upstream.Memory)
	if err != nil {
		return fetched{}, err
	}
	defer buf.Free()
	d, err := q.Fetch(ctx)
	var refused *upstream.Refused
	switch {
	case err == nil:
		defer func() { _ = d.Close() }() // opened for reading: closing can't lose data
		return c.receive(q, d, buf)
	case errors.As(err, &refused) && q.Keeps != nil && q.Keeps(refused.Answer):
		_ = c.keep(q, answer{Document: refused.Answer, Refused: true, Message: refused.Message}, bytes.NewReader(nil), buf) // it is answered in any case
	case upstream.IsDown(err):
		limit := q.MaxAge
		if limit < Forever-q.StaleIfError {
			limit += q.StaleIfError
		}
		if a, ok := c.kept(q, limit); ok {
			c.cfg.Metrics.Stale(q.Kind)
			_ = a.Close() // opened for reading: closing can't lose data
			return fetched{isKept: true, age: limit}, a.refusal()
		}
	default: // a final answer: the document is gone, or forbidden to this client
		_ = c.cfg.Store.Delete(q.Bucket, q.Key) // the store counts failures; a document that was not deleted expires later
	}
	return fetched{}, err
}

// receive reads a document's body from upstream and stores it. A short one is also returned.
func (c *Cache) receive(q Query, d upstream.Document, buf *budget.Buffer) (fetched, error) {
	var start bytes.Buffer
	body := &counter{from: d.Body}
	defer func() { c.countReceived(q.Kind, q.Bucket, body.n) }()
	if _, err := io.CopyBuffer(&start, io.LimitReader(body, shortBody), buf.Bytes); err != nil {
		return fetched{}, err
	}
	isShort := start.Len() < shortBody
	err := c.keep(q, answer{Document: d}, io.MultiReader(bytes.NewReader(start.Bytes()), body), buf)
	var notStored *writeError
	if isShort && (err == nil || errors.As(err, &notStored)) {
		return fetched{document: d, body: start.Bytes()}, nil
	}
	if errors.As(err, &notStored) {
		return fetched{}, ErrNotKept
	}
	return fetched{isKept: true, age: Forever}, err
}

// counter counts the bytes that are read.
type counter struct {
	from io.Reader
	n    int64
}

// Read reads from the other reader.
func (r *counter) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.n += int64(n)
	return n, err
}

// keep stores an answer. An error of the store is a *writeError.
func (c *Cache) keep(q Query, a answer, body io.Reader, buf *budget.Buffer) error {
	frame, err := a.frame()
	if err != nil {
		return err
	}
	var sum hash.Hash
	w, storeErr := c.cfg.Store.Create(q.Bucket, q.Key, -1)
	to := io.Discard
	if storeErr == nil {
		defer w.Abort()
		to = w
		_, storeErr = w.Write(frame)
	}
	if q.Digest != (Digest{}) && !a.Refused {
		sum = q.Digest.newHash(0)
	}
	if storeErr != nil && sum == nil {
		return &writeError{storeErr}
	}
	copied := &blockWriter{to: to, sum: sum}
	if _, err := io.CopyBuffer(copied, body, buf.Bytes); err != nil {
		return err
	}
	if sum != nil && !q.Digest.matches(sum) {
		c.cfg.Metrics.Poison(q.Kind)
		return ErrPoisoned
	}
	if storeErr == nil {
		storeErr = w.Commit()
	}
	if storeErr != nil {
		c.cfg.Log.Debug("not kept", "bucket", q.Bucket, "key", q.Key, "error", storeErr)
		return &writeError{storeErr}
	}
	return nil
}

// kept opens an answer on this node's disk that is not older than a limit.
func (c *Cache) kept(q Query, limit time.Duration) (answer, bool) {
	object, err := c.cfg.Store.Get(q.Bucket, q.Key)
	if err != nil {
		return answer{}, false
	}
	body, err := object.Reader(0, object.Size())
	var a answer
	if err == nil {
		a, err = readFrame(body, object, object.Size())
	}
	if err != nil || limit != Forever && time.Since(a.Fetched) >= limit {
		_ = object.Close() // opened for reading: closing can't lose data
		return answer{}, false
	}
	return a, true
}

// decodeAnswer returns the document that another object cache answered with.
func decodeAnswer(response *http.Response) (upstream.Document, error) {
	if response.StatusCode == http.StatusOK {
		a, err := readFrame(response.Body, response.Body, response.ContentLength)
		if err != nil {
			_ = response.Body.Close() // opened for reading: closing can't lose data
			return upstream.Document{}, fmt.Errorf("the answer of the document's owner: %w", err)
		}
		return a.result()
	}
	defer func() { _ = response.Body.Close() }() // opened for reading: closing can't lose data
	if response.StatusCode == http.StatusInsufficientStorage {
		return upstream.Document{}, ErrNotKept
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, 200)) // only for the message
	return upstream.Document{}, fmt.Errorf("the owner of the document answered %s: %s", response.Status, text)
}

// answerPeer sends the result of Document to another object cache that asked for the document, and closes it.
func answerPeer(w http.ResponseWriter, d upstream.Document, err error) {
	a := answer{Document: d}
	var refused *upstream.Refused
	switch {
	case errors.As(err, &refused):
		a = answer{Document: refused.Answer, Refused: true, Message: refused.Message}
	case errors.Is(err, ErrNotKept):
		http.Error(w, err.Error(), http.StatusInsufficientStorage)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = a.Close() }() // opened for reading: closing can't lose data
	frame, err := a.frame()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if a.Length >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(int64(len(frame))+a.Length, 10))
	}
	out := pace.Default.Writer(w)
	if _, err = out.Write(frame); err == nil && a.Body != nil {
		_, err = io.Copy(out, a.Body)
	}
	if err != nil {
		panic(http.ErrAbortHandler) // closes the connection, so that the other object cache notices that the body is incomplete
	}
}
