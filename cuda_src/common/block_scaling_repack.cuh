// Copies of float32 matrices as pairs of float16: high + low, 11 bits each, of elements that a
// power of two has brought near the top of float16's range. Along k each 64 elements of a row have
// a power of their own, such that the largest lies from 2^14 to 2^15. Elements down to 2^-17 of
// that keep all their 22 bits, smaller ones lose at most 2^-39 of it.
//
// Of 64 such rows the powers are alike if their largest elements differ by less than 2^9: the one
// of the largest then, which takes at most 8 of those 17 and 39 from the others. Whoever multiplies
// has one number for 64 then, and is told so: inverse powers that are alike are negative.
//
// What high high + high low + low high makes of an infinite number is what IEEE 754 makes of it:
// its low term is infinite, its high term the smallest number of its sign. All products of a row
// with an infinite number or NaN are one or the other, whatever its other elements are: of these
// the signs are kept, with a power of 1. A number that is rounded to zero is zero there, too: times
// infinity NaN. (Were its high term the smallest number, taken back by its low one, the product
// with the other's low term would stay, which may be many times that of the two elements.)

#include "common/half_types.cuh"
#include "common/dependent_launch.cuh"
#include "common/split_check.cuh"

namespace scaling {
constexpr int SIDE = 64;  // of the square that a block copies: elements with one power of two
constexpr int SQUARE_PITCH = SIDE + 1;  // in shared memory: rows begin in different banks
constexpr int WIDE = 4;                 // elements that a thread has of a row
constexpr int TOGETHER = SIDE / WIDE;   // threads of one row
constexpr int DOWN = 256 / TOGETHER, PASSES = SIDE / DOWN;  // rows of a block at a time
// Exponents as float32 keeps them: a number's and its power's together, and the largest power's.
constexpr unsigned TOP = 127 + 127 + 14, MOST = 253;
#if GATE == 1
#define RESIDENT 5  // blocks of a multiprocessor: more would spill registers
constexpr unsigned ALIKE = 3;  // most between exponents of rows that get one power
#else
#define RESIDENT 6
constexpr unsigned ALIKE = 8;
#endif
constexpr unsigned INFINITE = 0x7F800000;  // as bits; those of NaN are more
constexpr float SMALLEST = 0x1p-24f;       // number of F16

// As in common/repack.cuh. `to` are two matrices for one, high and low; behind those of all lie the
// inverse powers: a row of elements for each 64 of k, one for each row of the matrix.
struct Copy {
    const float* from;
    F16* to;
    long long ld, batch, pitch;
    unsigned rows, columns, count, turned;

    __device__ __forceinline__ unsigned across() const { return (columns + SIDE - 1) / SIDE; }
    __device__ __forceinline__ unsigned down() const { return (rows + SIDE - 1) / SIDE; }
};

__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

// The largest of the elements of a row, as bits: NaN and infinite ones are larger than all others.
__device__ __forceinline__ unsigned largest(const float4& x) {
    unsigned most = max(max(magnitude(x.x), magnitude(x.y)), max(magnitude(x.z), magnitude(x.w)));
#pragma unroll
    for (int lanes = 1; lanes < TOGETHER; lanes *= 2)
        most = max(most, __shfl_xor_sync(~0u, most, lanes));
    return most;
}

// High terms of two scaled elements, and what is left.
__device__ __forceinline__ float finite(float x) {
    return magnitude(x) == INFINITE ? copysignf(SMALLEST, x) : x;
}
__device__ __forceinline__ unsigned high(float x, float y) {
    return narrow(F16{}, finite(x), finite(y));
}
__device__ __forceinline__ unsigned rest(float x, float y, unsigned high) {
    const F16 first{static_cast<unsigned short>(high)};
    const F16 second{static_cast<unsigned short>(high >> 16)};
    return narrow(F16{}, x - widen(first), y - widen(second));
}
// Of a row with an infinite number or NaN these, and the signs of the others; the power is 1.
__device__ __forceinline__ float sign_of(float x) {
    return magnitude(x) - 1 < INFINITE - 1 ? copysignf(SMALLEST, x) : x;
}
__device__ __forceinline__ void keep_sign_bits(float4& x) {
    x = {sign_of(x.x), sign_of(x.y), sign_of(x.z), sign_of(x.w)};
}

// Whether the rows of a square are alike, but for those that are zero: then `most`, the largest
// number of each row of this thread, becomes that of all. They are not where one is infinite.
__device__ __forceinline__ bool alike(unsigned (&most)[PASSES]) {
    __shared__ unsigned larger[256 / 32], smaller[256 / 32];
    unsigned last = 0, first = ~0u;  // one less than the smallest: that of a zero row wraps round
#pragma unroll
    for (int p = 0; p < PASSES; p++) last = max(last, most[p]), first = min(first, most[p] - 1);
    last = max(last, __shfl_xor_sync(~0u, last, TOGETHER));
    first = min(first, __shfl_xor_sync(~0u, first, TOGETHER));
    if (threadIdx.x % 32 == 0) larger[threadIdx.x / 32] = last, smaller[threadIdx.x / 32] = first;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < 256 / 32; w++) last = max(last, larger[w]), first = min(first, smaller[w]);
    if (last >= INFINITE || (last >> 23) > ((first + 1) >> 23) + ALIKE) return false;
#pragma unroll
    for (int p = 0; p < PASSES; p++) most[p] = last;
    return true;
}

