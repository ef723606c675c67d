// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubeflow/datacache/internal/reference"
)

// Our schemes of spec.initializer.dataset.storageUri. Like the Kubeflow SDK we only accept lower case.
const (
	tableScheme     = "cache://"
	folderScheme    = "cache+"       // followed by the address of Parquet files
	deltaScheme     = "cache+delta+" // followed by the folder of a Delta table
	referenceScheme = reference.Scheme
)

const (
	tableForm     = "must be cache://<schema>/<table>, with the levels of a schema joined by dots and, where wanted, ?columns=a,b&filter=...&snapshot=..."
	folderForm    = "must be cache+<address>, such as cache+s3://bucket/train/ or cache+gs://bucket/*/part-*.parquet, with no spaces and, where wanted, ?columns=a,b&filter=...&partitions=off&list=1; addresses begin with s3, s3a, gs, abfs, abfss, wasb, wasbs or file; a data set on a Hugging Face hub is cache+hf://owner/name[@revision][?config=...&split=...], a Delta table cache+delta+s3://bucket/table[?version=...]"
	referenceForm = "must be datacache://<name>, datacache://<namespace>/<name> or datacache://<namespace>/<name>/<dataset>; several are separated by commas"
)

// fluidScheme is the prefix of a storageUri that names files for Fluid: what follows is the location as Fluid knows it.
const fluidScheme = "fluid+"

const fluidForm = "must be fluid+<scheme>://<location>, such as fluid+s3://bucket/folder, with no spaces"

// maxURI is the maximum length of a URI in characters.
const maxURI = 2048

// uriForm matches URIs of any scheme.
var uriForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://.+$`)

// maxTable is the maximum length of DataCache.spec.arrow.table in characters.
const maxTable = 1024

// tableURI is a parsed cache:// URI.
type tableURI struct {
	schema, table string
	query         url.Values
}

// parseTableURI parses a URI, or returns the reason why it is invalid. net/url is not used, since it rejects escapes in the schema,
// which is in the position of a host.
func parseTableURI(uri string) (parsed tableURI, reason string) {
	rest, rawQuery, _ := strings.Cut(strings.TrimPrefix(uri, tableScheme), "?")
	if strings.Contains(uri, "#") {
		return parsed, "must not contain #: write %23 for it"
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 2 {
		return parsed, tableForm
	}
	for i, into := range []*string{&parsed.schema, &parsed.table} {
		part, err := url.PathUnescape(parts[i])
		if err != nil {
			return parsed, fmt.Sprintf("has a broken escape in %q: %% is followed by two hexadecimal digits, and %%25 stands for itself", parts[i])
		}
		*into = part
	}
	parsed.query, reason = parseQuery(rawQuery)
	return parsed, reason
}

func parseQuery(raw string) (query url.Values, reason string) {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return nil, fmt.Sprintf("has a query that can't be read (%v): in it, %%25 stands for %%, %%26 for &, %%2B for + and %%3B for ;", err)
	}
	return query, ""
}

// folderAddress matches the address of a cache+ URI.
var folderAddress = regexp.MustCompile(`^(delta[+])?(s3|s3a|s3n|gs|abfs|abfss|wasb|wasbs|file|hf)://.`)

// parseFolderURI parses a cache+ URI, or returns the reason why it is invalid. The address is not unescaped: escapes are part of the names of
// objects. A question mark begins the query, so it can't be in a glob.
func parseFolderURI(uri string) (address string, query url.Values, reason string) {
	address, rawQuery, _ := strings.Cut(strings.TrimPrefix(uri, folderScheme), "?")
	if !folderAddress.MatchString(address) || strings.ContainsFunc(address, unreadable) || runes(address) > maxURI {
		return "", nil, folderForm
	}
	query, reason = parseQuery(rawQuery)
	isHub := strings.HasPrefix(address, hubScheme)
	if query.Get("list") == "1" && !isHub && !strings.HasPrefix(uri, deltaScheme) {
		delete(query, "list")
		address += "?list=1"
	}
	if isHub {
		if part := partOfDataset(query); part != "" {
			address += "?" + part
		}
	}
	return address, query, reason
}

// hubScheme is the beginning of the addresses of data sets on a Hugging Face hub.
const hubScheme = "hf://"

