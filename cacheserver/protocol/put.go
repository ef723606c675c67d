// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/internal/identity"
)

// The actions of a head by which clients put datasets.
const (
	PutBegin   = "put.begin"
	PutStatus  = "put.status"
	PutPublish = "put.publish"
	PutAbort   = "put.abort"
	PutDrop    = "put.drop"
	PutCommit  = "put.commit"
)

// PutWrite is the action of a data node by which the head has it write files.
const PutWrite = "put.write"

// The gRPC methods of data nodes that other servers of the cache call.
const (
	MethodDoPut    = "/arrow.flight.protocol.FlightService/DoPut"    // takes a part
	MethodDoAction = "/arrow.flight.protocol.FlightService/DoAction" // PutWrite
)

// MostParts is the maximum number of parts of a put.
const MostParts = 1 << 16

// The values of a put's mode.
const (
	PutCreate  = "create"  // the name must be free
	PutReplace = "replace" // a dataset of the name is replaced
)

// The values of a put's keep.
const (
	KeepMemory = "memory" // the rows are in the memory of data nodes only
	KeepDisk   = "disk"   // the rows are also in files, from which a data node restores them when its process starts again
	// KeepReplica has each part on two data nodes: one that is lost gets its rows from the other. They are in files too where there is a disk.
	KeepReplica = "replica"
)

// ValidKeep returns an error if keep is neither empty nor a value of a put's keep.
func ValidKeep(keep string) error {
	if keep == "" || keep == KeepMemory || keep == KeepDisk || keep == KeepReplica {
		return nil
	}
	return fmt.Errorf("%.64q, want %q, %q or %q", keep, KeepMemory, KeepDisk, KeepReplica)
}

// Begin is the body of PutBegin.
type Begin struct {
	V      int    `json:"v"`
	Name   string `json:"name"`
	Mode   string `json:"mode"`   // "" is PutCreate
	Parts  int    `json:"parts"`  // their numbers are below this; not every one has to be put
	Bytes  int64  `json:"bytes"`  // about how many there will be; 0: that is not known
	Schema []byte `json:"schema"` // an Arrow IPC message, without the stream's length prefix
	Keep   string `json:"keep"`   // "" is KeepDisk on data nodes that have a disk
	// Recipe and Source say what the rows are derived from: a put with the same ones, if there is a recipe, is joined, and a dataset that was
	// published from such a put makes another one needless.
	Recipe string `json:"recipe"`
	Source string `json:"source"`
	TTL    int64  `json:"ttl_s"` // seconds without a new part after which a put is given up; 0: an hour
}

// Begun answers PutBegin. Either Exists is set, or the others.
type Begun struct {
	Put    string   `json:"put,omitempty"`
	Nodes  []string `json:"nodes,omitempty"`  // where part p of n goes: to number floor(p * len(Nodes) / n)
	Ticket string   `json:"ticket,omitempty"` // opaque
	Joined bool     `json:"joined,omitempty"` // an earlier put of the same recipe goes on
	Exists string   `json:"exists,omitempty"` // fingerprint of a dataset of the same recipe
}

// PutRef is the body of PutAbort.
type PutRef struct {
	V   int    `json:"v"`
	Put string `json:"put"`
}

// PutPage is the body of PutStatus: which parts of a put the answer is about.
type PutPage struct {
	V    int    `json:"v"`
	Put  string `json:"put"`
	From int    `json:"from"` // the number of the first part
	Most int    `json:"most"` // of parts in the answer, up to MostPage; 0: all, if there is memory for the answer
}

// MostPage is the maximum of PutPage.Most.
const MostPage = 4096

// PutState answers PutStatus.
type PutState struct {
	Parts   []PutPart `json:"parts"`          // the last good attempt of each
	Lost    []int     `json:"lost"`           // parts that a data node has lost
	Next    int       `json:"next,omitempty"` // where the next page begins; 0: this is the last one
	Staged  int64     `json:"staged"`
	Nodes   []string  `json:"nodes"`  // as in Begun; they change when data nodes restart
	Ticket  string    `json:"ticket"` // likewise
	Dataset string    `json:"dataset,omitempty"`

	Commit *CommitStatus `json:"commit,omitempty"` // the last one since the head has started
}

