// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// askTime is how long a client may take to say how much memory it wants.
	askTime = 10 * time.Second
	// retryAfter is the pause after a connection could not be accepted.
	retryAfter = 100 * time.Millisecond
	// most is the maximum number of slots in a packet of a client that gives slots back.
	most = 256
	// seals keep the size of a memory, so that no access to it can fail.
	seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
)

// Serve gives memories to clients of this user on this machine, until ctx ends. They find the socket, which has an abstract address, by the
// server's TCP port. It fails only if ctx ends: where the address is taken, clients use TCP.
func (s *Server) Serve(ctx context.Context, port int) error {
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: fmt.Sprintf("@datacache-%d", port)})
	if err != nil {
		s.log.Debug("rows are not passed in shared memory", "error", err)
		<-ctx.Done()
		return nil
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		conn, err := listener.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil: // out of file descriptors
			time.Sleep(retryAfter)
			continue
		}
		clients.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			defer func() { _ = conn.Close() }()
			if err := s.attend(conn); err != nil {
				s.log.Debug("a client gets no shared memory", "error", err)
			}
		})
	}
}

// attend makes a memory for a client and takes slots back until the client is gone.
func (s *Server) attend(conn *net.UnixConn) error {
	if err := checkPeer(conn); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(askTime))
	var ask [8]byte
	if n, err := conn.Read(ask[:]); n < len(ask) {
		return errors.Join(errors.New("it does not say how much"), err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	slots, bytes := binary.LittleEndian.Uint32(ask[:]), binary.LittleEndian.Uint32(ask[4:])
	if slots < leastSlots || bytes < leastSlot || bytes > mostSlot || bytes%uint32(unix.Getpagesize()) != 0 {
		return fmt.Errorf("it asks for %d slots of %d bytes", slots, bytes)
	}
	remove, m, err := s.give(conn, int(min(slots, mostSlots)), int(bytes))
	if err != nil {
		return err
	}
	defer remove()
	var numbers [4 * most]byte
	for {
		n, err := conn.Read(numbers[:])
		if err != nil || n == 0 { // it is gone
			return nil
		}
		for at := 0; at+4 <= n; at += 4 {
			if number := binary.LittleEndian.Uint32(numbers[at:]); !m.Return(number) {
				return fmt.Errorf("it gives slot %d back, which it does not have", number)
			}
		}
	}
}

// checkPeer checks that the client is a process of this user that this one can see. One of another container has no process ID here, although
// the two may share a network.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	var peer *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(controlErr, err); err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	if int(peer.Uid) != os.Getuid() || peer.Pid <= 0 {
		return fmt.Errorf("it is process %d of user %d, not one of user %d here", peer.Pid, peer.Uid, os.Getuid())
	}
	return nil
}

// give makes a memory, until remove is called, and sends the number of its slots, its token and its descriptor.
func (s *Server) give(conn *net.UnixConn, slots, bytes int) (remove func(), m *Memory, err error) {
	allowance, slots := s.reserve(slots, bytes)
	if allowance == nil {
		return nil, nil, errors.New("there is no room for it")
	}
	fd, mapped, err := makeSealed(slots * bytes)
	if err != nil {
		allowance.Close()
		return nil, nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	m, token := newMemory(mapped, slots, s.clients, allowance, system{
		unmap:   func(b []byte) { _ = unix.Munmap(b) },
		discard: func(b []byte) { _ = unix.Madvise(b, unix.MADV_REMOVE) },
		hangUp:  func() { _ = conn.Close() },
	}), rand.Text()
	remove = s.add(token, m)
	packet := append(binary.LittleEndian.AppendUint32(nil, uint32(slots)), token...)
	if _, _, err := conn.WriteMsgUnix(packet, unix.UnixRights(fd), nil); err != nil {
		remove()
		return nil, nil, fmt.Errorf("send the memory: %w", err)
	}
	return remove, m, nil
}

// makeSealed returns memory whose size cannot be changed, and its descriptor.
func makeSealed(size int) (fd int, mapped []byte, err error) {
	fd, err = unix.MemfdCreate("datacache", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return 0, nil, fmt.Errorf("make memory: %w", err)
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err == nil {
			mapped, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return 0, nil, fmt.Errorf("make memory of %d bytes: %w", size, err)
	}
	return fd, mapped, nil
}
