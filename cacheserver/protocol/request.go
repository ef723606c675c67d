// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/pack"
	"github.com/kubeflow/datacache/internal/identity"
)

// Version is the version of the wire contract that descriptors and metadata carry in "v".
const Version = 1

// MaxBytes bounds a descriptor and a ticket; larger ones are rejected without being parsed.
const MaxBytes = 64 << 10

// Kind is the kind of a request.
type Kind string

// The kinds of request of wire contract v1.
const (
	Shard Kind = "shard" // a contiguous share of the rows, in row order
	Epoch Kind = "epoch" // a rank's share of an epoch, in sequence order
	Take  Kind = "take"  // random access over DoExchange
	Mix   Kind = "mix"   // the rows that one part contributes to a rank's share of a mixture's epoch
	Pack  Kind = "pack"  // which rows are in the packs of a rank; the head answers itself
)

const kinds = `"shard", "epoch", "take", "mix" or "pack"`

// Request is a valid Flight descriptor.
type Request struct {
	Kind    Kind
	Index   uint64       // Shard: index of the share
	Total   uint64       // Shard: number of shares
	Epoch   epoch.Epoch  // Epoch, Pack: all fields but Rows, which the server knows; Mix: all fields
	Share   epoch.Share  // Epoch, Mix, Pack: the rank and worker that read, and the step to start at
	Mix     *epoch.Mix   // Mix: the parts and their weights; otherwise nil
	Packs   *Packs       // Pack: otherwise nil; Epoch has global batches of one row
	Columns []string     // nil selects all
	Filter  string       // a WHERE clause, as given; "" selects all rows of the cache
	Split   *epoch.Split // the part of the filtered rows to use; nil: all of them
	Narrow  bool         // send integers in the shortest types that the table's values fit in
	Job     string       // the job that reads, see ValidJob; "" if the request names none
	Claimed string       // the job that the request names, where Job is the reader's
	Early   bool         // whether the answer may come while the cache loads
	Dataset string       // a dataset that was put, NAME or NAME@FINGERPRINT; "" is the cache's table

	Reader *identity.Identity // who asks; nil: that is not known
}

// By returns the request as one of a reader, nil if that is not known. The reader's job takes the place of the one that the request names.
func (r Request) By(who *identity.Identity) Request {
	if who != nil {
		r.Reader, r.Claimed, r.Job = who, r.Job, who.Name()
	}
	return r
}

// ParseDescriptor parses a PATH or CMD descriptor. Every error is an INVALID_ARGUMENT status that names the element or field, its
// value and the valid values.
func ParseDescriptor(d *flight.FlightDescriptor) (Request, error) {
	var (
		r   Request
		err error
	)
	switch d.GetType() {
	case flight.DescriptorPATH:
		r, err = parsePath(d.GetPath())
	case flight.DescriptorCMD:
		r, err = parseCommand(d.GetCmd())
	default:
		err = errors.New("descriptor: want a PATH of [index, total] or a CMD of JSON")
	}
	if err != nil {
		return Request{}, status.Error(codes.InvalidArgument, err.Error())
	}
	return r, nil
}

func parsePath(path []string) (Request, error) {
	if len(path) != 2 {
		return Request{}, fmt.Errorf("path: want two elements [index, total], got %d", len(path))
	}
	index, err := parseElement("index", path[0])
	if err != nil {
		return Request{}, err
	}
	total, err := parseElement("total", path[1])
	if err != nil {
		return Request{}, err
	}
	return shard(index, total)
}

// parseElement parses one element of a path. It must consist of digits only: no sign, no space.
func parseElement(name, text string) (uint64, error) {
	if len(text) > MaxBytes {
		return 0, fmt.Errorf("path element %s: %d bytes, want at most %d", name, len(text), MaxBytes)
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("path element %s: %.64q is not a decimal number in [0, 2^63)", name, text)
	}
	return n, nil
}

func shard(index, total uint64) (Request, error) {
	if total < 1 || total >= 1<<63 {
		return Request{}, fmt.Errorf("total: %d, want a number in [1, 2^63)", total)
	}
	if index >= total {
		return Request{}, fmt.Errorf("index: %d, want a number below total, which is %d", index, total)
	}
	return Request{Kind: Shard, Index: index, Total: total}, nil
}

