// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	mtu = 1500
	// Flags of linux/if_tun.h: checksums and segmentation are left to the other end, as with network cards.
	offloads = 0x1 | 0x2 | 0x4 // TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6
)

// end is a network namespace with a TUN device.
type end struct {
	namespace string // path for nsenter --net
	device    int    // file descriptor
}

// newEnd makes a namespace, which exists as long as the thread that makes it, with its device.
func newEnd(address [4]byte) (end, error) {
	type made struct {
		end end
		err error
	}
	done := make(chan made)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread must not outlive or leave this goroutine
		e, err := makeEnd(address)
		done <- made{e, err}
		if err == nil {
			select {}
		}
	}()
	m := <-done
	return m.end, m.err
}

// makeEnd moves the thread into a new namespace and configures the namespace.
func makeEnd(address [4]byte) (end, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return end{}, fmt.Errorf("make a network namespace (needs root): %w", err)
	}
	e := end{namespace: fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())}
	// TCP must not remember metrics of earlier connections, so that the order of measurements doesn't matter.
	if err := os.WriteFile("/proc/sys/net/ipv4/tcp_no_metrics_save", []byte("1"), 0); err != nil {
		return end{}, err
	}
	var err error
	if e.device, err = openTUN("tun0"); err != nil {
		return end{}, err
	}
	control, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return end{}, fmt.Errorf("open a socket: %w", err)
	}
	defer func() { _ = unix.Close(control) }()
	return e, errors.Join(
		configure(control, unix.SIOCSIFADDR, "tun0", inet(address)),
		configure(control, unix.SIOCSIFNETMASK, "tun0", inet([4]byte{255, 255, 255, 0})),
		configure(control, unix.SIOCSIFMTU, "tun0", binary.NativeEndian.AppendUint32(nil, mtu)),
		configure(control, unix.SIOCSIFTXQLEN, "tun0", binary.NativeEndian.AppendUint32(nil, maxQueued)),
		configure(control, unix.SIOCSIFFLAGS, "tun0", binary.NativeEndian.AppendUint16(nil, unix.IFF_UP)),
		configure(control, unix.SIOCSIFFLAGS, "lo", binary.NativeEndian.AppendUint16(nil, unix.IFF_UP)),
	)
}

// openTUN makes a TUN device in the thread's namespace.
func openTUN(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	flags := binary.NativeEndian.AppendUint16(nil, unix.IFF_TUN|unix.IFF_NO_PI|unix.IFF_VNET_HDR)
	if err := configure(fd, unix.TUNSETIFF, name, flags); err != nil {
		return 0, err
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads); err != nil {
		return 0, fmt.Errorf("set the offloads of %s: %w", name, err)
	}
	return fd, nil
}

// configure makes an ioctl whose argument is a struct ifreq: a device's name and a value.
func configure(fd int, request uint, device string, value []byte) error {
	var ifreq [40]byte
	copy(ifreq[:unix.IFNAMSIZ-1], device)
	copy(ifreq[unix.IFNAMSIZ:], value)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&ifreq))); errno != 0 {
		return fmt.Errorf("request %#x of device %s: %w", request, device, errno)
	}
	return nil
}

// inet is a struct sockaddr_in.
func inet(address [4]byte) []byte {
	return append(binary.NativeEndian.AppendUint16(nil, unix.AF_INET), 0, 0, address[0], address[1], address[2], address[3])
}
