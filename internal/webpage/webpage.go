// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package webpage is what the pages of cache servers and of the manager have in common: style, script and icon, and the headers that they
// are sent with.
package webpage

import (
	"embed"
	"net/http"
	"path"
)

//go:embed page.css page.js icon.svg
var assets embed.FS

var contentTypes = map[string]string{"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}

// Policy is the Content-Security-Policy of a page: it loads only what its own server serves, and nobody can put it into a frame.
const Policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Style returns the style sheet of all pages, for a page in one file.
func Style() string { return string(asset("page.css")) }

func asset(name string) []byte {
	text, err := assets.ReadFile(name)
	if err != nil {
		panic(err) // embedded, so it is there
	}
	return text
}

// Register adds style, script and icon to a mux, in the folder dir: "/" or a path that ends in "/".
func Register(mux *http.ServeMux, dir string) {
	for name := range contentTypes {
		mux.HandleFunc("GET "+dir+name, serveAsset)
	}
}

func serveAsset(w http.ResponseWriter, r *http.Request) {
	name := path.Base(r.URL.Path)
	w.Header().Set("Content-Type", contentTypes[name])
	w.Header().Set(noSniff, "nosniff")
	w.Header().Set("Cache-Control", "no-cache")
	_, _ = w.Write(asset(name)) // an error here means that the client left
}

const noSniff = "X-Content-Type-Options"

// NoSniff returns a handler that sets X-Content-Type-Options: nosniff, so that browsers trust the Content-Type.
func NoSniff(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(noSniff, "nosniff")
		handler.ServeHTTP(w, r)
	})
}

// Write sends the HTML of a page, with its policy.
func Write(w http.ResponseWriter, policy string, html []byte) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set(noSniff, "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write(html) // an error here means that the client left
}