// common and sequence list fields of commands in the order in which messages name them.
var (
	common   = []string{"v", "kind", "columns", "filter", "split", "narrow", "job", "early", "dataset"}
	sequence = []string{"seed", "epoch", "shuffle", "clump", "window", "global_batch", "tail", "rank", "world", "worker", "workers", "start_step"}
)

// fieldsOf has the fields of commands of a kind.
var fieldsOf = map[Kind][]string{
	Shard: slices.Concat(common, []string{"index", "total"}),
	Epoch: slices.Concat(common, sequence, []string{"order"}),
	Take:  common,
	Mix:   slices.Concat(common, sequence, []string{"part", "parts", "phases", "unit", "length"}),
	Pack: {"v", "kind", "filter", "split", "job", "seed", "epoch", "shuffle", "clump", "rank", "world",
		"column", "tokens", "packs", "window", "multiple", "quadratic", "long", "position", "step", "steps"},
}

// needsOf has the fields that must not be missing.
var needsOf = map[Kind][]string{
	Shard: {"index", "total"},
	Epoch: {"seed", "epoch", "shuffle", "global_batch", "tail", "rank", "world"},
	Mix:   {"part", "parts", "unit", "length", "seed", "epoch", "global_batch", "tail", "rank", "world"},
	Pack:  {"column", "tokens", "packs", "seed", "epoch", "rank", "world"},
}

// body has the fields of a command of any kind.
type body struct {
	Columns []string                   `json:"columns"`
	Filter  string                     `json:"filter"`
	Split   map[string]json.RawMessage `json:"split"`
	Narrow  bool                       `json:"narrow"`
	Job     *string                    `json:"job"`
	Early   bool                       `json:"early"`
	Dataset *string                    `json:"dataset"`

	Index uint64 `json:"index"`
	Total uint64 `json:"total"`

	Seed        uint64     `json:"seed"`
	Epoch       uint64     `json:"epoch"`
	Shuffle     bool       `json:"shuffle"`
	Clump       uint64     `json:"clump"`
	Window      uint64     `json:"window"` // of kind Pack: steps
	GlobalBatch uint64     `json:"global_batch"`
	Tail        epoch.Tail `json:"tail"`
	Rank        uint64     `json:"rank"`
	World       uint64     `json:"world"`
	Worker      uint64     `json:"worker"`
	Workers     uint64     `json:"workers"`
	StartStep   uint64     `json:"start_step"`
	Order       uint64     `json:"order"`

	Part   uint64                       `json:"part"`
	Parts  []map[string]json.RawMessage `json:"parts"`
	Phases []uint64                     `json:"phases"`
	Unit   epoch.Unit                   `json:"unit"`
	Length uint64                       `json:"length"`

	Column    string    `json:"column"`
	Tokens    uint64    `json:"tokens"`
	Packs     uint64    `json:"packs"`
	Multiple  uint64    `json:"multiple"`
	Quadratic uint64    `json:"quadratic"`
	Long      pack.Long `json:"long"`
	Position  uint64    `json:"position"`
	Step      uint64    `json:"step"`
	Steps     uint64    `json:"steps"`
}

func parseCommand(cmd []byte) (Request, error) {
	if len(cmd) > MaxBytes {
		return Request{}, fmt.Errorf("command: %d bytes, want at most %d", len(cmd), MaxBytes)
	}
	var head struct {
		V    *int  `json:"v"`
		Kind *Kind `json:"kind"`
	}
	if err := json.Unmarshal(cmd, &head); err != nil {
		return Request{}, commandError(err)
	}
	if head.V == nil || *head.V != Version {
		return Request{}, fmt.Errorf("command: v: want %d, the version of the wire contract that this server speaks", Version)
	}
	if head.Kind == nil {
		return Request{}, errors.New("command: kind: missing, want " + kinds)
	}
	kind := *head.Kind
	if fieldsOf[kind] == nil {
		return Request{}, fmt.Errorf("command: kind: %.64q, want "+kinds, kind)
	}
	given, err := checkFields(cmd, kind)
	if err != nil {
		return Request{}, err
	}
	c := body{Shuffle: true, Clump: 1, Workers: 1, Order: 1, Multiple: 1, Quadratic: pack.Quadratic, Long: pack.Refuse, Steps: 1}
	if err := json.Unmarshal(cmd, &c); err != nil {
		return Request{}, commandError(err)
	}
	for _, name := range needsOf[kind] {
		if text, ok := given[name]; !ok || string(text) == "null" {
			return Request{}, fmt.Errorf("command: %s: missing", name)
		}
	}
	r, err := c.request(kind)
	if err != nil {
		return Request{}, fmt.Errorf("command: %w", err)
	}
	return r, nil
}

