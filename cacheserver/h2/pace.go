// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

// settlePacing has no connection of this machine paced while there are no more than CPUs. BBR, the default of some
// systems, paces what it sends over loopback too, by timers, where there is no network to find out about, and a byte
// costs more CPU for it. Between many connections its pauses cost less than going without. s.mu is held.
func (s *Server) settlePacing() {
	few := placesPerCPU*len(s.conns) <= cap(s.places.free)
	if few == s.few {
		return
	}
	s.few = few
	for c := range s.conns {
		c.pace(!few)
	}
}

// unpaced is a congestion control that sends what it may at once. Every kernel has it and lets every process choose it.
const unpaced = "reno"

// pace has a connection of this machine send as the system usually does, or at once. The server's mu is held.
func (c *conn) pace(yes bool) {
	switch {
	case c.usual == "":
	case yes:
		setCongestion(c.raw, c.usual)
	default:
		setCongestion(c.raw, unpaced)
	}
}
