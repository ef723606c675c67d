// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	ice "github.com/apache/iceberg-go"
	icecatalog "github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/internal/origin"
	"github.com/kubeflow/datacache/internal/redact"
)

// catalogTimeout is how long all requests to the catalog together may take.
const catalogTimeout = 3 * time.Minute

// fromCatalog gets from a REST catalog the location of a table's metadata file, and the configuration of its object store.
func fromCatalog(ctx context.Context, store *objstore.Store, src Location) (metadataFile, error) {
	ctx, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	heard := newAnswerRecorder(store, src)
	at, err := askCatalog(ctx, store, src, heard)
	if away := heard.isAway(); err != nil && away != "" {
		return metadataFile{}, awayError{fmt.Errorf("%s: %w", away, err)}
	}
	return at, err
}

func askCatalog(ctx context.Context, store *objstore.Store, src Location, heard *answerRecorder) (metadataFile, error) {
	c, err := connect(ctx, store, src, heard)
	if err != nil {
		return metadataFile{}, err
	}
	defer func() { _ = c.Close() }() // nothing was written, so nothing is lost
	t, err := c.LoadTable(ctx, src.path())
	if errors.Is(err, icecatalog.ErrNoSuchTable) {
		return metadataFile{}, fmt.Errorf("%w: check namespace, table and warehouse %q", err, src.Warehouse)
	}
	if err != nil {
		return metadataFile{}, fmt.Errorf("load the table: %w", err)
	}
	if t.MetadataLocation() == "" {
		return metadataFile{}, errors.New("the catalog names no metadata file of the table")
	}
	reach, err := c.Store(t.MetadataLocation())
	return metadataFile{metadata: t.MetadataLocation(), store: reach}, err
}

// Catalog is a connection to a REST catalog. The caller closes it.
type Catalog struct {
	*rest.Catalog
	store *objstore.Store
	heard *answerRecorder
}

// Connect connects to the catalog of a location.
func Connect(ctx context.Context, store *objstore.Store, src Location) (*Catalog, error) {
	return connect(ctx, store, src, newAnswerRecorder(store, src))
}

func connect(ctx context.Context, store *objstore.Store, src Location, heard *answerRecorder) (*Catalog, error) {
	options, err := catalogOptions(src, heard)
	if err != nil {
		return nil, err
	}
	c, err := rest.NewCatalog(ctx, "rest", src.CatalogURI, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to the catalog: %w: check its URI and credentials", err)
	}
	return &Catalog{Catalog: c, store: store, heard: heard}, nil
}

// Store returns the object store of the table that was loaded last, as the catalog configures it for an object of the table.
func (c *Catalog) Store(object string) (*objstore.Store, error) {
	properties := c.heard.properties(object)
	err := c.heard.keepCredentials(properties)
	var reach *objstore.Store
	if err == nil {
		reach, err = withProperties(c.store, properties)
	}
	if err != nil {
		return nil, fmt.Errorf("object store as the catalog describes it: %w", err)
	}
	return reach, nil
}

// catalogOptions converts catalog properties to options of iceberg-go's client.
func catalogOptions(src Location, heard *answerRecorder) ([]rest.Option, error) {
	var options []rest.Option
	if src.Warehouse != "" {
		options = append(options, rest.WithWarehouseLocation(src.Warehouse))
	}
	headers, others := map[string]string{}, ice.Properties{}
	for name, value := range src.Properties {
		if header, ok := strings.CutPrefix(name, "header."); ok {
			headers[header] = value
			continue
		}
		switch name {
		case "token":
			options = append(options, rest.WithOAuthToken(value))
		case "credential":
			options = append(options, rest.WithCredential(value))
		case "scope":
			options = append(options, rest.WithScope(value))
		case "audience":
			options = append(options, rest.WithAudience(value))
		case "resource":
			options = append(options, rest.WithResource(value))
		case "prefix":
			options = append(options, rest.WithPrefix(value))
		case "oauth2-server-uri":
			u, err := url.Parse(value)
			if err != nil {
				return nil, fmt.Errorf("property %s: %w", name, err)
			}
			options = append(options, rest.WithAuthURI(u))
		case "rest.tls.skip-verify":
			heard.transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: value == "true"} // the property's name makes clear that the user chose this
		case "rest.sigv4-enabled", "rest.signing-region", "rest.signing-name": // the user chose it by name
		default:
			others[name] = value
		}
	}
	if src.Properties["rest.sigv4-enabled"] == "true" {
		options = append(options, rest.WithSigV4RegionSvc(src.Properties["rest.signing-region"], src.Properties["rest.signing-name"]))
	}
	return append(options, rest.WithHeaders(headers), rest.WithAdditionalProps(others), rest.WithCustomTransport(heard)), nil
}

// withProperties returns store, or one configured by those of the properties that concern object stores, if any.
func withProperties(store *objstore.Store, properties map[string]string) (*objstore.Store, error) {
	cfg, err := objstore.Config{}.WithProperties(properties)
	if err != nil {
		return nil, err
	}
	if reflect.DeepEqual(cfg, objstore.Config{}) {
		return store, nil
	}
	return store.With(properties)
}

