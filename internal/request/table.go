// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// Limits of the API (api/v1alpha1); a request that is valid here is valid there.
const (
	maxWarehouse = 1024
	maxColumns   = 1024
	maxColumn    = 256
	maxFilter    = 16384
	maxRef       = 256
	maxWorkers   = 1000
	maxImage     = 1024
	maxCommand   = 64
)

var catalogForm = regexp.MustCompile(`^https?://.+$`)

// arrow parses the request of a TrainJob that names a table, or whose runtime does.
func (s *spec) arrow(step Step) (*Request, field.ErrorList) {
	s.refuseFluid()
	arrow := v1alpha1.ArrowCache{Replicas: 1}
	if strings.HasPrefix(s.job.uri, folderScheme) {
		arrow.Source = s.folder()
	} else {
		arrow.Table = s.table()
		s.source(&arrow)
	}
	s.selection(&arrow)
	s.size(&arrow)
	s.errs = append(s.errs, s.job.Workers.Check(arrow.DataNodes)...)
	credentials := s.access(&arrow)
	arrow.Readiness = s.readiness()
	s.gate()
	shared, idle := s.lifetime()
	grace, readers := s.suspendGrace(), s.readers()
	if len(s.errs) > 0 {
		return nil, s.errs
	}
	arrow.Head.Template, arrow.DataNode.Template = step.template(headContainer), step.template(nodeContainer)
	request := &Request{Cache: v1alpha1.DataCacheSpec{Arrow: &arrow, Credentials: credentials}, Shared: shared}
	if arrow.Derive != nil {
		request.Dataset = arrow.Derive.Dataset
	}
	request.Cache.Access.Readers = readers
	request.Cache.Retention.SuspendGrace = grace
	if shared {
		request.Cache.Retention.IdleTTL = &metav1.Duration{Duration: idle}
		request.Cache.Retention.DeleteAfterIdle = &metav1.Duration{Duration: max(idle, deleteAfterIdle)}
		request.Name = sharedName(&arrow, readers)
	}
	return request, nil
}

// table parses the table's name from the URI, with its query, or in the KEP's form from two variables.
func (s *spec) table() string {
	schema, table := s.given["SCHEMA_NAME"], s.given["TABLE_NAME"]
	uri := s.job.uri
	if uri == "" {
		return s.tableOfVariables(schema, table)
	}
	for _, p := range []parameter{schema, table} {
		if p.own {
			s.refuse(p, "the storageUri names the table already: leave %s out", p.name)
		}
	}
	parsed, reason := parseTableURI(uri)
	if reason == "" {
		s.errs = append(s.errs, s.given.addQuery(parsed.query, queryNames)...)
		var name string
		if name, reason = tableName(parsed.schema, parsed.table); reason == "" {
			return name
		}
	}
	s.errs = append(s.errs, field.Invalid(uriPath, uri, reason))
	return ""
}

// folder parses the address of files or of a Delta table. What names another table is refused; where the runtime sets it, it is for other
// TrainJobs.
func (s *spec) folder() *v1alpha1.Source {
	data, names, isDelta := "plain files", folderNames, strings.HasPrefix(s.job.uri, deltaScheme)
	if isDelta {
		data, names = "a Delta table", deltaNames
	}
	for _, name := range []string{"SCHEMA_NAME", "TABLE_NAME", "METADATA_LOC", "CATALOG_URI", "CATALOG_WAREHOUSE", "SNAPSHOT_ID", "TRUST_MANIFESTS"} {
		p := s.given[name]
		if p.own && isDelta && name == "SNAPSHOT_ID" {
			continue // the version
		}
		if p.own {
			s.refuse(p, "has no effect on %s, which the storageUri names: leave %s out", data, name)
		}
		delete(s.given, name)
	}
	address, query, reason := parseFolderURI(s.job.uri)
	if reason != "" {
		s.errs = append(s.errs, field.Invalid(uriPath, s.job.uri, reason))
		return nil
	}
	s.errs = append(s.errs, s.given.addQuery(query, names)...)
	if isDelta {
		return &v1alpha1.Source{Delta: &v1alpha1.DeltaSource{URI: strings.TrimPrefix(address, "delta+")}}
	}
	files := &v1alpha1.FilesSource{URIs: []string{address}}
	switch p := s.given["PARTITIONS"]; p.value {
	case "", "auto":
	case "off":
		files.Partitions = v1alpha1.PartitionsIgnore
	default:
		s.refuse(p, "must be auto or off")
	}
	return &v1alpha1.Source{Files: files}
}

func (s *spec) tableOfVariables(schema, table parameter) string {
	if schema.value == "" || table.value == "" {
		s.errs = append(s.errs, field.Required(envPath, "SCHEMA_NAME and TABLE_NAME must both have a value where there is no storageUri: "+
			"set them, or the storageUri to cache://<schema>/<table>"))
		return ""
	}
	name, reason := tableName(schema.value, table.value)
	if reason != "" {
		s.refuse(table, "with SCHEMA_NAME %q: %s", schema.value, reason)
	}
	return name
}

