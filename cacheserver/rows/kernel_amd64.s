// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func prefetch(ps []piece, src []unsafe.Pointer, width int)
//
// A piece is start int64, n int32, src int32. It lies in [AX, DX]. Its lines are asked into the L2 cache: into the L1 cache they take the
// few places that a core has for misses of that one, and the loop waits for each to become free.
TEXT ·prefetch(SB), NOSPLIT, $0-56
	MOVQ ps_base+0(FP), SI
	MOVQ ps_len+8(FP), CX
	MOVQ src_base+24(FP), DI
	MOVQ width+48(FP), R8
	MOVQ $4096, R9

piece:
	DECQ    CX
	JLT     done
	MOVQ    0(SI), AX
	MOVLQSX 8(SI), DX
	MOVLQSX 12(SI), BX
	ADDQ    $16, SI
	TESTQ   BX, BX
	JLT     piece // nulls
	IMULQ   R8, AX
	IMULQ   R8, DX
	ADDQ    (DI)(BX*8), AX
	CMPQ    DX, R9
	CMOVQGT R9, DX // of a longer one the processor finds the rest
	LEAQ    -1(AX)(DX*1), DX

line:
	PREFETCHT1 (AX)
	ADDQ $64, AX
	CMPQ AX, DX
	JLT  line
	PREFETCHT1 (DX)
	JMP  piece

done:
	RET

// STORE64 writes four rows of w x y z, which lie in Y0 to Y3 as transpose64 loads them, to four columns.
#define STORE64(W, X, Y, Z) \
	VPUNPCKLQDQ Y1, Y0, Y4     \
	VPUNPCKHQDQ Y1, Y0, Y5     \
	VPUNPCKLQDQ Y3, Y2, Y6     \
	VPUNPCKHQDQ Y3, Y2, Y7     \
	VMOVDQU     Y4, (W)(DI*1)  \
	VMOVDQU     Y5, (X)(DI*1)  \
	VMOVDQU     Y6, (Y)(DI*1)  \
	VMOVDQU     Y7, (Z)(DI*1)

// func transpose64(dst *[4]unsafe.Pointer, from unsafe.Pointer, stride, n int)
//
// Four rows of w x y z at a time: two loads a row; rows 0 and 2, and 1 and 3, side by side.
TEXT ·transpose64(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), AX
	MOVQ from+8(FP), SI
	MOVQ stride+16(FP), DX
	MOVQ n+24(FP), CX
	MOVQ 0(AX), R8
	MOVQ 8(AX), R9
	MOVQ 16(AX), R10
	MOVQ 24(AX), R11
	LEAQ (DX)(DX*2), BX
	MOVQ DX, R15
	SHLQ $6, R15      // what is prefetched is 64 rows ahead
	XORQ DI, DI

four:
	LEAQ       (SI)(R15*1), R12
	PREFETCHT0 (R12)
	PREFETCHT0 (R12)(DX*1)
	PREFETCHT0 (R12)(DX*2)
	PREFETCHT0 (R12)(BX*1)

	LEAQ        (SI)(DX*2), AX
	VMOVDQU     0(SI), X0
	VINSERTI128 $1, 0(AX), Y0, Y0        // w0 x0 w2 x2
	VMOVDQU     0(SI)(DX*1), X1
	VINSERTI128 $1, 0(AX)(DX*1), Y1, Y1  // w1 x1 w3 x3
	VMOVDQU     16(SI), X2
	VINSERTI128 $1, 16(AX), Y2, Y2       // y0 z0 y2 z2
	VMOVDQU     16(SI)(DX*1), X3
	VINSERTI128 $1, 16(AX)(DX*1), Y3, Y3 // y1 z1 y3 z3
	LEAQ        (SI)(DX*4), SI

	STORE64(R8, R9, R10, R11)
	ADDQ        $32, DI
	SUBQ        $4, CX
	JGT         four
	VZEROUPPER
	RET