// answerRecorder is an http.RoundTripper that records configuration and credentials for the object store in a catalog's responses,
// which iceberg-go's client does not expose (Iceberg REST specification, CatalogConfig, LoadTableResult). Its requests are attempts of
// the store, and go only to servers that the user named: neither a redirect nor the catalog's configuration adds another one.
type answerRecorder struct {
	store     *objstore.Store
	transport *http.Transport
	servers   []*url.URL // the catalog, and its token server if the user named one
	client    map[string]string

	mu          sync.Mutex
	defaults    map[string]string
	overrides   map[string]string
	table       map[string]string
	credentials []credential
	away        string // set if the last request got no response, or one that asks for a retry
}

type credential struct {
	Prefix string            `json:"prefix"`
	Config map[string]string `json:"config"`
}

func newAnswerRecorder(store *objstore.Store, src Location) *answerRecorder {
	l := &answerRecorder{store: store, client: src.Properties, transport: &http.Transport{
		Proxy:             http.ProxyFromEnvironment,
		DialContext:       (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		ForceAttemptHTTP2: true,
	}}
	for _, named := range []string{src.CatalogURI, src.Properties["uri"], src.Properties["oauth2-server-uri"], src.Properties["rest.authorization-url"]} {
		if u, err := url.Parse(named); err == nil && u.Host != "" { // iceberg-go reports the others
			l.servers = append(l.servers, u)
		}
	}
	return l
}

// RoundTrip sends a request and records a successful response.
func (l *answerRecorder) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := l.exchange(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = ""
	if err != nil {
		if objstore.BrokenConnection(err) {
			l.away = "the catalog does not answer"
		}
		return nil, err
	}
	switch answer.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		l.away = "the catalog answered " + answer.Status
	}
	return answer, nil
}

func (l *answerRecorder) isAway() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.away
}

func (l *answerRecorder) exchange(r *http.Request) (answer *http.Response, err error) {
	var body []byte
	err = l.store.Attempt(r.Context(), func(ctx context.Context, alive func(n int)) error {
		if answer, err = (origin.Transport{Base: l.transport, Only: l.servers}).RoundTrip(r.WithContext(ctx)); err != nil {
			return err
		}
		defer answer.Body.Close() // it was read to its end or is abandoned
		if body, err = expand(watched{answer.Body, alive}, maxMetadata); err == nil {
			err = checkNesting(body)
		}
		if err != nil {
			return fmt.Errorf("the catalog's answer: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	if answer.StatusCode == http.StatusOK && r.Method == http.MethodGet {
		l.record(body)
	}
	return answer, nil
}

// watched calls alive with the number of bytes of each read.
type watched struct {
	io.Reader
	alive func(n int)
}

func (w watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if n > 0 {
		w.alive(n)
	}
	return n, err
}

// record stores the relevant parts of a response. Errors are ignored, since iceberg-go's client parses the same body and reports
// them.
func (l *answerRecorder) record(body []byte) {
	var a struct {
		Defaults    map[string]string `json:"defaults"`
		Overrides   map[string]string `json:"overrides"`
		Config      map[string]string `json:"config"`
		Credentials []credential      `json:"storage-credentials"`
	}
	if json.Unmarshal(body, &a) != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.Defaults != nil || a.Overrides != nil {
		l.defaults, l.overrides = a.Defaults, a.Overrides
	}
	vended := []map[string]string{a.Defaults, a.Overrides, a.Config}
	for _, c := range a.Credentials {
		vended = append(vended, c.Config)
	}
	for _, config := range vended {
		for name, value := range config {
			redact.Property(name, value)
		}
	}
	if a.Config != nil || a.Credentials != nil {
		l.table, l.credentials = a.Config, a.Credentials
	}
}

// properties merges what was recorded; more specific properties override more general ones. Among several credentials, the one with
// the longest prefix of the metadata file's location is used.
func (l *answerRecorder) properties(metadata string) map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	merged := map[string]string{}
	for _, layer := range []map[string]string{l.defaults, l.client, l.overrides, l.table} {
		maps.Copy(merged, layer)
	}
	var best *credential
	for i, c := range l.credentials {
		if strings.HasPrefix(metadata, c.Prefix) && (best == nil || len(c.Prefix) > len(best.Prefix)) {
			best = &l.credentials[i]
		}
	}
	if best != nil {
		maps.Copy(merged, best.Config)
	}
	return merged
}

// endpoints are the properties that name an object store to which tokens are sent as they are, each with those of which a catalog must give one
// together with it, and which are then used. Azure has none, since which of its credentials are used depends on the account. Amazon's endpoint needs
// none: its requests carry signatures, which are of no use at another host.
var endpoints = map[string][]string{
	"gcs.service.host": {"gcs.oauth2.token", "gcs.no-auth"},
	"gcs.endpoint":     {"gcs.oauth2.token", "gcs.no-auth"},
	"adls.endpoint":    nil,
}

// keepCredentials returns an error if the catalog names an object store that would get this server's own credentials.
func (l *answerRecorder) keepCredentials(properties map[string]string) error {
	for name, given := range endpoints {
		if properties[name] == "" || properties[name] == l.client[name] {
			continue
		}
		gives := func(property string) bool {
			return properties[property] != "" && properties[property] != l.client[property]
		}
		if slices.ContainsFunc(given, gives) {
			continue
		}
		fix := "set it among the catalog's properties here"
		if len(given) > 0 {
			fix += ", or have the catalog give " + given[0] + " too"
		}
		return fmt.Errorf("property %s = %q: the catalog names a server, %w of this one: %s", name, properties[name], origin.ErrElsewhere, fix)
	}
	return nil
}
