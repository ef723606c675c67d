// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// The lookup algorithm of J. Keiser and D. Lemire, "Validating UTF-8 In Less Than One Instruction Per Byte" (2021): each table maps
// half a byte to the set of errors that it allows; an error is in the sets of the previous byte's halves and of the byte's first half.
// An eighth bit stands for two continuation bytes in a row, which are an error unless a longer character requires them.

// by the first half of the previous byte
DATA first<>+0(SB)/8, $0x0202020202020202
DATA first<>+8(SB)/8, $0x4915012180808080
GLOBL first<>(SB), RODATA|NOPTR, $16

// by the second half of the previous byte
DATA second<>+0(SB)/8, $0xcbcbcb8b8383a3e7
DATA second<>+8(SB)/8, $0xcbcbdbcbcbcbcbcb
GLOBL second<>(SB), RODATA|NOPTR, $16

// by the first half of the byte
DATA next<>+0(SB)/8, $0x0101010101010101
DATA next<>+8(SB)/8, $0x01010101babaaee6
GLOBL next<>(SB), RODATA|NOPTR, $16

// func validBlocks(data *byte, n int) bool
TEXT ·validBlocks(SB), NOSPLIT, $0-17
	MOVQ data+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTI128 first<>(SB), Y10
	VBROADCASTI128 second<>(SB), Y11
	VBROADCASTI128 next<>(SB), Y12
	MOVL $0x0f, AX
	MOVQ AX, X13
	VPBROADCASTB X13, Y13
	MOVL $0x80, AX
	MOVQ AX, X14
	VPBROADCASTB X14, Y14
	MOVL $0x60, AX // 0xe0 - 0x80
	MOVQ AX, X8
	VPBROADCASTB X8, Y8
	MOVL $0x70, AX // 0xf0 - 0x80
	MOVQ AX, X9
	VPBROADCASTB X9, Y9
	VPXOR Y6, Y6, Y6 // errors
	VPXOR Y7, Y7, Y7 // the previous block

loop:
	VMOVDQU (SI), Y0
	VPERM2I128 $0x21, Y0, Y7, Y1
	VPALIGNR $15, Y1, Y0, Y2 // the previous byte of each
	VPALIGNR $14, Y1, Y0, Y3 // the one before it
	VPALIGNR $13, Y1, Y0, Y4

	VPSRLW $4, Y2, Y5
	VPAND Y13, Y5, Y5
	VPSHUFB Y5, Y10, Y5
	VPAND Y13, Y2, Y2
	VPSHUFB Y2, Y11, Y2
	VPAND Y2, Y5, Y5
	VPSRLW $4, Y0, Y2
	VPAND Y13, Y2, Y2
	VPSHUFB Y2, Y12, Y2
	VPAND Y2, Y5, Y5

	// 0x80 where a character of three or four bytes requires a second continuation byte or a third
	VPSUBUSB Y8, Y3, Y3
	VPSUBUSB Y9, Y4, Y4
	VPOR Y3, Y4, Y3
	VPAND Y14, Y3, Y3
	VPXOR Y3, Y5, Y5
	VPOR Y5, Y6, Y6

	VMOVDQA Y0, Y7
	ADDQ $32, SI
	SUBQ $32, CX
	JNZ loop

	VPTEST Y6, Y6
	SETEQ ret+16(FP)
	VZEROUPPER
	RET