// checkFields returns the fields of a command. It rejects those that the kind does not have. Names must match exactly: encoding/json would
// accept "Index" for "index".
func checkFields(cmd []byte, kind Kind) (given map[string]json.RawMessage, err error) {
	if err := json.Unmarshal(cmd, &given); err != nil {
		return nil, commandError(err)
	}
	fields := fieldsOf[kind]
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(fields, name) {
			return nil, fmt.Errorf("command: %.64q is no field of kind %q, which has %s", name, kind, strings.Join(fields, ", "))
		}
	}
	return given, nil
}

// request checks the values of the fields.
func (c *body) request(kind Kind) (r Request, err error) {
	if kind == Shard {
		if r, err = shard(c.Index, c.Total); err != nil {
			return Request{}, err
		}
	}
	r.Kind, r.Columns, r.Narrow, r.Early = kind, c.Columns, c.Narrow, c.Early
	if err := checkColumns(c.Columns); err != nil {
		return Request{}, err
	}
	if strings.TrimSpace(c.Filter) != "" {
		r.Filter = c.Filter
	}
	if c.Split != nil {
		if r.Split, err = parseSplit(c.Split); err != nil {
			return Request{}, err
		}
	}
	if kind == Epoch || kind == Mix {
		if c.Order != 1 && c.Order != 2 {
			return Request{}, fmt.Errorf("order = %d: want 1 or 2, the versions of the order that this server knows", c.Order)
		}
		r.Epoch = epoch.Epoch{Seed: c.Seed, Number: c.Epoch, Shuffle: c.Shuffle, Clump: c.Clump, Window: c.Window, GlobalBatch: c.GlobalBatch, Tail: c.Tail, Lanes: c.Order == 2}
		r.Share = epoch.Share{Rank: c.Rank, World: c.World, Worker: c.Worker, Workers: c.Workers, StartStep: c.StartStep}
		if err := errors.Join(r.Epoch.Validate(), r.Share.Validate()); err != nil {
			return Request{}, err
		}
	}
	if kind == Mix {
		if err := c.mix(&r); err != nil {
			return Request{}, err
		}
	}
	if kind == Pack {
		if err := c.packs(&r); err != nil {
			return Request{}, err
		}
	}
	err = c.names(&r)
	return r, err
}

// names checks the fields that name a job and a dataset.
func (c *body) names(r *Request) error {
	if c.Job != nil {
		if err := ValidJob(*c.Job); err != nil {
			return fmt.Errorf("job: %w; leave the field out for the client's address", err)
		}
		r.Job = *c.Job
	}
	if c.Dataset != nil {
		if err := validReference(*c.Dataset); err != nil {
			return err
		}
		r.Dataset = *c.Dataset
	}
	return nil
}

// checkColumns checks a list of columns; nil selects all columns.
func checkColumns(columns []string) error {
	if columns != nil && len(columns) == 0 {
		return errors.New("columns: empty, leave the field out for all columns")
	}
	seen := make(map[string]bool, len(columns))
	for _, name := range columns {
		if seen[name] {
			return fmt.Errorf("columns: %.64q is named twice", name)
		}
		seen[name] = true
	}
	return nil
}

// commandError explains to the user why a command is not a valid JSON object.
func commandError(err error) error {
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return fmt.Errorf("command: %w", misfit(err))
	}
	return fmt.Errorf("command: not a JSON object of wire contract v%d: %w", Version, err)
}

// misfit rewrites the error for a JSON value of the wrong type, which encoding/json words in terms of Go. It returns other errors unchanged.
func misfit(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err
	}
	if wrong.Field == "" {
		return fmt.Errorf("a JSON %s, want one JSON object", wrong.Value)
	}
	return fmt.Errorf("%s: %s does not fit, want %s", wrong.Field, wrong.Value, typeName(wrong.Type))
}

// typeName names the JSON values that a Go type is decoded from.
func typeName(goType reflect.Type) string {
	switch goType.Kind() {
	case reflect.Uint64:
		return "an integer in [0, 2^64)"
	case reflect.Int, reflect.Int64:
		return "an integer in [-2^63, 2^63)"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	}
	return goType.String()
}
