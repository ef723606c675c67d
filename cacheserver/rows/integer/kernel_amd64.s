// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// ARGUMENTS loads a kernel's arguments: DI and SI are the destination and the source, CX is the number of values.
#define ARGUMENTS \
	MOVQ dst+0(FP), DI \
	MOVQ src+8(FP), SI \
	MOVQ n+16(FP), CX

// NEXT goes to label for the next sixteen values.
#define NEXT(FROM, TO, LABEL) \
	ADDQ $(16*FROM), SI \
	ADDQ $(16*TO), DI   \
	SUBQ $16, CX        \
	JGT  LABEL          \
	VZEROUPPER          \
	RET

// WIDEN32 converts sixteen values of SIZE bytes, by the instruction TAKE, to 32 bits, and goes to label for the next.
#define WIDEN32(TAKE, SIZE, LABEL) \
	TAKE    0(SI), Y0          \
	TAKE    (8*SIZE)(SI), Y1   \
	VPADDD  Y15, Y0, Y0        \
	VPADDD  Y15, Y1, Y1        \
	VMOVDQU Y0, 0(DI)          \
	VMOVDQU Y1, 32(DI)         \
	ADDQ    $(16*SIZE), SI     \
	ADDQ    $64, DI            \
	SUBQ    $16, CX            \
	JGT     LABEL              \
	VZEROUPPER                 \
	RET

// WIDEN64 is WIDEN32 for 64 bits.
#define WIDEN64(TAKE, SIZE, LABEL) \
	TAKE    0(SI), Y0          \
	TAKE    (4*SIZE)(SI), Y1   \
	TAKE    (8*SIZE)(SI), Y2   \
	TAKE    (12*SIZE)(SI), Y3  \
	VPADDQ  Y15, Y0, Y0        \
	VPADDQ  Y15, Y1, Y1        \
	VPADDQ  Y15, Y2, Y2        \
	VPADDQ  Y15, Y3, Y3        \
	VMOVDQU Y0, 0(DI)          \
	VMOVDQU Y1, 32(DI)         \
	VMOVDQU Y2, 64(DI)         \
	VMOVDQU Y3, 96(DI)         \
	ADDQ    $(16*SIZE), SI     \
	ADDQ    $128, DI           \
	SUBQ    $16, CX            \
	JGT     LABEL              \
	VZEROUPPER                 \
	RET

// func widen8to16(dst, src unsafe.Pointer, n int, add int64)
TEXT ·widen8to16(SB), NOSPLIT, $0-32
	ARGUMENTS
	MOVQ         add+24(FP), AX
	MOVQ         AX, X15
	VPBROADCASTW X15, Y15

loop:
	VPMOVZXBW (SI), Y0
	VPADDW    Y15, Y0, Y0
	VMOVDQU   Y0, (DI)
	NEXT(1, 2, loop)

// func widen8to32(dst, src unsafe.Pointer, n int, add int64)
TEXT ·widen8to32(SB), NOSPLIT, $0-32
	ARGUMENTS
	VPBROADCASTD add+24(FP), Y15

loop:
	WIDEN32(VPMOVZXBD, 1, loop)

// func widen16to32(dst, src unsafe.Pointer, n int, add int64)
TEXT ·widen16to32(SB), NOSPLIT, $0-32
	ARGUMENTS
	VPBROADCASTD add+24(FP), Y15

loop:
	WIDEN32(VPMOVZXWD, 2, loop)

// func widen8to64(dst, src unsafe.Pointer, n int, add int64)
TEXT ·widen8to64(SB), NOSPLIT, $0-32
	ARGUMENTS
	VPBROADCASTQ add+24(FP), Y15

loop:
	WIDEN64(VPMOVZXBQ, 1, loop)

// func widen16to64(dst, src unsafe.Pointer, n int, add int64)
TEXT ·widen16to64(SB), NOSPLIT, $0-32
	ARGUMENTS
	VPBROADCASTQ add+24(FP), Y15

loop:
	WIDEN64(VPMOVZXWQ, 2, loop)

// func widen32to64(dst, src unsafe.Pointer, n int, add int64)
TEXT ·widen32to64(SB), NOSPLIT, $0-32
	ARGUMENTS
	VPBROADCASTQ add+24(FP), Y15

loop:
	WIDEN64(VPMOVZXDQ, 4, loop)

// TAKE32 loads sixteen values of 32 bits plus the number to add.
#define TAKE32 \
	VPADDD 0(SI), Y15, Y0 \
	VPADDD 32(SI), Y15, Y1