// partOfDataset takes what names a part of a data set out of a query.
func partOfDataset(query url.Values) string {
	part := url.Values{}
	for _, name := range []string{"config", "split"} {
		if values, ok := query[name]; ok {
			part[name] = values
			delete(query, name)
		}
	}
	return part.Encode()
}

// tableName joins a schema and a table to DataCache.spec.arrow.table, or returns the reason why they are invalid.
func tableName(schema, table string) (name, reason string) {
	for level := range strings.SplitSeq(schema, ".") {
		if reason := badName(level); reason != "" {
			return "", fmt.Sprintf("the schema %q %s; %s", schema, reason, tableForm)
		}
	}
	if reason := badName(table); reason != "" {
		return "", fmt.Sprintf("the table %q %s; %s", table, reason, tableForm)
	}
	if strings.Contains(table, ".") {
		return "", fmt.Sprintf("the table %q has a dot: the levels of a schema stand before the /", table)
	}
	name = schema + "." + table
	if length := utf8.RuneCountInString(name); length > maxTable {
		return "", fmt.Sprintf("schema and table have %d characters together, at most %d are allowed", length, maxTable)
	}
	return name, ""
}

// badName returns the reason why a level of a schema or the name of a table is invalid, or "".
func badName(name string) string {
	switch {
	case name == "":
		return "has an empty name"
	case !utf8.ValidString(name):
		return "is not UTF-8"
	case strings.Contains(name, "/"):
		return "has a /, which no name may have"
	case strings.ContainsFunc(name, unreadable):
		return "has a space or a control character"
	}
	return ""
}

// unreadable reports whether people can't see the character.
func unreadable(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

// Reference is a DataCache that a TrainJob names.
type Reference struct {
	// Name is <name>, <namespace>/<name> or <namespace>/<name>/<dataset>, as the TrainJob writes it.
	Name string
	// Key is the DataCache. Its namespace is the TrainJob's unless the name has another.
	Key types.NamespacedName
	// Dataset is the one that the TrainJob reads of those that clients have put into it; "" for its table.
	Dataset string
}

// datasetName is the form of names of datasets, those of cacheserver/protocol.ValidDataset.
var datasetName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// parseReferences parses a datacache:// URI, or returns the reason why it is invalid. Namespaces default to the given one.
func parseReferences(uri, namespace string) (references []Reference, reason string) {
	if strings.ContainsAny(uri, "?#") {
		return nil, "must have no query: the DataCache says what it caches; " + referenceForm
	}
	names := reference.Names(uri)
	if len(names) > reference.Max {
		return nil, fmt.Sprintf("names %d DataCaches, at most %d are allowed: leave some out", len(names), reference.Max)
	}
	for i, name := range names {
		key, reason := parseReference(name, namespace)
		if reason == "" && slices.ContainsFunc(references, func(r Reference) bool { return r.Key == key }) {
			reason = fmt.Sprintf("the DataCache %s is named twice: name it once", key)
		}
		switch {
		case reason == "":
			references = append(references, Reference{Name: name, Key: key, Dataset: reference.Dataset(name)})
		case len(names) == 1:
			return nil, reason
		default:
			return nil, fmt.Sprintf("name %d of %d, %q: %s", i+1, len(names), name, reason)
		}
	}
	return references, ""
}

// parseReference parses one name of a datacache:// URI.
func parseReference(name, namespace string) (key types.NamespacedName, reason string) {
	parts := strings.Split(name, "/")
	if len(parts) > 3 {
		return key, referenceForm
	}
	if len(parts) == 3 {
		if !datasetName.MatchString(parts[2]) {
			return key, fmt.Sprintf("the dataset %q is none: 1 to 63 letters, digits, '.', '_' or '-', a letter or digit first; %s", parts[2], referenceForm)
		}
		parts = parts[:2]
	}
	key = types.NamespacedName{Namespace: namespace, Name: parts[len(parts)-1]}
	if len(parts) == 2 {
		key.Namespace = parts[0]
		if wrong := validation.IsDNS1123Label(key.Namespace); wrong != nil {
			return key, fmt.Sprintf("the namespace %q is none: %s; %s", key.Namespace, wrong[0], referenceForm)
		}
	}
	if wrong := validation.IsDNS1035Label(key.Name); wrong != nil {
		return key, fmt.Sprintf("the name %q is no DataCache's: %s; %s", key.Name, wrong[0], referenceForm)
	}
	return key, ""
}

func runes(text string) int { return utf8.RuneCountInString(text) }
