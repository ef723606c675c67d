// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

// Reasons of conditions, besides those of pods that can't start (ImagePullBackOff, Unschedulable, OOMKilled, ...).
const (
	ReasonStarting    = "PodsStarting"
	ReasonUnreachable = "HeadUnreachable"
	ReasonPlanning    = "Planning"
	ReasonLoading     = "Loading"
	ReasonLoaded      = "Loaded"
	ReasonReloading   = "Reloading"
	ReasonFailed      = "LoadFailed"
	ReasonReleased    = "Released"
	ReasonNameTaken   = "NameTaken"
	ReasonRefused     = "Refused"

	// Reasons of Progressing and Degraded when they are False.
	ReasonLoadComplete  = "LoadComplete"
	ReasonStopped       = "Stopped"
	ReasonNotLoaded     = "NotLoaded"
	ReasonAllNodesServe = "AllNodesServe"
)