// PutPart is a part that a data node has.
type PutPart struct {
	Part    int    `json:"part"`
	Attempt int    `json:"attempt"`
	Rows    int64  `json:"rows"`
	Bytes   int64  `json:"bytes"`
	Hash    string `json:"hash"` // of its rows, in hexadecimal digits
}

// Publish is the body of PutPublish.
type Publish struct {
	V   int    `json:"v"`
	Put string `json:"put"`
	// Receipts are those of the parts that the dataset has; nil: the last good attempt of every part. Since a message has at most 128 KiB, they
	// may come in several ones: From is the number of receipts in those before, and all but the last one have More.
	Receipts []string `json:"receipts"`
	From     int      `json:"from"`
	More     bool     `json:"more"`
}

// Published answers PutPublish.
type Published struct {
	Dataset string `json:"dataset"` // NAME@FINGERPRINT
	Rows    int64  `json:"rows"`
}

// Drop is the body of PutDrop.
type Drop struct {
	V       int    `json:"v"`
	Dataset string `json:"dataset"`
}

// The values of a commit's mode.
const (
	CommitAppend  = "append"  // the rows follow those of the table
	CommitReplace = "replace" // the table has no other rows
)

// Commit is the body of PutCommit.
type Commit struct {
	V       int    `json:"v"`
	Dataset string `json:"dataset"` // NAME or NAME@FINGERPRINT
	Table   string `json:"table"`   // NAMESPACE.TABLE, of the cache's catalog
	Mode    string `json:"mode"`    // "" is CommitAppend
}

// The values of Committed.State.
const (
	Committing   = "committing" // ask again
	CommitDone   = "committed"
	CommitFailed = "failed" // in statuses alone: the call has an error
)

// Committed answers PutCommit.
type Committed struct {
	Dataset  string `json:"dataset"` // NAME@FINGERPRINT
	Table    string `json:"table"`
	State    string `json:"state"`
	Snapshot int64  `json:"snapshot,omitempty"`
	Existed  bool   `json:"existed,omitempty"` // an earlier commit had made the snapshot
}

// PutCommand is the CMD descriptor of a DoPut on a data node.
type PutCommand struct {
	V       int    `json:"v"`
	Kind    string `json:"kind"` // kindPut
	Ticket  string `json:"ticket"`
	Part    int    `json:"part"`
	Attempt int    `json:"attempt"`
	// End is EndCounted, which "" is too, or EndOpen.
	End string `json:"end"`
}

const kindPut = "put"

// How a stream of DoPut tells that it is whole. Writers of pyarrow end their stream in the same way when an exception leaves their with block as
// when all is written.
const (
	EndCounted = "counted" // the last message has PutEnd as app_metadata
	EndOpen    = "open"    // it may
)

// PutEnd is the app_metadata of the last message of a DoPut: how many rows there were. A stream with others is refused.
type PutEnd struct {
	Rows *int64 `json:"rows"`
}

// PutResult is the app_metadata of the single PutResult of a DoPut on a data node.
type PutResult struct {
	PutPart
	Receipt string `json:"receipt"` // opaque
}

// DecodeBody decodes the JSON of an action's body or a put's command. It refuses unknown fields and other versions.
func DecodeBody(what string, text []byte, into any) error {
	var v struct{ V int }
	err := misfit(json.Unmarshal(text, &v))
	if err == nil && v.V != Version {
		err = fmt.Errorf("v: %d, want %d, the version of the wire contract that this server speaks", v.V, Version)
	}
	if err == nil {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		if err = misfit(decoder.Decode(into)); err == nil && !errors.Is(ended(decoder), io.EOF) {
			err = errors.New("more than one JSON object")
		}
	}
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "%s: %v", what, err)
	}
	return nil
}

func ended(decoder *json.Decoder) error {
	_, err := decoder.Token()
	return err
}