// func transpose32(dst *[4]unsafe.Pointer, from unsafe.Pointer, stride, n int)
//
// Eight rows of w x y z at a time: one load a row; row i beside row i + 4.
TEXT ·transpose32(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), AX
	MOVQ from+8(FP), SI
	MOVQ stride+16(FP), DX
	MOVQ n+24(FP), CX
	MOVQ 0(AX), R8
	MOVQ 8(AX), R9
	MOVQ 16(AX), R10
	MOVQ 24(AX), R11
	LEAQ (DX)(DX*2), BX
	MOVQ DX, R15
	SHLQ $6, R15
	XORQ DI, DI

eight:
	LEAQ       (SI)(R15*1), R12
	PREFETCHT0 (R12)
	PREFETCHT0 (R12)(DX*1)
	PREFETCHT0 (R12)(DX*2)
	PREFETCHT0 (R12)(BX*1)
	LEAQ       (R12)(DX*4), R12
	PREFETCHT0 (R12)
	PREFETCHT0 (R12)(DX*1)
	PREFETCHT0 (R12)(DX*2)
	PREFETCHT0 (R12)(BX*1)

	LEAQ        (SI)(DX*4), AX
	VMOVDQU     (SI), X0
	VINSERTI128 $1, (AX), Y0, Y0
	VMOVDQU     (SI)(DX*1), X1
	VINSERTI128 $1, (AX)(DX*1), Y1, Y1
	VMOVDQU     (SI)(DX*2), X2
	VINSERTI128 $1, (AX)(DX*2), Y2, Y2
	VMOVDQU     (SI)(BX*1), X3
	VINSERTI128 $1, (AX)(BX*1), Y3, Y3
	LEAQ        (AX)(DX*4), SI

	VPUNPCKLDQ  Y1, Y0, Y4 // w0 w1 x0 x1, w4 w5 x4 x5
	VPUNPCKHDQ  Y1, Y0, Y5 // y0 y1 z0 z1, ...
	VPUNPCKLDQ  Y3, Y2, Y6 // w2 w3 x2 x3, ...
	VPUNPCKHDQ  Y3, Y2, Y7

	VPUNPCKLQDQ Y6, Y4, Y0
	VPUNPCKHQDQ Y6, Y4, Y1
	VPUNPCKLQDQ Y7, Y5, Y2
	VPUNPCKHQDQ Y7, Y5, Y3
	VMOVDQU     Y0, (R8)(DI*1)
	VMOVDQU     Y1, (R9)(DI*1)
	VMOVDQU     Y2, (R10)(DI*1)
	VMOVDQU     Y3, (R11)(DI*1)
	ADDQ        $32, DI
	SUBQ        $8, CX
	JGT         eight
	VZEROUPPER
	RET

// HALF copies four values of each of four rows, from byte AT of a row on, to four columns, as transpose64 does.
#define HALF(AT, C0, C1, C2, C3) \
	VMOVDQU     (AT+0)(SI), X0           \
	VINSERTI128 $1, (AT+128)(SI), Y0, Y0 \
	VMOVDQU     (AT+64)(SI), X1          \
	VINSERTI128 $1, (AT+192)(SI), Y1, Y1 \
	VMOVDQU     (AT+16)(SI), X2          \
	VINSERTI128 $1, (AT+144)(SI), Y2, Y2 \
	VMOVDQU     (AT+80)(SI), X3          \
	VINSERTI128 $1, (AT+208)(SI), Y3, Y3 \
	STORE64(C0, C1, C2, C3)

// func transposeLines(dst *[8]unsafe.Pointer, from unsafe.Pointer, n int)
//
// Four rows at a time, so that a row's cache line is read once for all of its columns. What is prefetched is 64 rows ahead.
TEXT ·transposeLines(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), AX
	MOVQ from+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ 0(AX), R8
	MOVQ 8(AX), R9
	MOVQ 16(AX), R10
	MOVQ 24(AX), R11
	MOVQ 32(AX), R12
	MOVQ 40(AX), R13
	MOVQ 48(AX), BX
	MOVQ 56(AX), DX
	XORQ DI, DI

lines:
	PREFETCHT0 4096(SI)
	PREFETCHT0 4160(SI)
	PREFETCHT0 4224(SI)
	PREFETCHT0 4288(SI)
	HALF(0, R8, R9, R10, R11)
	HALF(32, R12, R13, BX, DX)
	ADDQ       $256, SI
	ADDQ       $32, DI
	SUBQ       $4, CX
	JGT        lines
	VZEROUPPER
	RET
