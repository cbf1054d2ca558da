// Fragments of 16-bit and tf32 matrices: how a warp reads them and multiplies with them on the
// tensor cores (sm_80), each with a plain C++ twin for the simulator.
//
// An instruction multiplies 16 rows of A and 8 columns of B, each 32 bytes: 16 16-bit elements
// or 8 of 32. Lane 4 g + t holds of A's rows g and g + 8 the words t and t + 4, a[2 x + h] for row
// g + 8 h and word t + 4 x; of B's column g the same two words, b0 and b1; and of the sums
// c[2 h + e] = C(g + 8 h, 2 t + e) (PTX ISA 9.0, "Matrix Fragments for mma.m16n8k16").

#include "common/half_types.cuh"

#ifndef PYMM_SIMULATOR

// Four matrices of 8 x 16 bytes; lane 8 i + r says where row r of matrix i lies. r[i] is the word t
// of row g of matrix i, or if ACROSS its elements (2 t, g) and (2 t + 1, g), of 16 bits.
template <bool ACROSS>
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* row) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (ACROSS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address));
}

// A float rounded to tf32, its last 13 bits 0: to nearest, ties away from 0.
// Without this the tensor cores would cut those bits off.
__device__ __forceinline__ unsigned rounded(unsigned x) {
    unsigned result;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(__uint_as_float(x)));
    return result;
}

// c += a b by one warp, in float32.
#define MMA(TYPE, DEPTH, NAME) \
    __device__ __forceinline__ void mma(TYPE, float (&c)[4], const unsigned (&a)[4], unsigned b0, \
                                        unsigned b1) { \
        asm("mma.sync.aligned.m16n8k" #DEPTH ".row.col.f32." NAME "." NAME \
            ".f32 " \
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)); \
    }
MMA(F16, 16, "f16")
MMA(BF16, 16, "bf16")
MMA(float, 8, "tf32")

#else

template <bool ACROSS>
__device__ void ldmatrix_x4(unsigned (&r)[4], const void* row) {
    struct alignas(16) Row {
        unsigned short numbers[8];
    };
    const unsigned lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        unsigned halves[2];
        for (int e = 0; e < 2; e++) {
            const unsigned r = ACROSS ? lane % 4 * 2 + e : lane / 4;
            const void* const from = __shfl_sync(~0u, row, i * 8 + r);
            const unsigned at = ACROSS ? lane / 4 : lane % 4 * 2 + e;
            halves[e] = static_cast<const Row*>(from)->numbers[at];
        }
        r[i] = halves[0] | halves[1] << 16;
    }
    __syncwarp();  // no lane goes on to write where another still reads
}

__device__ unsigned rounded(unsigned x) {
    const bool finite = (x & 0x7F800000u) != 0x7F800000u;
    return finite ? x + 0x1000u & ~0x1FFFu : x;
}

// The products of two words, exact in double precision.
template <class HALF>
__device__ double products(HALF, unsigned a, unsigned b) {
    double sum = 0;
    for (int shift = 0; shift < 32; shift += 16) {
        const HALF x{static_cast<unsigned short>(a >> shift)};
        const HALF y{static_cast<unsigned short>(b >> shift)};
        sum += static_cast<double>(widen(x)) * widen(y);
    }
    return sum;
}
__device__ double products(float, unsigned a, unsigned b) {
    return static_cast<double>(__uint_as_float(a & ~0x1FFFu)) * __uint_as_float(b & ~0x1FFFu);
}

// The simulator reads each word where the lane that holds it has it.
template <class TYPE>
__device__ void mma(TYPE type, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    struct Fragments {
        unsigned a[4], b[2];
    };
    const Fragments mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const Fragments* const* const of = pymm_sim::of_every_lane(mine);
    const unsigned lane = threadIdx.x % 32;
    double sum[4] = {c[0], c[1], c[2], c[3]};
    for (unsigned t = 0; t < 4; t++) {
        const unsigned(&left)[4] = of[lane / 4 * 4 + t]->a;
        for (int i = 0; i < 4; i++) {
            const unsigned(&right)[2] = of[(lane % 4 * 2 + i % 2) * 4 + t]->b;
            for (int x = 0; x < 2; x++) sum[i] += products(type, left[2 * x + i / 2], right[x]);
        }
    }
    __syncwarp();  // no lane's words change before all have been read
    for (int i = 0; i < 4; i++) c[i] = static_cast<float>(sum[i]);
}

#endif
