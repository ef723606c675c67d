// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

const (
	limit = 64 << 20
	slot  = 64 << 10
)

// ports are numbers for servers, none of which is a TCP port.
var ports atomic.Int64

// start runs a server and returns it with its budget and the address of its socket.
func start(t *testing.T) (*Server, *offheap.Budget, *net.UnixAddr) {
	t.Helper()
	budget := offheap.NewBudget(limit)
	server := New(budget.Clients(), slog.New(slog.DiscardHandler))
	port := 1<<20 + int(ports.Add(1)) + unix.Getpid()<<8
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, port) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("Serve returned %v", err)
		}
		if used := budget.Used(); used != 0 {
			t.Errorf("%d bytes are still reserved", used)
		}
	})
	return server, budget, &net.UnixAddr{Net: "unixpacket", Name: fmt.Sprintf("@datacache-%d", port)}
}

// dial connects as soon as the server listens.
func dial(t *testing.T, at *net.UnixAddr) *net.UnixConn {
	t.Helper()
	var conn *net.UnixConn
	deadline.Eventually(t, func() (err error) {
		conn, err = net.DialUnix("unixpacket", nil, at)
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask asks for memory and returns the token and descriptor; the token is empty if the server ends the connection instead.
func ask(t *testing.T, conn *net.UnixConn, slots, bytes uint32) (token string, fd int) {
	t.Helper()
	request := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, slots), bytes)
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}
	packet, control := make([]byte, 64), make([]byte, 64)
	n, c, _, _, err := conn.ReadMsgUnix(packet, control)
	if err != nil || n == 0 {
		return "", 0
	}
	messages, err := unix.ParseSocketControlMessage(control[:c])
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[0]) })
	if got := binary.LittleEndian.Uint32(packet); got != slots {
		t.Fatalf("the server gives %d slots, want %d", got, slots)
	}
	return string(packet[4:n]), fds[0]
}

func give(t *testing.T, conn *net.UnixConn, number uint32) {
	t.Helper()
	if _, err := conn.Write(binary.LittleEndian.AppendUint32(nil, number)); err != nil {
		t.Fatal(err)
	}
}

