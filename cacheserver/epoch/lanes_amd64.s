// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

#include "go_asm.h"
#include "textflag.h"

// One round of four indices: to ^= ((from ^ key) * multiplier >> 32) & mask, modulo 2^64.
//
// With from ^ key = h<<32 + l, and the multiplier M likewise, bits 32 to 63 of the product are
// (l*Ml >> 32) + l*Mh + h*Ml. from has less than 32 bits, so h is the key's and the last term the round's.
// Y8 key, Y9 last term, Y14 Ml, Y15 Mh.
#define ROUND(from, to, mask) \
	VPXOR    from, Y8, Y10   \
	VPMULUDQ Y10, Y15, Y11   \
	VPMULUDQ Y10, Y14, Y10   \
	VPSRLQ   $32, Y10, Y10   \
	VPADDQ   Y11, Y10, Y10   \
	VPADDQ   Y9, Y10, Y10    \
	VPAND    mask, Y10, Y10  \
	VPXOR    Y10, to, to

// func forwardLanes(p *Permutation, xs []uint64)
//
// Sixteen indices at a time: Y0 to Y3 are left halves, Y4 to Y7 right ones, Y12 and Y13 their masks.
TEXT ·forwardLanes(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), DI
	MOVQ xs_base+8(FP), SI
	MOVQ xs_len+16(FP), CX

	VPBROADCASTQ Permutation_hi(DI), Y12
	VPBROADCASTQ Permutation_lo(DI), Y13
	MOVL         $0xD6E8FEB8, AX // multiplier>>32
	VMOVQ        AX, X15
	VPBROADCASTQ X15, Y15
	MOVL         $0x6659FD93, AX // multiplier
	VMOVQ        AX, X14
	VPBROADCASTQ X14, Y14

sixteen:
	VMOVQ   Permutation_low(DI), X11
	VMOVDQU 0(SI), Y4
	VMOVDQU 32(SI), Y5
	VMOVDQU 64(SI), Y6
	VMOVDQU 96(SI), Y7
	VPSRLQ  X11, Y4, Y0
	VPSRLQ  X11, Y5, Y1
	VPSRLQ  X11, Y6, Y2
	VPSRLQ  X11, Y7, Y3
	VPAND   Y13, Y4, Y4
	VPAND   Y13, Y5, Y5
	VPAND   Y13, Y6, Y6
	VPAND   Y13, Y7, Y7

	LEAQ Permutation_keys(DI), AX
	LEAQ Permutation_carries(DI), BX
	MOVQ $4, DX

rounds:
	VPBROADCASTQ 0(AX), Y8
	VPBROADCASTQ 0(BX), Y9
	ROUND(Y4, Y0, Y12)
	ROUND(Y5, Y1, Y12)
	ROUND(Y6, Y2, Y12)
	ROUND(Y7, Y3, Y12)
	VPBROADCASTQ 8(AX), Y8
	VPBROADCASTQ 8(BX), Y9
	ROUND(Y0, Y4, Y13)
	ROUND(Y1, Y5, Y13)
	ROUND(Y2, Y6, Y13)
	ROUND(Y3, Y7, Y13)
	ADDQ $16, AX
	ADDQ $16, BX
	DECQ DX
	JNZ  rounds

	VMOVQ   Permutation_low(DI), X11
	VPSLLQ  X11, Y0, Y0
	VPSLLQ  X11, Y1, Y1
	VPSLLQ  X11, Y2, Y2
	VPSLLQ  X11, Y3, Y3
	VPOR    Y4, Y0, Y0
	VPOR    Y5, Y1, Y1
	VPOR    Y6, Y2, Y2
	VPOR    Y7, Y3, Y3
	VMOVDQU Y0, 0(SI)
	VMOVDQU Y1, 32(SI)
	VMOVDQU Y2, 64(SI)
	VMOVDQU Y3, 96(SI)
	ADDQ    $128, SI
	SUBQ    $16, CX
	JGT     sixteen
	VZEROUPPER
	RET