// Four elements of a row of the copy to their places, high and low; with the row's first ones goes
// the inverse of the power. They leave L2 first: copies of two 8192 x 8192 take 297 us, not 325.
__device__ __forceinline__ void store(const float4& x, unsigned most, bool alike, F16* to,
                                      long long behind, float* inverse) {
    const unsigned exponent = most >= INFINITE ? 127 : min(TOP - (most >> 23), MOST);
    const float power = __uint_as_float(exponent << 23);
    const float a = x.x * power, b = x.y * power, c = x.z * power, d = x.w * power;
    const uint2 terms = {high(a, b), high(c, d)};
    __stcs(reinterpret_cast<uint2*>(to), terms);
    __stcs(reinterpret_cast<uint2*>(to + behind), uint2{rest(a, b, terms.x), rest(c, d, terms.y)});
    const float found = __uint_as_float((254 - exponent) << 23);
    if (threadIdx.x % TOGETHER == 0) *inverse = alike ? -found : found;
}

// Four elements from x on, of which only `left` belong to the row, the rest zeros.
__device__ __forceinline__ float4 read(const float* x, unsigned left) {
    if (left >= WIDE && reinterpret_cast<unsigned long long>(x) % 16 == 0)
        return *reinterpret_cast<const float4*>(x);
    return {left > 0 ? x[0] : 0.0f, left > 1 ? x[1] : 0.0f, left > 2 ? x[2] : 0.0f,
            left > 3 ? x[3] : 0.0f};
}

// This thread's elements of the square at `from`: four along k for each of its rows of the copy.
// `rows` and `columns` are how many there are to the matrix's end. A turned matrix goes through
// `square`.
__device__ __forceinline__ void read_square(const Copy& copy, const float* from, unsigned rows,
                                            unsigned columns, float* square, float4 (&x)[PASSES]) {
    const unsigned row = threadIdx.x / TOGETHER, at = threadIdx.x % TOGETHER * WIDE;
    if (!copy.turned) {
#pragma unroll
        for (int p = 0; p < PASSES; p++)
            x[p] = row + p * DOWN < rows && at < columns
                       ? read(from + (row + p * DOWN) * copy.ld + at, columns - at)
                       : float4{0.0f, 0.0f, 0.0f, 0.0f};
        return;
    }
#pragma unroll 16
    for (unsigned v = threadIdx.x; v < SIDE * SIDE; v += 256) {
        const unsigned i = v / SIDE, j = v % SIDE;
        square[i * SQUARE_PITCH + j] = i < rows && j < columns ? from[i * copy.ld + j] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        const float* const line = square + at * SQUARE_PITCH + row + p * DOWN;
        x[p] = {line[0], line[SQUARE_PITCH], line[2 * SQUARE_PITCH], line[3 * SQUARE_PITCH]};
    }
}

#if GATE == 1
// Which rows of 64 elements are split exactly enough (docs/explanation/numerics.md has the bound):
// those of zeros, and those whose largest element M is at least 2^-112, so that 2^126 brings it to
// 2^14, and of which 5/8 of the elements are M / 64 or more and 1/16 of them M / 8 or more. If the
// last elements of a row are few, this is asked of the 64 before instead, with M the largest of
// both.
constexpr unsigned LEAST = 127 - 112, FEW = 32;

struct Share {
    unsigned below, part, of;  // `part` of `of` elements are M 2^-below or more
};

// Whether fewer elements of one of this thread's rows are that large, `all` of which count.
__device__ __forceinline__ bool lacks(const Share& share, const float4 (&x)[PASSES],
                                      const unsigned (&most)[PASSES], unsigned all) {
    static_assert(PASSES == 4, "a word holds the counts of all rows of a thread, a byte each");
    unsigned counts = 0;
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        const unsigned least = max(most[p], (share.below << 23) + 1) - (share.below << 23);
        counts += ((magnitude(x[p].x) >= least) + (magnitude(x[p].y) >= least) +
                   (magnitude(x[p].z) >= least) + (magnitude(x[p].w) >= least))
                  << 8 * p;
    }
#pragma unroll
    for (int lanes = 1; lanes < TOGETHER; lanes *= 2)
        counts += __shfl_xor_sync(~0u, counts, lanes);
    bool any = false;
