// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package leaf

import "math"

// lists is the lists of an output so far. A list's definition level tells: below holder it is null, at holder it is
// empty, above it has an element, which is valid at the highest level.
type lists struct {
	ends  []int32 // of each list, as slots; all that there will be
	begun int     // lists that are begun
}

// readLists reads n lists. The last may go on in the next page, so this reads on until another begins.
func (c *Column) readLists(n int) error {
	l := lists{ends: extend[int32](&c.starts, n)}
	for {
		for c.left == 0 {
			ok, err := c.next()
			switch {
			case err != nil:
				return err
			case !ok && l.begun < n:
				return errEnds
			case !ok:
				return nil
			}
		}
		at := c.slots.slots
		valid, err := c.follow(&l)
		if err != nil {
			return err
		}
		if err := c.append(at, c.slots.slots-at, valid); err != nil {
			return err
		}
		if c.left > 0 {
			return nil
		}
	}
}

// follow follows the levels to the end of the page, or to a list too many. It appends the slots of the lists and
// returns how many of those are valid.
func (c *Column) follow(l *lists) (valid int, err error) {
	for c.left > 0 {
		rep, reps, err := c.reps.peek()
		if err != nil {
			return 0, err
		}
		def, defs, err := c.defs.peek()
		if err != nil {
			return 0, err
		}
		n := min(reps, defs, c.left)
		if rep == 0 {
			n = min(n, len(l.ends)-l.begun)
		}
		if n == 0 {
			return valid, nil
		}
		if err := c.levels(l, rep, def, n); err != nil {
			return 0, err
		}
		if def == c.maxDef {
			valid += n
		}
		c.reps.skip(n)
		c.defs.skip(n)
		c.left -= n
	}
	return valid, nil
}

// levels appends n equal levels: lists that begin, or more elements of the one under way.
func (c *Column) levels(l *lists, rep, def uint8, n int) error {
	element := def > c.holder
	if element {
		if c.slots.slots > math.MaxInt32-n {
			return corrupt("the lists of a batch have more than 2^31 elements")
		}
		c.slots.add(def == c.maxDef, n)
	}
	if rep > 0 {
		if !element || !l.open() {
			return corrupt("an element of a list that is not there")
		}
		l.ends[l.begun-1] = int32(c.slots.slots)
		return nil
	}
	c.rows.add(def >= c.holder, n)
	for i := range n {
		end := c.slots.slots
		if element {
			end -= n - 1 - i
		}
		l.ends[l.begun+i] = int32(end)
	}
	l.begun += n
	return nil
}

// open reports whether the list under way has an element.
func (l *lists) open() bool {
	switch l.begun {
	case 0:
		return false
	case 1:
		return l.ends[0] > 0
	}
	return l.ends[l.begun-1] > l.ends[l.begun-2]
}
