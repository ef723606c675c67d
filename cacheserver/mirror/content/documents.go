// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/kubeflow/datacache/cacheserver/mirror/upstream"
)

// Forever is the age limit of documents that never change.
const Forever = time.Duration(math.MaxInt64)

// documentTimeout is the time limit of a document's fetch.
const documentTimeout = time.Minute

// Query asks for a document.
type Query struct {
	Kind   string // the kind of mirror, for metrics
	Bucket string
	Key    string // all answers with the same key are the same for everybody who is authorized
	// MaxAge is how long a document is served without asking upstream, and StaleIfError how long after that while upstream fails.
	MaxAge, StaleIfError time.Duration
	Request              *Request // the client's request, for the owner of the key
	Fetch                func(ctx context.Context) (upstream.Document, error)
	// Keeps reports whether a refusal (*upstream.Refused) may be kept like a document. Nil: none is.
	Keeps func(refusal upstream.Document) bool
}

// Document returns a document from the owner of its key or from upstream. A refusal is an error of type *upstream.Refused, whether it
// was kept or not. The caller has authorized the request, and must not change the document.
func (c *Cache) Document(ctx context.Context, q Query) (upstream.Document, error) {
	if d, ok := c.kept(q, q.MaxAge); ok {
		c.countRead(q.Kind, q.Bucket, true)
		return d.result()
	}
	if member, elsewhere := c.cfg.Router.Elsewhere(q.Bucket, q.Key); elsewhere && !q.Request.IsForDocument() {
		response, err := c.ask(ctx, member, q.Request, q.Request.Method, hopDocument)
		if err == nil {
			return decodeAnswer(response)
		}
		if ctx.Err() != nil {
			return upstream.Document{}, context.Cause(ctx)
		}
		c.cfg.Log.Debug("a document's owner does not answer: upstream is asked", "owner", member.Name, "error", err)
	}
	return once(ctx, &c.flights, q.Bucket+"/"+q.Key, documentTimeout, func(ctx context.Context) (upstream.Document, error) {
		return c.fetch(ctx, q)
	})
}

// fetch requests a document from upstream and keeps it.
func (c *Cache) fetch(ctx context.Context, q Query) (upstream.Document, error) {
	c.countRead(q.Kind, q.Bucket, false)
	d, err := q.Fetch(ctx)
	var refused *upstream.Refused
	switch {
	case err == nil:
		c.countReceived(q.Kind, q.Bucket, int64(len(d.Body)))
		c.keep(q, answer{Document: d})
	case errors.As(err, &refused) && q.Keeps != nil && q.Keeps(refused.Answer):
		c.keep(q, answer{Document: refused.Answer, Refused: true})
	case upstream.IsDown(err):
		limit := q.MaxAge
		if limit < Forever-q.StaleIfError {
			limit += q.StaleIfError
		}
		if kept, ok := c.kept(q, limit); ok {
			c.cfg.Metrics.Stale(q.Kind)
			return kept.result()
		}
	default: // a final answer: the document is gone, or forbidden to this client
		_ = c.cfg.Store.Delete(q.Bucket, q.Key) // the store counts failures; a document that was not deleted expires later
	}
	return d, err
}

// answer is a document, or a refusal, as it is stored and as it is sent between object caches.
type answer struct {
	upstream.Document
	Refused bool
}

func (a answer) result() (upstream.Document, error) {
	if a.Refused {
		return upstream.Document{}, &upstream.Refused{Answer: a.Document}
	}
	return a.Document, nil
}

func (c *Cache) kept(q Query, limit time.Duration) (answer, bool) {
	data, err := c.get(q.Bucket, q.Key)
	if err != nil {
		return answer{}, false
	}
	var a answer
	if err := json.Unmarshal(data, &a); err != nil {
		return answer{}, false
	}
	return a, limit == Forever || time.Since(a.Fetched) < limit
}

func (c *Cache) keep(q Query, a answer) {
	if data, err := json.Marshal(a); err == nil {
		c.put(q.Bucket, q.Key, data)
	}
}

// maxAnswer is the maximum length of an answer of another object cache.
const maxAnswer = 128 << 20

func decodeAnswer(response *http.Response) (upstream.Document, error) {
	defer func() { _ = response.Body.Close() }() // opened for reading: closing can't lose data
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return upstream.Document{}, err
	}
	if response.StatusCode != http.StatusOK {
		return upstream.Document{}, fmt.Errorf("the owner of the document answered %s: %.200s", response.Status, data)
	}
	var a answer
	if err := json.Unmarshal(data, &a); err != nil {
		return upstream.Document{}, fmt.Errorf("the answer of the document's owner: %w", err)
	}
	return a.result()
}

// AnswerPeer sends the result of Document to another object cache that asked for the document.
func AnswerPeer(w http.ResponseWriter, d upstream.Document, err error) {
	a := answer{Document: d}
	var refused *upstream.Refused
	if errors.As(err, &refused) {
		a = answer{Document: refused.Answer, Refused: true}
	} else if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	data, err := json.Marshal(a)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // the other object cache notices a body that ends early
}
