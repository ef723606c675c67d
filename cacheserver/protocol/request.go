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
)

const kinds = `"shard", "epoch", "take" or "mix"`

// Request is a valid Flight descriptor.
type Request struct {
	Kind    Kind
	Index   uint64       // Shard: index of the share
	Total   uint64       // Shard: number of shares
	Epoch   epoch.Epoch  // Epoch: all fields but Rows, which the server knows; Mix: all fields
	Share   epoch.Share  // Epoch, Mix: the rank and worker that read, and the step to start at
	Mix     *epoch.Mix   // Mix: the parts and their weights; otherwise nil
	Columns []string     // nil selects all
	Filter  string       // a WHERE clause, as given; "" selects all rows of the cache
	Split   *epoch.Split // the part of the filtered rows to use; nil: all of them
	Job     string       // the job that reads, see ValidJob; "" if the request names none
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
	parse, ok := map[Kind]func([]byte) (Request, error){Shard: parseShard, Epoch: parseEpoch, Take: parseTake, Mix: parseMix}[*head.Kind]
	if !ok {
		return Request{}, fmt.Errorf("command: kind: %.64q, want "+kinds, *head.Kind)
	}
	if err := checkFields(cmd, *head.Kind); err != nil {
		return Request{}, err
	}
	r, err := parse(cmd)
	if err != nil {
		return Request{}, err
	}
	r.Job, err = parseJob(cmd)
	return r, err
}

// fieldsOf lists the valid fields of a command of the kind.
func fieldsOf(kind Kind) []string {
	fields := []string{"v", "kind", "columns", "filter", "split", "job"}
	sequence := []string{"seed", "epoch", "shuffle", "clump", "global_batch", "tail", "rank", "world", "worker", "workers", "start_step"}
	switch kind {
	case Shard:
		fields = append(fields, "index", "total")
	case Epoch:
		fields = append(fields, sequence...)
	case Mix:
		fields = append(append(fields, sequence...), "part", "parts", "phases", "unit", "length")
	case Take:
	}
	return fields
}

// checkFields rejects fields that the kind does not have. Names must match exactly: encoding/json would accept "Index" for "index".
func checkFields(cmd []byte, kind Kind) error {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(cmd, &given); err != nil {
		return commandError(err)
	}
	fields := fieldsOf(kind)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(fields, name) {
			return fmt.Errorf("command: %.64q is no field of kind %q, which has %s", name, kind, strings.Join(fields, ", "))
		}
	}
	return nil
}

// common holds the fields of every kind of command.
type common struct {
	V       int                        `json:"v"`
	Kind    Kind                       `json:"kind"`
	Columns *[]string                  `json:"columns"`
	Filter  string                     `json:"filter"`
	Split   map[string]json.RawMessage `json:"split"`
}

// request returns a request with the fields of every kind.
func (c common) request(kind Kind) (Request, error) {
	r := Request{Kind: kind}
	var err error
	if r.Columns, err = c.columns(); err != nil {
		return Request{}, err
	}
	if strings.TrimSpace(c.Filter) != "" {
		r.Filter = c.Filter
	}
	if c.Split != nil {
		if r.Split, err = parseSplit(c.Split); err != nil {
			return Request{}, fmt.Errorf("command: %w", err)
		}
	}
	return r, nil
}

// columns checks a request's list of columns; nil selects all columns.
func (c common) columns() ([]string, error) {
	if c.Columns == nil {
		return nil, nil
	}
	if len(*c.Columns) == 0 {
		return nil, errors.New("command: columns: empty, leave the field out for all columns")
	}
	seen := make(map[string]bool, len(*c.Columns))
	for _, name := range *c.Columns {
		if seen[name] {
			return nil, fmt.Errorf("command: columns: %.64q is named twice", name)
		}
		seen[name] = true
	}
	return *c.Columns, nil
}

