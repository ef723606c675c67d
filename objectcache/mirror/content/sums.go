// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/serve"
)

// peerPath is where object caches change each other's blocks: GET and PUT of <digest>#ok, DELETE of any key. The rest of the path is
// BUCKET/KEY, encoded.
const peerPath = "objects/"

// peerTimeout is the time limit of such a request.
const peerTimeout = 5 * time.Second

func (b Blob) sumsKey() string { return b.Digest.String() + "#ok" }

// proof says that a blob was verified.
type proof struct {
	scope string // by which repository
	sums  []byte // the SHA-256 of each block, one after the other
}

func (p *proof) sum(block int64) []byte { return p.sums[block*sha256.Size : (block+1)*sha256.Size] }

// proofOf returns the proof of a blob of several blocks; nil if it was not verified.
func (c *Cache) proofOf(ctx context.Context, b Blob) *proof {
	if c.blocks(b) < 2 {
		return nil
	}
	text, err := c.get(b.Bucket, b.sumsKey())
	if member, elsewhere := c.cfg.Router.Elsewhere(b.Bucket, b.sumsKey()); err != nil && elsewhere {
		text, err = c.exchange(ctx, member, http.MethodGet, b.Bucket, b.sumsKey(), nil)
	}
	if err != nil || int64(len(text)) != int64(len(verified))+c.blocks(b)*sha256.Size {
		return nil
	}
	return &proof{scope: string(text[:len(verified)]), sums: text[len(verified):]}
}

// keepProof records that a blob was verified.
func (c *Cache) keepProof(ctx context.Context, b Blob, sums []byte) {
	text := append([]byte(b.own()), sums...)
	member, elsewhere := c.cfg.Router.Elsewhere(b.Bucket, b.sumsKey())
	if !elsewhere {
		c.put(b.Bucket, b.sumsKey(), text)
		return
	}
	if _, err := c.exchange(ctx, member, http.MethodPut, b.Bucket, b.sumsKey(), text); err != nil {
		c.cfg.Log.Debug("that a blob was verified is not recorded", "digest", b.Digest, "error", err)
	}
}

// remove removes the blocks that were kept for a blob's repository alone, here and from their owners.
func (c *Cache) remove(ctx context.Context, b Blob) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for n := range c.blocks(b) {
		group.Go(func() error {
			key := b.key(n, b.own())
			if err := c.cfg.Store.Delete(b.Bucket, key); err != nil {
				return err
			}
			member, elsewhere := c.cfg.Router.Elsewhere(b.Bucket, b.place(n))
			if !elsewhere {
				return nil
			}
			_, err := c.exchange(ctx, member, http.MethodDelete, b.Bucket, key, nil)
			return err
		})
	}
	return group.Wait()
}

// exchange sends a request for peerPath to a member and returns the body of its answer.
func (c *Cache) exchange(ctx context.Context, to router.Member, method, bucket, key string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	target := "http://peer" + serve.PeerPath + peerPath + bucket + "/" + url.PathEscape(key)
	r, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := c.cfg.Peers.Ask(r, to)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // opened for reading: closing can't lose data
	if response.StatusCode >= 300 {
		return nil, fmt.Errorf("%s answered %s", to.Name, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxSums))
}

// maxSums is the maximum length of <digest>#ok: that of a blob of 1 TiB. Longer ones are passed on and not kept.
const maxSums = 4<<20 + int64(len(verified))

// MaxSize is the length of a blob that Serve serves at most.
const MaxSize = 1 << 40

// ServePeer answers a request for peerPath. Only addresses of object caches may send it: it can remove blocks, and declare a blob
// verified.
func (c *Cache) ServePeer(w http.ResponseWriter, r *http.Request) {
	if !c.cfg.Peers.Sent(r) {
		http.Error(w, "only for other object caches", http.StatusForbidden)
		return
	}
	bucket, key, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, serve.PeerPath+peerPath), "/")
	isSums := strings.HasSuffix(key, "#ok")
	switch {
	case !ok || !c.cfg.Buckets().Buckets[bucket].Mirror:
		http.Error(w, "want a bucket of the mirrors and a key", http.StatusForbidden)
	case r.Method == http.MethodDelete:
		if err := c.cfg.Store.Delete(bucket, key); err != nil {
			http.Error(w, "not removed: the disk fails", http.StatusInsufficientStorage)
		}
	case r.Method == http.MethodPut && isSums:
		sums, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxSums))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c.put(bucket, key, sums)
	case r.Method == http.MethodGet && isSums:
		sums, err := c.get(bucket, key)
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		_, _ = w.Write(sums) // if the connection breaks, the other object cache takes the blob for one that was not verified
	default:
		http.Error(w, "not allowed", http.StatusMethodNotAllowed)
	}
}

// IsPeerPath reports whether ServePeer answers a path of the object cache's own port.
func IsPeerPath(path string) bool { return strings.HasPrefix(path, serve.PeerPath+peerPath) }