// ParsePutCommand parses the CMD descriptor of a DoPut.
func ParsePutCommand(cmd []byte) (c PutCommand, err error) {
	if err := DecodeBody("command", cmd, &c); err != nil {
		return c, err
	}
	if c.Kind != kindPut || c.Part < 0 || c.Part >= MostParts || c.Attempt < 0 {
		return c, status.Errorf(codes.InvalidArgument, "command: kind %.64q, part %d, attempt %d: want kind %q, a part in [0, %d) and an attempt of 0 or more", c.Kind, c.Part, c.Attempt, kindPut, MostParts)
	}
	if c.End != "" && c.End != EndCounted && c.End != EndOpen {
		return c, status.Errorf(codes.InvalidArgument, "command: end: %.64q, want %q or %q", c.End, EndCounted, EndOpen)
	}
	return c, nil
}

// datasetName matches the names of datasets, reference the same with a fingerprint.
var (
	datasetName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	fingerprint = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

// ValidDataset returns an error if name can't be the name of a dataset.
func ValidDataset(name string) error {
	if !datasetName.MatchString(name) {
		return fmt.Errorf("%.64q, want 1 to 63 letters, digits, '.', '_' or '-', a letter or digit first", name)
	}
	return nil
}

// SplitReference returns name and fingerprint, which may be empty, of a reference to a dataset.
func SplitReference(ref string) (name, of string) {
	name, of, _ = strings.Cut(ref, "@")
	return name, of
}

func validReference(ref string) error {
	name, of := SplitReference(ref)
	if err := ValidDataset(name); err != nil {
		return fmt.Errorf("dataset: %w", err)
	}
	if strings.Contains(ref, "@") && !fingerprint.MatchString(of) {
		return fmt.Errorf("dataset: %.64q: behind @ want a fingerprint, 32 hexadecimal digits", ref)
	}
	return nil
}

// Signer signs what clients carry between head and data nodes: the tickets of puts, and receipts. It is safe for concurrent use.
type Signer struct{ key []byte }

// NewSigner makes a signer. Head and nodes make it from the same key, which must not change when one of them restarts.
func NewSigner(key []byte) Signer { return Signer{key} }

// PutTicket is what the ticket of a put says.
type PutTicket struct {
	Put   string `json:"p"`
	Parts int    `json:"n"`
	Nodes int    `json:"d"`

	Addresses []string `json:"a,omitempty"` // of the data nodes, if parts are copied between them
	Copy      string   `json:"c,omitempty"` // of a data node that sends a copy of a part: the part's hash

	Writer *identity.Identity `json:"w,omitempty"` // who asked the head; nil: that is not known, or a data node sends a copy
}

// Receipt is what a receipt says.
type Receipt struct {
	Put string `json:"put"`
	PutPart
}

// Sign returns a value as JSON, with a MAC.
func (s Signer) Sign(value any) (string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return "", status.Errorf(codes.Internal, "sign %T: %v", value, err)
	}
	return base64.RawURLEncoding.EncodeToString(append(s.mac(value, text), text...)), nil
}

// Open checks a signed value and decodes it.
func (s Signer) Open(signed string, into any) error {
	text, err := base64.RawURLEncoding.DecodeString(signed)
	if err != nil || len(text) < sha256.Size || !hmac.Equal(text[:sha256.Size], s.mac(into, text[sha256.Size:])) {
		return errForeign
	}
	if err := json.Unmarshal(text[sha256.Size:], into); err != nil {
		return errForeign
	}
	return nil
}

var errForeign = status.Error(codes.Unauthenticated, "changed, or made by another cache: ask put.status for a new ticket, or put the part again for a receipt")

// mac depends on the type of the value too, so that a ticket is no receipt.
func (s Signer) mac(value any, text []byte) []byte {
	mac := hmac.New(sha256.New, s.key)
	fmt.Fprintf(mac, "%s\n", strings.TrimPrefix(fmt.Sprintf("%T", value), "*"))
	mac.Write(text)
	return mac.Sum(nil)
}