// TestSlots takes all slots of a memory and waits for one that the client gives back.
func TestSlots(t *testing.T) {
	t.Parallel()
	server, budget, at := start(t)
	conn := dial(t, at)
	token, fd := ask(t, conn, leastSlots, slot)
	if used := budget.Used(); used != leastSlots*slot {
		t.Errorf("%d bytes are reserved, want %d", used, leastSlots*slot)
	}
	if err := unix.Ftruncate(fd, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("the client could shrink the memory: %v", err)
	}
	m := server.Use(token)
	if m == nil {
		t.Fatal("the memory is not known")
	}
	if server.Use(token) != nil {
		t.Error("two calls use one memory")
	}
	seen := map[int]bool{}
	for range leastSlots {
		s := m.Take(t.Context())
		seen[s.Number] = true
		copy(s.Bytes, fmt.Sprintf("slot %d", s.Number))
	}
	if len(seen) != leastSlots {
		t.Errorf("slots %v were taken", seen)
	}
	mapped, err := unix.Mmap(fd, 0, leastSlots*slot, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(mapped[2*slot : 2*slot+6]); got != "slot 2" {
		t.Errorf("slot 2 has %q", got)
	}
	late, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if s := m.Take(late); s != nil {
		t.Errorf("slot %d was taken twice", s.Number)
	}
	give(t, conn, 1)
	if s := m.Take(t.Context()); s == nil || s.Number != 1 {
		t.Errorf("after slot 1 came back, %v was taken", s)
	}
	_ = conn.Close()
	if s := m.Take(t.Context()); s != nil {
		t.Errorf("slot %d of a client that is gone", s.Number)
	}
	m.Done()
	deadline.Eventually(t, func() error {
		if used := budget.Used(); used != 0 || server.Use(token) != nil {
			return fmt.Errorf("%d bytes are reserved for a client that is gone", used)
		}
		return nil
	})
}

// TestRefusals checks that the server ends the connection of a client that asks for what it can't have, or gives back what it doesn't have.
func TestRefusals(t *testing.T) {
	t.Parallel()
	_, budget, at := start(t)
	for _, of := range [][2]uint32{{leastSlots - 1, slot}, {leastSlots, slot - 1}, {leastSlots, slot + 1}, {leastSlots, 2 * mostSlot}, {0, 0}, {1 << 31, 1 << 31}, {leastSlots, limit / 8}} {
		if token, _ := ask(t, dial(t, at), of[0], of[1]); token != "" {
			t.Errorf("it gave %d slots of %d bytes", of[0], of[1])
		}
	}
	for _, number := range []uint32{0, leastSlots, 1<<32 - 1} {
		conn := dial(t, at)
		ask(t, conn, leastSlots, slot)
		give(t, conn, number)
		if n, err := conn.Read(make([]byte, 1)); n > 0 {
			t.Errorf("slot %d, which was not lent, came back: %d bytes, %v", number, n, err)
		}
	}
	deadline.Eventually(t, func() error {
		if used := budget.Used(); used != 0 {
			return fmt.Errorf("%d bytes are reserved", used)
		}
		return nil
	})
}

// TestIdleMemoryIsTakenBack checks that a reservation for which there is no room takes back the memory that no call has used for the longest time,
// and no more than it needs, but none that a call uses; and that pages are freed but those that the client has.
func TestIdleMemoryIsTakenBack(t *testing.T) {
	t.Parallel()
	const size = leastSlots * slot
	server, budget, at := start(t)
	var conns [3]*net.UnixConn
	var tokens [3]string
	var fds [3]int
	for i := range conns {
		conns[i] = dial(t, at)
		tokens[i], fds[i] = ask(t, conns[i], leastSlots, slot)
	}
	lent := server.Use(tokens[0]) // the client keeps one of two slots, and is the last one whose call ends
	kept, returned := lent.Take(t.Context()), lent.Take(t.Context())
	copy(kept.Bytes, "kept")
	give(t, conns[0], uint32(returned.Number))
	deadline.Eventually(t, func() error {
		lent.mu.Lock()
		defer lent.mu.Unlock()
		if len(lent.free) != leastSlots-1 {
			return fmt.Errorf("%d slots are free", len(lent.free))
		}
		return nil
	})
	lent.Done()
	inUse := server.Use(tokens[2])
	clients := budget.Clients()
	free := int64(limit) - budget.Used()
	has := func(step string, want ...bool) {
		t.Helper()
		for i, w := range want {
			server.mu.Lock()
			m := server.memories[tokens[i]]
			server.mu.Unlock()
			if got := m != nil && !m.ended(); got != w {
				t.Errorf("%s: memory %d is there: %v, want %v", step, i, got, w)
			}
		}
	}
	if err := clients.Reserve(free); err != nil {
		t.Fatal(err)
	}
	has("as much as is free", true, true, true)
	if err := clients.Reserve(1); err != nil {
		t.Fatal(err)
	}
	has("a byte more", true, false, true)
	_ = conns[1].SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := conns[1].Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the client reads %d bytes, %v, want the end", n, err)
	}
	if err := clients.Reserve(size); err != nil {
		t.Fatal(err)
	}
	has("more than one memory", false, false, true)
	if err := clients.Reserve(size); err == nil {
		t.Error("the memory of a call was taken back")
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fds[0], &stat); err != nil || stat.Blocks*512 != slot {
		t.Errorf("the client's memory has %d bytes, %v, want those of one slot", stat.Blocks*512, err)
	}
	mapped, err := unix.Mmap(fds[0], 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(mapped[kept.Number*slot:][:4]); got != "kept" {
		t.Errorf("the client's slot has %q", got)
	}
	inUse.Done()
	clients.Release(free + 1 + size)
	if token, _ := ask(t, dial(t, at), leastSlots, slot); token == "" {
		t.Error("a client gets no memory any more")
	}
}

// ended reports whether a memory is of no use any more.
func (m *Memory) ended() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left
}

// TestOtherUser connects as another user.
func TestOtherUser(t *testing.T) {
	t.Parallel()
	if unix.Getuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	_, _, at := start(t)
	_ = dial(t, at).Close()
	const script = `import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect("\0" + sys.argv[1])
s.send(bytes([4, 0, 0, 0, 0, 0, 1, 0]))
print(len(s.recv(64)))`
	command := exec.CommandContext(t.Context(), "python3", "-c", script, at.Name[1:])
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := command.CombinedOutput(); err == nil && string(out) != "0\n" {
		t.Errorf("another user got memory: %s", out)
	}
}
