// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package seedtest gives the seed to tests that draw random numbers: the same at each run, unless the environment says another.
package seedtest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
)

// variable is the environment variable with the seed of all tests of a process: a number, or "random" for another number in each process.
// With "random", go test needs -count=1, otherwise it prints the result of an earlier run.
const variable = "SEED"

// usual is the seed without the environment variable.
const usual = 1

// environment parses the environment variable once, so that all tests of a process have the same seed.
var environment = sync.OnceValues(func() (choice, error) {
	return parse(os.Getenv(variable)) //nolint:forbidigo // the seed of a test is said to the test alone
})

// choice is a seed; it is given if a person has asked for it, to repeat a run.
type choice struct {
	seed  uint64
	given bool
}

func parse(text string) (choice, error) {
	switch text {
	case "":
		return choice{seed: usual}, nil
	case "random":
		return choice{seed: uint64(rand.Uint32())}, nil
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return choice{}, fmt.Errorf(`%s=%q: want an integer in [0, 2^64), or "random"`, variable, text)
	}
	return choice{seed, true}, nil
}

func chosen(t testing.TB) choice {
	t.Helper()
	c, err := environment()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s=%d", variable, c.seed)
	return c
}

// Seed returns the seed of the tests of this process, and logs it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	return chosen(t).seed
}

// New returns a generator of random numbers from Seed.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t), 0))
}

// Cases returns how many random cases a test draws: ci with the flag -short, which CI has, and night without.
func Cases[N int | uint64](ci, night N) N {
	if testing.Short() {
		return ci
	}
	return night
}

// Seeds returns n consecutive seeds from Seed on, for a test that loops over them. The seeds with which the test once failed follow, unless the
// environment variable is a number, which repeats a run.
func Seeds(t testing.TB, n uint64, failed ...uint64) []uint64 {
	t.Helper()
	return chosen(t).seeds(n, failed)
}

func (c choice) seeds(n uint64, failed []uint64) (seeds []uint64) {
	for i := range n {
		seeds = append(seeds, c.seed+i)
	}
	if c.given {
		return seeds
	}
	return append(seeds, failed...)
}
