// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxPacket is the maximum length of a packet with its offload header: TCP sends up to 64 KiB at a time.
	maxPacket = 1<<16 + 64
	// maxQueued bounds the packets in flight in one direction; if a device's packets are not read, the device queues them like a
	// network card.
	maxQueued = 2048
)

// link carries packets in one direction.
type link struct {
	delay  atomic.Int64  // nanoseconds
	loss   atomic.Uint64 // lost packets per 1<<32
	random *rand.Rand    // of receive
	free   chan []byte   // free buffers to read into
}

// packet is due for delivery at a time.
type packet struct {
	at   time.Time
	data []byte
}

func newLink(seed uint64) *link {
	return &link{random: rand.New(rand.NewPCG(seed, 0)), free: make(chan []byte, maxQueued)}
}

func (l *link) set(delay time.Duration, loss float64) {
	l.delay.Store(int64(delay))
	l.loss.Store(uint64(loss * (1 << 32)))
}

// carry forwards packets from one device to the other, until one of them fails.
func (l *link) carry(from, to int) error {
	queue := make(chan packet, maxQueued)
	failed := make(chan error, 2)
	go func() { failed <- l.receive(from, queue) }()
	go func() { failed <- l.deliver(to, queue) }()
	return <-failed
}

func (l *link) receive(from int, queue chan<- packet) error {
	for {
		buffer := l.buffer()
		n, err := unix.Read(from, buffer)
		if err != nil {
			return fmt.Errorf("read a packet: %w", err)
		}
		if uint64(l.random.Uint32()) < l.loss.Load() {
			l.free <- buffer
			continue
		}
		queue <- packet{time.Now().Add(time.Duration(l.delay.Load())), buffer[:n]}
	}
}

// buffer returns a free buffer, or a new one: hardly more than maxQueued are ever in use.
func (l *link) buffer() []byte {
	select {
	case b := <-l.free:
		return b
	default:
		return make([]byte, maxPacket)
	}
}

func (l *link) deliver(to int, queue <-chan packet) error {
	runtime.LockOSThread()
	// Otherwise the kernel lets a sleep take up to 50 microseconds longer.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set the timer slack: %w", err)
	}
	for p := range queue {
		if wait := time.Until(p.at); wait > 0 {
			pause := unix.NsecToTimespec(int64(wait))
			_ = unix.Nanosleep(&pause, nil) // if interrupted, the packet is a little early
		}
		// A device that is full, or down for a moment, loses the packet like a network.
		if _, err := unix.Write(to, p.data); err != nil && err != unix.ENOBUFS && err != unix.EAGAIN && err != unix.EIO {
			return fmt.Errorf("write a packet of %d bytes: %w", len(p.data), err)
		}
		select {
		case l.free <- p.data[:maxPacket]:
		default:
		}
	}
	return nil
}
