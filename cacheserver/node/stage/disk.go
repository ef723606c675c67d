// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

// partRecord is what the file of a part says besides its rows, in place of a schema.
type partRecord struct {
	Put  peer.Put         `json:"put"`
	Part protocol.PutPart `json:"part"`
}

// publishedRecord is what the files of a put say of its publication.
type publishedRecord struct {
	Put     peer.Put           `json:"put"`
	As      peer.Publication   `json:"as"`
	Parts   []protocol.PutPart `json:"parts"`
	Settled bool               `json:"settled"`
}

// onDisk reports whether the parts of a put are in files too.
func (s *Stage) onDisk(of peer.Put) bool { return s.cfg.Disk != nil && of.Keep != protocol.KeepMemory }

// store writes the file of a part, if its put is on disk. Discarding the part removes it.
func (s *Stage) store(p *put, made *part, sealed rows.Sealed) error {
	if !s.onDisk(p.Put) {
		return nil
	}
	text, err := json.Marshal(partRecord{p.Put, made.PutPart})
	if err != nil {
		return err
	}
	s.mu.Lock()
	number := p.files
	p.files++
	s.mu.Unlock()
	file, err := s.cfg.Disk.Write(p.ID, number, text, sealed)
	if err != nil {
		return err
	}
	made.file = file
	return nil
}

// record writes what the node has published of a put, if that is on disk.
func (s *Stage) record(has *Held) error {
	if !s.onDisk(has.Put) {
		return nil
	}
	text, err := json.Marshal(publishedRecord{has.Put, has.Publication, has.parts, has.Settled})
	if err != nil {
		return err
	}
	return s.cfg.Disk.Note(has.Put.ID, text)
}

// Restore reads what an earlier process of this node left on disk. A part whose file is broken, or for which there is no memory, is lost.
func (s *Stage) Restore() {
	if s.cfg.Disk == nil {
		return
	}
	plans, err := s.cfg.Disk.List()
	if err != nil {
		s.cfg.Log.Warn("some datasets on disk can't be read: put them again", "reason", err)
	}
	for id, numbers := range plans {
		for _, number := range numbers {
			if err := s.restorePart(id, number); err != nil {
				s.cfg.Log.Warn("a part on disk is lost", "put", id, "file", number, "reason", err)
			}
		}
		if err := s.restorePublished(id); err != nil {
			s.cfg.Log.Warn("a dataset on disk is lost", "put", id, "reason", err)
		}
	}
}

// restorePart reads the file of a part.
func (s *Stage) restorePart(id string, number int) error {
	file, err := s.cfg.Disk.Open(id, number)
	if err != nil {
		return err
	}
	var r partRecord
	if err := json.Unmarshal(file.Head().Schema, &r); err != nil || r.Put.ID != id {
		return errors.Join(fmt.Errorf("of another put: %w", err), file.Close(false))
	}
	s.Open(r.Put)
	s.mu.Lock()
	p := s.puts[id]
	s.mu.Unlock()
	if p.refused != nil {
		return errors.Join(p.refused, file.Close(false))
	}
	sealed, err := file.Load(p.layout, p.arena)
	if err != nil {
		return errors.Join(err, file.Close(false))
	}
	made, err := p.newPart(r.Part, sealed.Chunks)
	if err != nil {
		return errors.Join(err, file.Close(false))
	}
	made.file = file
	s.mu.Lock()
	defer s.mu.Unlock()
	p.files = max(p.files, number+1)
	p.parts[r.Part.Part] = append(p.parts[r.Part.Part], made)
	return nil
}

// restorePublished makes the rows of a put readable again, if they were.
func (s *Stage) restorePublished(id string) error {
	text, err := s.cfg.Disk.Noted(id)
	if text == nil || err != nil {
		return err
	}
	var r publishedRecord
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("%s: %w", s.cfg.Disk.NotePath(id), err)
	}
	if r.Put.ID != id || r.Put.Parts < 1 || r.Put.Nodes < 1 {
		return fmt.Errorf("%s is of put %.64q with %d parts on %d data nodes", s.cfg.Disk.NotePath(id), r.Put.ID, r.Put.Parts, r.Put.Nodes)
	}
	s.Open(r.Put)
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.puts[id]
	if p.refused != nil {
		return p.refused
	}
	if err := p.publish(peer.Publish{ID: id, As: r.As, Parts: r.Parts}, s.cfg.Node); err != nil {
		return err
	}
	p.has.Settled = r.Settled
	s.cfg.Log.Info("a dataset is read from disk", "name", p.Name, "fingerprint", p.has.Fingerprint, "rows", p.has.NodeRows)
	return nil
}

// forget closes the files of a put that the stage does not have any more, and removes them unless keep is set.
func (s *Stage) forget(p *put, keep bool) {
	if !s.onDisk(p.Put) {
		return
	}
	var err error
	for _, attempts := range slices.Collect(maps.Values(p.parts)) {
		for _, a := range attempts {
			err = errors.Join(err, a.file.Close(keep))
		}
	}
	if !keep {
		err = errors.Join(err, s.cfg.Disk.Note(p.ID, nil))
	}
	if err != nil {
		s.cfg.Log.Warn("files of a put are left", "put", p.ID, "reason", err)
	}
}

// discard frees a part, and removes its file.
func (p *part) discard() {
	for _, c := range p.chunks {
		p.arena.Discard(c.Memory())
	}
	p.arena.Budget().ReleaseHeap(partMemory)
	if p.file != nil {
		_ = p.file.Close(false) // what is left is removed with the put's folder
	}
}
