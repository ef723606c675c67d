// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// TestObjectCache installs the DaemonSet as described in docs/object-cache.md, checks who may use it, and reads a table through it.
func TestObjectCache(t *testing.T) {
	t.Parallel()
	own, other := namespace(t), namespace(t)
	objects, registry := installAll(t, own)
	if registry != nil {
		t.Run("images", func(t *testing.T) { pullImages(t, objects, registry, own, other) })
		t.Run("hub", func(t *testing.T) { readHub(t, own, other) })
		t.Run("Envoy", func(t *testing.T) { throughEnvoy(t, objects, own) })
		t.Run("the nearest", func(t *testing.T) { reachNearest(t, objects, registry, own) })
		objects.whole(t)
	}
	pod := holder(t, own, "client")
	bound, others := tokenOf(t, own, objectsAudience, pod), tokenOf(t, other, objectsAudience, nil)
	for _, target := range []string{"team/there", "open/there"} {
		if got := ask(t, objectsService, "PUT", target, bound); got.Status != http.StatusCreated {
			t.Fatalf("PUT %s: %+v", target, got)
		}
	}
	t.Run("nobody learns what there is", func(t *testing.T) {
		whoMay(t, objects, []visit{ // each is a hit or a miss, and is forwarded to the owner
			{"there", "GET", "team/there", bound, 200},
			{"not there", "HEAD", "team/none", bound, 404},
		})
		learnNothing(t, objects, others)
	})
	t.Run("who may", func(t *testing.T) {
		t.Parallel()
		whoMay(t, objects, []visit{
			{"bound to nothing", "GET", "team/there", tokenOf(t, own, objectsAudience, nil), 200},
			{"no such bucket", "GET", "none/there", bound, 403},
			{"another namespace, private", "GET", "team/there", others, 403},
			{"another namespace, private, write", "PUT", "team/there", others, 403},
			{"another namespace, public", "GET", "open/there", others, 200},
			{"another namespace, public, write", "PUT", "open/others", others, 201},
			{"another audience", "GET", "team/there", tokenOf(t, own, "someone-else", pod), 401},
			{"the API server's audience", "GET", "open/there", tokenOf(t, own, "https://kubernetes.default.svc", pod), 401},
			{"tampered with", "GET", "team/there", bound[:len(bound)-20] + "AAAAAAAAAAAAAAAAAAAA", 401},
			{"no token at all", "GET", "open/there", "not-a-token", 401},
			{"none", "GET", "open/there", "", 401},
		})
	})
	t.Run("expiry", func(t *testing.T) {
		t.Parallel()
		whoMay(t, objects, []visit{
			{"with another end", "GET", "team/there", endingAt(t, bound, time.Now().Add(time.Hour)), 200},
			{"expired", "GET", "team/there", endingAt(t, bound, time.Now().Add(-time.Hour)), 401},
		})
	})
	t.Run("a token expires in use", func(t *testing.T) {
		t.Parallel()
		end := time.Now().Add(30 * time.Second)
		dies(t, objects, endingAt(t, bound, end), func() time.Time { return end })
	})
	t.Run("a token dies with its pod", func(t *testing.T) {
		t.Parallel()
		pod := holder(t, own, "goes")
		dies(t, objects, tokenOf(t, own, objectsAudience, pod), func() time.Time {
			deleteNow(t, pod)
			return time.Now()
		})
	})
	t.Run("a table", func(t *testing.T) {
		t.Parallel()
		secondLoad(t, own)
	})
}

// installAll installs the object cache, on hack/cluster with everything that may stand around it.
func installAll(t *testing.T, team string) (*objectCache, *origin) {
	t.Helper()
	ours := overlay{team: team}
	if cluster.folder == "" {
		notTried("TestObjectCache: images through the mirror, Envoy, and who is nearest, which want the nodes and images of hack/cluster")
		return installObjects(t, ours), nil
	}
	registry := startRegistry(t, team)
	ours.components = []string{"object-cache-mirrors", "object-cache-images", "envoy"}
	ours.registries = map[string]string{registry.Host: registry.URL}
	ours.hub, ours.hubToken = startHub(t).URL, hubToken
	return installObjects(t, ours), registry
}

// visit is a request and the response that every address must return.
type visit struct {
	name, method, target, token string
	want                        int
}

