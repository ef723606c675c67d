// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"time"

	"github.com/kubeflow/datacache/internal/redact"
)

// Source is the server that a Page shows. Its methods may be called concurrently.
type Source interface {
	// Series names the values of a Sample, at most MaxSeries. It always returns the same.
	Series() []Series
	// Sample is called once a second, whether or not anybody looks: it must only read a few numbers.
	Sample() Sample
	// View is called when somebody opens a page, and at most once a second while anybody has one open.
	View() View
}

// Series describes one number of a Sample. Series with the same Chart are drawn in one.
type Series struct {
	Name  string `json:"name"`
	Chart string `json:"chart"`
	Unit  Unit   `json:"unit"`
	Rate  bool   `json:"rate"` // the number is a counter: its increase a second is kept
	Limit bool   `json:"-"`    // drawn as a line that the others should stay below
}

// Unit says how a number is written.
type Unit string

// The units.
const (
	Count Unit = "count"
	Bytes Unit = "bytes"
	Ratio Unit = "ratio" // 1 is written as 100 %
)

// Sample is the state of a server at one moment.
type Sample struct {
	Values []float64 // as many as Series
	States []State
	Done   int64 // how much of Total is loaded, from which the time left is estimated
	Total  int64
}

// State is the state of the server or of a part of it. A change of it is an event.
type State struct {
	Who    string // "cache", "data node 3"
	Is     string // "Ready"
	Reason string
	Tone   Tone // colors the event of this state
}

// Tone says how good a state is, beside its name.
type Tone string

// The tones.
const (
	Good Tone = "good"
	Busy Tone = "busy" // needs nothing but time
	Warn Tone = "warn"
	Bad  Tone = "bad"
	Idle Tone = "idle"
)

// View is what a page shows of a server besides its history.
type View struct {
	Role   string  `json:"role"` // "cache", "data node 3", "object cache"
	Name   string  `json:"name"` // of the table or the machine
	State  string  `json:"state"`
	Reason string  `json:"reason"`
	Tone   Tone    `json:"tone"`
	Done   int64   `json:"done"`  // how much of Total is loaded
	Total  int64   `json:"total"` // 0: there is nothing to load
	Unit   string  `json:"unit"`  // what Done and Total count, "splits"
	Waits  []Wait  `json:"waits,omitempty"`
	Meters []Meter `json:"meters,omitempty"`
	Tables []Table `json:"tables,omitempty"`
	Facts  []Fact  `json:"facts,omitempty"`
}

// Wait is something that the server waits for, and what a person can do about it.
type Wait struct {
	For string `json:"for"`
	Fix string `json:"fix,omitempty"`
}

// Meter is an amount that has a limit, in bytes.
type Meter struct {
	Name  string `json:"name"`
	Used  int64  `json:"used"`
	Peak  int64  `json:"peak,omitempty"`
	Limit int64  `json:"limit"`
}

// Fact is a name with its value.
type Fact struct {
	Name  string   `json:"name"`
	Value string   `json:"value,omitempty"`
	List  []string `json:"list,omitempty"` // in place of Value
}

// Table is a table of the page.
type Table struct {
	ID    string   `json:"id"` // of the HTML element; letters only, unique in the page
	Title string   `json:"title"`
	Note  string   `json:"note,omitempty"`  // explains the columns
	Empty string   `json:"empty,omitempty"` // shown if there are no rows
	Head  []string `json:"head"`
	Rows  [][]Cell `json:"rows"`
}

// Cell is a cell of a Table: text, and at most one drawing beside it.
type Cell struct {
	Text   string  `json:"text"`
	Number bool    `json:"-"` // written in figures of equal width
	Tone   Tone    `json:"tone,omitempty"`
	Bar    *Bar    `json:"bar,omitempty"`
	Strip  []Piece `json:"strip,omitempty"`

	Time time.Time `json:"-"` // in place of Text
}

// Bar is an amount out of a maximum.
type Bar struct {
	Value float64 `json:"value"`
	Max   float64 `json:"max"`
}

// Piece is a part of a strip of length 1, from 0 on.
type Piece struct {
	From float64 `json:"from"`
	To   float64 `json:"to"`
	Tone Tone    `json:"tone"`
}

// Event is a change of a State.
type Event struct {
	Time   time.Time `json:"time"`
	Who    string    `json:"who"`
	From   string    `json:"from,omitempty"` // empty: it was not there before
	To     string    `json:"to"`
	Reason string    `json:"reason,omitempty"`
	Tone   Tone      `json:"tone"`
}

// redact removes credentials from every text that may come from outside.
func (v *View) redact() {
	v.Name, v.Reason = redact.Text(v.Name), redact.Text(v.Reason)
	for i := range v.Waits {
		v.Waits[i].For = redact.Text(v.Waits[i].For)
	}
	for i := range v.Facts {
		f := &v.Facts[i]
		f.Value = redact.Text(f.Value)
		for j := range f.List {
			f.List[j] = redact.Text(f.List[j])
		}
	}
	for _, t := range v.Tables {
		for _, row := range t.Rows {
			for i := range row {
				if !row[i].Number {
					row[i].Text = redact.Text(row[i].Text)
				}
			}
		}
	}
}