func parseShard(cmd []byte) (Request, error) {
	var body struct {
		common
		Index *uint64 `json:"index"`
		Total *uint64 `json:"total"`
	}
	if err := json.Unmarshal(cmd, &body); err != nil {
		return Request{}, commandError(err)
	}
	if err := required(field{"index", body.Index == nil}, field{"total", body.Total == nil}); err != nil {
		return Request{}, err
	}
	checked, err := shard(*body.Index, *body.Total)
	if err != nil {
		return Request{}, fmt.Errorf("command: %w", err)
	}
	r, err := body.request(Shard)
	r.Index, r.Total = checked.Index, checked.Total
	return r, err
}

func parseTake(cmd []byte) (Request, error) {
	var body struct{ common }
	if err := json.Unmarshal(cmd, &body); err != nil {
		return Request{}, commandError(err)
	}
	return body.request(Take)
}

// sequence holds the fields that an epoch and a mixture have in common.
type sequence struct {
	common
	Seed        *uint64     `json:"seed"`
	Epoch       *uint64     `json:"epoch"`
	Shuffle     *bool       `json:"shuffle"`
	Clump       *uint64     `json:"clump"`
	GlobalBatch *uint64     `json:"global_batch"`
	Tail        *epoch.Tail `json:"tail"`
	Rank        *uint64     `json:"rank"`
	World       *uint64     `json:"world"`
	Worker      *uint64     `json:"worker"`
	Workers     *uint64     `json:"workers"`
	StartStep   *uint64     `json:"start_step"`
}

// request validates the fields; Epoch.Rows of the result is 0.
func (q sequence) request(kind Kind) (Request, error) {
	err := required(
		field{"seed", q.Seed == nil}, field{"epoch", q.Epoch == nil}, field{"shuffle", q.Shuffle == nil},
		field{"global_batch", q.GlobalBatch == nil}, field{"tail", q.Tail == nil},
		field{"rank", q.Rank == nil}, field{"world", q.World == nil},
	)
	if err != nil {
		return Request{}, err
	}
	r, err := q.common.request(kind)
	if err != nil {
		return Request{}, err
	}
	r.Epoch = epoch.Epoch{
		Seed: *q.Seed, Number: *q.Epoch, Shuffle: *q.Shuffle, Clump: or(q.Clump, 1),
		GlobalBatch: *q.GlobalBatch, Tail: *q.Tail,
	}
	r.Share = epoch.Share{
		Rank: *q.Rank, World: *q.World, Worker: or(q.Worker, 0), Workers: or(q.Workers, 1),
		StartStep: or(q.StartStep, 0),
	}
	if err := errors.Join(r.Epoch.Validate(), r.Share.Validate()); err != nil {
		return Request{}, fmt.Errorf("command: %w", err)
	}
	return r, nil
}

func parseEpoch(cmd []byte) (Request, error) {
	var body sequence
	if err := json.Unmarshal(cmd, &body); err != nil {
		return Request{}, commandError(err)
	}
	return body.request(Epoch)
}

func or(value *uint64, fallback uint64) uint64 {
	if value == nil {
		return fallback
	}
	return *value
}

// field is a required field of a command and whether it is missing.
type field struct {
	name    string
	missing bool
}

func required(fields ...field) error {
	for _, f := range fields {
		if f.missing {
			return fmt.Errorf("command: %s: missing", f.name)
		}
	}
	return nil
}

// commandError explains to the user why a command is not a valid JSON object.
func commandError(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		name := wrong.Field
		if name == "" {
			return fmt.Errorf("command: a JSON %s, want one JSON object", wrong.Value)
		}
		return fmt.Errorf("command: %s: %s does not fit, want %s", name, wrong.Value, typeName(wrong.Type))
	}
	return fmt.Errorf("command: not a JSON object of wire contract v%d: %w", Version, err)
}

// typeName names the JSON values that a Go type is decoded from.
func typeName(goType reflect.Type) string {
	switch goType.Kind() {
	case reflect.Uint64:
		return "an integer in [0, 2^64)"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Map:
		return "an object"
	}
	return goType.String()
}