// TAKE64 loads sixteen values of 64 bits plus the number to add, and keeps their low 32 bits in order.
#define TAKE64 \
	VPADDQ  0(SI), Y15, Y0     \
	VPADDQ  32(SI), Y15, Y2    \
	VPADDQ  64(SI), Y15, Y1    \
	VPADDQ  96(SI), Y15, Y3    \
	VSHUFPS $0x88, Y2, Y0, Y0  \
	VSHUFPS $0x88, Y3, Y1, Y1  \
	VPERMQ  $0xd8, Y0, Y0      \
	VPERMQ  $0xd8, Y1, Y1

// func narrow32to8(dst, src unsafe.Pointer, n int, add int64)
TEXT ·narrow32to8(SB), NOSPLIT, $0-32
	ARGUMENTS
	VPBROADCASTD add+24(FP), Y15

loop:
	TAKE32
	VPACKUSDW    Y1, Y0, Y0
	VPERMQ       $0xd8, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPACKUSWB    X1, X0, X0
	VMOVDQU      X0, (DI)
	NEXT(4, 1, loop)

// func narrow32to16(dst, src unsafe.Pointer, n int, add int64)
TEXT ·narrow32to16(SB), NOSPLIT, $0-32
	ARGUMENTS
	VPBROADCASTD add+24(FP), Y15

loop:
	TAKE32
	VPACKUSDW Y1, Y0, Y0
	VPERMQ    $0xd8, Y0, Y0
	VMOVDQU   Y0, (DI)
	NEXT(4, 2, loop)

// func narrow64to16(dst, src unsafe.Pointer, n int, add int64)
TEXT ·narrow64to16(SB), NOSPLIT, $0-32
	ARGUMENTS
	VPBROADCASTQ add+24(FP), Y15

loop:
	TAKE64
	VPACKUSDW Y1, Y0, Y0
	VPERMQ    $0xd8, Y0, Y0
	VMOVDQU   Y0, (DI)
	NEXT(8, 2, loop)

// func narrow64to32(dst, src unsafe.Pointer, n int, add int64)
TEXT ·narrow64to32(SB), NOSPLIT, $0-32
	ARGUMENTS
	VPBROADCASTQ add+24(FP), Y15

loop:
	TAKE64
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	NEXT(8, 4, loop)

// func extent32(out *[vectorBytes]byte, src unsafe.Pointer, n int)
TEXT ·extent32(SB), NOSPLIT, $0-24
	MOVQ    out+0(FP), DI
	MOVQ    src+8(FP), SI
	MOVQ    n+16(FP), CX
	VMOVDQU (SI), Y0
	VMOVDQA Y0, Y1
	VMOVDQA Y0, Y2
	VMOVDQA Y0, Y3

loop:
	VMOVDQU (SI), Y4
	VMOVDQU 32(SI), Y5
	VPMINSD Y4, Y0, Y0
	VPMAXSD Y4, Y1, Y1
	VPMINSD Y5, Y2, Y2
	VPMAXSD Y5, Y3, Y3
	ADDQ    $64, SI
	SUBQ    $16, CX
	JGT     loop
	VPMINSD Y2, Y0, Y0
	VPMAXSD Y3, Y1, Y1
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	VZEROUPPER
	RET

// func extent64(out *[vectorBytes]byte, src unsafe.Pointer, n int)
TEXT ·extent64(SB), NOSPLIT, $0-24
	MOVQ    out+0(FP), DI
	MOVQ    src+8(FP), SI
	MOVQ    n+16(FP), CX
	VMOVDQU (SI), Y0
	VMOVDQA Y0, Y1
	VMOVDQA Y0, Y2
	VMOVDQA Y0, Y3

loop:
	VMOVDQU   (SI), Y4
	VMOVDQU   32(SI), Y5
	VPCMPGTQ  Y4, Y0, Y6     // least > value
	VBLENDVPD Y6, Y4, Y0, Y0
	VPCMPGTQ  Y1, Y4, Y7     // value > greatest
	VBLENDVPD Y7, Y4, Y1, Y1
	VPCMPGTQ  Y5, Y2, Y8
	VBLENDVPD Y8, Y5, Y2, Y2
	VPCMPGTQ  Y3, Y5, Y9
	VBLENDVPD Y9, Y5, Y3, Y3
	ADDQ      $64, SI
	SUBQ      $8, CX
	JGT       loop
	VPCMPGTQ  Y2, Y0, Y6
	VBLENDVPD Y6, Y2, Y0, Y0
	VPCMPGTQ  Y1, Y3, Y7
	VBLENDVPD Y7, Y3, Y1, Y1
	VMOVDQU   Y0, (DI)
	VMOVDQU   Y1, 32(DI)
	VZEROUPPER
	RET