// source parses the location of the table's metadata. If a TrainJob sets one of the two ways, the runtime's value for the other way
// is ignored.
func (s *spec) source(arrow *v1alpha1.ArrowCache) {
	location, byLocation := s.lookup("METADATA_LOC")
	catalog, byCatalog := s.lookup("CATALOG_URI")
	if byLocation && byCatalog && location.own != catalog.own {
		byLocation, byCatalog = location.own, catalog.own
	}
	switch {
	case byLocation && byCatalog:
		s.refuse(catalog, "METADATA_LOC is given as well: give the table's metadata file or the catalog that knows it, not both")
	case byLocation:
		if !uriForm.MatchString(location.value) || strings.ContainsFunc(location.value, unreadable) || runes(location.value) > maxURI {
			s.refuse(location, "must be the URI of the table's metadata file, of at most %d characters, such as s3://bucket/table/metadata/00003.metadata.json", maxURI)
		}
		arrow.MetadataLocation = &location.value
	case byCatalog:
		if !catalogForm.MatchString(catalog.value) || strings.ContainsFunc(catalog.value, unreadable) || runes(catalog.value) > maxURI {
			s.refuse(catalog, "must be the http or https URI of an Iceberg REST catalog, of at most %d characters, such as https://catalog.example.com", maxURI)
		}
		arrow.Catalog = &v1alpha1.Catalog{URI: catalog.value, Warehouse: s.warehouse()}
	default:
		s.errs = append(s.errs, field.Required(envPath, "METADATA_LOC must be set to the URI of the table's metadata file, such as s3://bucket/table/metadata/00003.metadata.json, "+
			"or CATALOG_URI to that of an Iceberg REST catalog"))
	}
}

func (s *spec) warehouse() *string {
	p, ok := s.lookup("CATALOG_WAREHOUSE")
	if !ok {
		return nil
	}
	if runes(p.value) > maxWarehouse {
		s.refuse(p, "has %d characters, at most %d are allowed", runes(p.value), maxWarehouse)
	}
	return &p.value
}

// selection parses which rows and columns to cache.
func (s *spec) selection(arrow *v1alpha1.ArrowCache) {
	if p, ok := s.lookup("SNAPSHOT_ID"); ok {
		arrow.Snapshot = s.snapshot(p)
	}
	if p, ok := s.lookup("COLUMNS"); ok {
		arrow.Columns = s.columns(p)
	}
	if p, ok := s.lookup("TRUST_MANIFESTS"); ok {
		if p.value != "true" && p.value != "false" {
			s.refuse(p, "must be true or false")
		}
		arrow.TrustManifests = p.value == "true"
	}
	if p, ok := s.lookup("PUTS"); ok {
		if p.value != "true" && p.value != "false" {
			s.refuse(p, "must be true or false")
		}
		arrow.Puts = &v1alpha1.Puts{Enabled: p.value == "true"}
	}
	if p, ok := s.lookup(deriveName); ok {
		step, reason := parseStep(p.value)
		if reason != "" {
			s.refuse(p, "%s", reason)
		}
		if puts, ok := s.lookup("PUTS"); ok && puts.own && puts.value == "false" {
			s.refuse(puts, "contradicts %s, which puts a dataset into the cache: leave one of them out", deriveName)
		}
		arrow.Puts, arrow.Derive = &v1alpha1.Puts{Enabled: true}, step
	}
	if p, ok := s.lookup(firstEpochName); ok {
		if arrow.FirstEpoch = compactEpoch(p.value); arrow.FirstEpoch == "" {
			s.refuse(p, `must be the command of an epoch as JSON with seed and global_batch, such as {"seed":7,"global_batch":256}`)
		}
	}
	p, ok := s.lookup("FILTER")
	if !ok || strings.TrimSpace(p.value) == "" {
		return
	}
	if _, err := syntax.Parse(p.value); err != nil {
		s.refuse(p, "does not parse: %v", err)
	}
	if runes(p.value) > maxFilter {
		s.refuse(p, "has %d characters, at most %d are allowed", runes(p.value), maxFilter)
	}
	arrow.Filter = &p.value
}