#pragma unroll
    for (int p = 0; p < PASSES; p++)
        any |= most[p] > 0 && share.of * (counts >> 8 * p & 255) < share.part * all;
    return any;
}
__device__ __forceinline__ bool lacks(const float4 (&x)[PASSES], const unsigned (&most)[PASSES],
                                      unsigned all) {
    const bool close = lacks({6, 5, 8}, x, most, all), large = lacks({3, 1, 16}, x, most, all);
    return close || large;
}

// Of the operand that is not split here: a product of one matrix with itself has none, another one
// was split before, and comes with its verdict.
__device__ __forceinline__ void note_other(Verdict* verdict, const Copy& b) {
    const Verdict* const known = reinterpret_cast<const Verdict*>(b.from);
    if (known->refused != 0) atomicOr(&verdict->refused, 1u);
    atomicMax(&verdict->largest[1], known->largest[0]);
}
#endif
}  // namespace scaling

// One block for each square of both batches. A row of the copy ends with zeros to a whole square.
extern "C" __global__ void __launch_bounds__(256, RESIDENT)
    repack(scaling::Copy a, scaling::Copy b GATE_PARAMETER) {
    using namespace scaling;
    __shared__ float square[SIDE * SQUARE_PITCH];
    griddepcontrol_launch_dependents();
    const unsigned before = a.across() * a.down() * a.count;
    const bool second = blockIdx.x >= before;
    const Copy copy = second ? b : a;
    const unsigned id = blockIdx.x - (second ? before : 0);
    const unsigned across = copy.across(), down = copy.down(), matrix = id / across / down;
    const unsigned i0 = id / across % down * SIDE, j0 = id % across * SIDE;
    const unsigned rows = copy.rows - i0, columns = copy.columns - j0;  // to the matrix's end
    const float* const from = copy.from + matrix * copy.batch + i0 * copy.ld + j0;
    // Of the copy: its rows, the first row of this square, and the square along k.
    const unsigned made = copy.turned ? copy.columns : copy.rows, first = copy.turned ? j0 : i0;
    const unsigned deep = (copy.turned ? i0 : j0) / SIDE, blocks = copy.turned ? down : across;
    const unsigned left = copy.turned ? columns : rows;
    const long long behind = made * copy.pitch;
    const unsigned row = threadIdx.x / TOGETHER, at = threadIdx.x % TOGETHER * WIDE;
    F16* const to = copy.to + matrix * 2 * behind + (first + row) * copy.pitch + deep * SIDE + at;
    float* const inverse = reinterpret_cast<float*>(copy.to + copy.count * 2 * behind) +
                           (1ll * matrix * blocks + deep) * ((made + 31) / 32 * 32) + first + row;
    float4 x[PASSES];  // all are loaded before the first is stored
    read_square(copy, from, rows, columns, square, x);
    unsigned most[PASSES];
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        most[p] = largest(x[p]);
        if (most[p] >= INFINITE) keep_sign_bits(x[p]);
    }
#if GATE == 1
    __shared__ unsigned tops[256 / 32];
    const unsigned along = copy.turned ? rows : columns, kept = along < SIDE ? along : SIDE;
    bool bad = false;
#pragma unroll
    for (int p = 0; p < PASSES; p++)
        bad |= most[p] > 0 && (most[p] >= INFINITE || most[p] >> 23 < LEAST);
    if (kept >= FEW) {
        bad |= lacks(x, most, kept);
    } else if (deep > 0) {
        const long long step = copy.turned ? copy.ld : 1;
        float4 previous[PASSES];
        unsigned larger[PASSES];
        if (copy.turned) __syncthreads();  // all have read what was in the square
        read_square(copy, from - SIDE * step, copy.turned ? SIDE : rows,
                    copy.turned ? columns : SIDE, square, previous);
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            const unsigned there_most = largest(previous[p]);  // of all lanes: shuffles
            larger[p] = most[p] == 0 ? 0 : max(most[p], there_most);
        }
        bad |= lacks(previous, larger, SIDE);
    }
    if (__any_sync(~0u, bad) && threadIdx.x % 32 == 0) atomicOr(&gate.verdict->refused, 1u);
    unsigned top = max(max(most[0], most[1]), max(most[2], most[3]));
    top = max(top, __shfl_xor_sync(~0u, top, TOGETHER));
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
#endif
    const bool same = alike(most);
#if GATE == 1
    if (threadIdx.x == 0) {
        for (unsigned w = 1; w < 256 / 32; w++) top = max(top, tops[w]);
        atomicMax(&gate.verdict->largest[second], top >> 23);
        if (b.count == 0 && b.from == nullptr) atomicMax(&gate.verdict->largest[1], top >> 23);
        if (b.count == 0 && b.from != nullptr && blockIdx.x == 0) note_other(gate.verdict, b);
    }
#endif
#pragma unroll
    for (int p = 0; p < PASSES; p++)
        if (row + p * DOWN < left)
            store(x[p], most[p], same, to + p * DOWN * copy.pitch, behind, inverse + p * DOWN);
}