// whoMay sends each request to the Service and to every object cache, so that the key's owner gets it directly and others forward it.
func whoMay(t *testing.T, objects *objectCache, visits []visit) {
	t.Helper()
	for _, v := range visits {
		for _, url := range objects.urls {
			got := ask(t, url, v.method, v.target, v.token)
			if got.Status != v.want {
				t.Errorf("%s: %s %s at %s: %d %q, want %d", v.name, v.method, v.target, url, got.Status, got.Body, v.want)
			}
			if challenge := got.Header.Get("Www-Authenticate"); (challenge != "") != (v.want == http.StatusUnauthorized) {
				t.Errorf("%s: status %d comes with the challenge %q", v.name, got.Status, challenge)
			}
		}
	}
	if podMetric(t, objectsNamespace, objects.pods, "datacache_objectcache_forwards_total") == 0 {
		t.Error("no request was sent on: the test shows nothing of that")
	}
}

// learnNothing checks that a client without access to a bucket gets the same response from every object cache, whatever the bucket
// contains and even if it does not exist; and that no lookup or forwarding takes place, so that timing reveals nothing either.
func learnNothing(t *testing.T, objects *objectCache, others string) {
	t.Helper()
	work := func() (counts [3]float64) {
		for i, name := range []string{"hits_total", "misses_total", "forwards_total"} {
			counts[i] = podMetric(t, objectsNamespace, objects.pods, "datacache_objectcache_"+name)
		}
		return counts
	}
	before := work()
	for _, token := range []string{others, "not-a-token"} {
		for _, method := range []string{"HEAD", "GET", "PUT", "DELETE"} {
			for _, headers := range [][]string{nil, {"Datacache-Hop"}} { // clients may set this header
				var first reply
				for i, target := range []string{"team/there", "team/none", "none/there"} {
					for j, url := range objects.urls {
						got := ask(t, url, method, target, token, headers...)
						got.Body = strings.ReplaceAll(got.Body, `"none"`, `"team"`) // the response quotes the request
						if i == 0 && j == 0 {
							first = got
						}
						if diff := cmp.Diff(first, got); diff != "" {
							t.Errorf("%s %s at %s is answered otherwise than team/there at %s:\n%s", method, target, url, objects.urls[0], diff)
						}
					}
				}
				if first.Status != http.StatusForbidden && first.Status != http.StatusUnauthorized {
					t.Errorf("%s team/there: %d, want it refused", method, first.Status)
				}
			}
		}
	}
	if diff := cmp.Diff(before, work()); diff != "" {
		t.Errorf("refused requests changed hits, misses or forwards:\n%s", diff)
	}
}

// dies checks that a token in use is rejected at every address soon after its expiry. The object cache caches the API server's answer
// for a minute, and for ten seconds if it is negative; the API server accepts a token for a minute after its expiry.
func dies(t *testing.T, objects *objectCache, token string, end func() time.Time) {
	t.Helper()
	const soon = 3 * time.Minute
	for _, url := range objects.urls {
		if got := ask(t, url, "GET", "team/there", token); got.Status != http.StatusOK {
			t.Fatalf("before its end: %+v", got)
		}
	}
	ended := end()
	for _, url := range objects.urls {
		await(t, "the token to be refused at "+url, func() error {
			asked := time.Now()
			got := ask(t, url, "GET", "team/there", token)
			if got.Status == http.StatusUnauthorized {
				return nil
			}
			if asked.After(ended.Add(soon)) {
				t.Fatalf("%s after its end it still gets %d", asked.Sub(ended), got.Status)
			}
			return fmt.Errorf("it gets %d", got.Status)
		})
		t.Logf("refused %.0f s after its end", time.Since(ended).Seconds())
	}
}

// reply is a response without its date.
type reply struct {
	Status int
	Header http.Header
	Body   string
}

// ask sends a request for an object; each of the headers gets the value 1. It retries if the token could not be reviewed or the key's
// node did not respond, as may happen on a busy machine.
func ask(t *testing.T, url, method, target, token string, headers ...string) reply {
	t.Helper()
	var got reply
	kubetest.EventuallyLong(t, deadline, method+" "+target+" at "+url, func() (err error) {
		got, err = try(t, url, method, target, token, headers...)
		return err
	})
	return got
}

func try(t *testing.T, url, method, target, token string, headers ...string) (reply, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var body io.Reader
	if method == http.MethodPut {
		body = strings.NewReader("an object")
	}
	request, err := http.NewRequestWithContext(ctx, method, url+"/v1/objects/"+target, body)
	if err != nil {
		return reply{}, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	for _, name := range headers {
		request.Header.Set(name, "1")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return reply{}, err
	}
	if response.Header.Get("Retry-After") != "" {
		return reply{}, fmt.Errorf("%s: %s", response.Status, text)
	}
	response.Header.Del("Date")
	return reply{response.StatusCode, response.Header, string(text)}, nil
}