// parseStep parses spec.arrow.derive of a DataCache, as JSON; a non-empty string is the reason why it is invalid.
func parseStep(text string) (*v1alpha1.Derive, string) {
	step, decoder := &v1alpha1.Derive{}, json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(step)
	switch {
	case err == nil && decoder.More():
		err = errors.New("there is more behind it")
		fallthrough
	case err != nil:
		return nil, fmt.Sprintf(`must be spec.arrow.derive of a DataCache as one JSON object, such as {"dataset":"tok","image":"registry.example.com/tok:3","command":["python3","tok.py"],"workers":4}: %v`, err)
	case !datasetName.MatchString(step.Dataset):
		return nil, fmt.Sprintf("dataset is %q: it must be the name of what the step makes, 1 to 63 letters, digits, '.', '_' or '-', a letter or digit first", step.Dataset)
	case step.Image == "" || runes(step.Image) > maxImage:
		return nil, fmt.Sprintf("image is %q: it must be that of the step, with Python and kubeflow_datacache, of at most %d characters", step.Image, maxImage)
	case len(step.Command) > maxCommand || len(step.Env) > maxVariables:
		return nil, fmt.Sprintf("command has %d parts and env %d variables: at most %d and %d are allowed", len(step.Command), len(step.Env), maxCommand, maxVariables)
	case step.Workers < 0 || step.Workers > maxWorkers:
		return nil, fmt.Sprintf("workers is %d: it must be from 1 to %d", step.Workers, maxWorkers)
	}
	return step, ""
}

// compactEpoch returns the command of an epoch as one line of JSON; "" if it is none.
func compactEpoch(text string) string {
	var needed struct {
		Seed        *uint64 `json:"seed"`
		GlobalBatch *uint64 `json:"global_batch"`
	}
	if json.Unmarshal([]byte(text), &needed) != nil || needed.Seed == nil || needed.GlobalBatch == nil {
		return ""
	}
	var line bytes.Buffer
	if json.Compact(&line, []byte(text)) != nil || line.Len() > maxValue {
		return ""
	}
	return line.String()
}

// versionName is the query parameter that selects a version of a Delta table.
const versionName = "version"

// snapshot parses digits as a snapshot's ID. In the URI, where a single parameter serves all forms, it may also be a timestamp or the
// name of a branch or tag.
func (s *spec) snapshot(p parameter) *v1alpha1.Snapshot {
	id, err := strconv.ParseUint(p.value, 10, 63)
	if err == nil {
		return &v1alpha1.Snapshot{ID: new(strconv.FormatUint(id, 10))}
	}
	if p.name == "SNAPSHOT_ID" {
		s.refuse(p, "must be the number of a snapshot, from 0 to %d; a branch, a tag or a time can be given in the storageUri: ?snapshot=main", math.MaxInt64)
		return nil
	}
	if at, err := time.Parse(time.RFC3339, p.value); err == nil {
		return &v1alpha1.Snapshot{AsOf: new(at.UTC().Format(time.RFC3339Nano))}
	}
	if p.name == versionName {
		s.refuse(p, "must be the number of a version, or a time such as 2026-01-31T00:00:00Z")
		return nil
	}
	if strings.ContainsFunc(p.value, unreadable) || !utf8.ValidString(p.value) || runes(p.value) > maxRef {
		s.refuse(p, "must be the number of a snapshot, a time such as 2026-01-31T00:00:00Z, or a branch or tag of at most %d characters with no spaces", maxRef)
	}
	return &v1alpha1.Snapshot{Ref: &p.value}
}

func (s *spec) columns(p parameter) []string {
	columns, quoted, err := splitList(p.value)
	if err != nil {
		s.refuse(p, "begins with [ but is no JSON list of names (%v): write content,label or [\"content\",\"label\"]", err)
		return nil
	}
	seen := map[string]bool{}
	for i, name := range columns {
		if !quoted {
			name = strings.TrimSpace(name)
			columns[i] = name
		}
		switch {
		case name == "":
			s.refuse(p, "has an empty name at place %d: it is a list such as content,label", i+1)
		case seen[name]:
			s.refuse(p, "names %q twice", name)
		case !utf8.ValidString(name), strings.ContainsFunc(name, unicode.IsControl), runes(name) > maxColumn:
			s.refuse(p, "name %d is no column's: at most %d characters, none of them a control character", i+1, maxColumn)
		}
		seen[name] = true
	}
	if len(columns) == 0 {
		s.refuse(p, "names no column: leave it out for all")
	}
	if len(columns) > maxColumns {
		s.refuse(p, "names %d columns, at most %d are allowed: leave it out for all", len(columns), maxColumns)
	}
	return columns
}

// splitList parses a list of names: a JSON list, which can contain any name, or names separated by commas. quoted says that it was
// JSON.
func splitList(text string) (names []string, quoted bool, err error) {
	if !strings.HasPrefix(text, "[") {
		return strings.Split(text, ","), false, nil
	}
	err = json.Unmarshal([]byte(text), &names)
	return names, true, err
}

// readers returns whom the cache serves, "" if the manager chooses.
func (s *spec) readers() v1alpha1.Readers {
	p := s.given["READERS"]
	switch readers := v1alpha1.Readers(p.value); readers {
	case "", v1alpha1.ReadersKnown, v1alpha1.ReadersAnyone:
		return readers
	}
	s.refuse(p, "must be Known or Anyone")
	return ""
}
