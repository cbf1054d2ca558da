// Copies of 16-bit matrices with rows at any even address to rows at multiples of 16 bytes.

// Eight elements from x on, of which only `left` belong to the row, the rest zeros. Read as words
// of 4 bytes where all of those lie within the row.
__device__ __forceinline__ uint4 eight(const REAL* x, bool first, unsigned left) {
    unsigned words[5] = {};
    if (!first && left > 8) {
        const bool odd = reinterpret_cast<unsigned long long>(x) % 4 != 0;
        const unsigned* const from = reinterpret_cast<const unsigned*>(x - odd);
#pragma unroll
        for (int i = 0; i < 5; i++) words[i] = i < 4 || odd ? from[i] : 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (odd) words[i] = words[i] >> 16 | words[i + 1] << 16;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < left) words[i / 2] |= unsigned(x[i].bits) << i % 2 * 16;
    }
    return {words[0], words[1], words[2], words[3]};
}

// A stack of `count` matrices to be copied to rows `pitch` elements apart, a multiple of 8.
struct Copy {
    const REAL* from;
    REAL* to;
    long long ld, batch, pitch;
    unsigned rows, columns, count, unused;
};

extern "C" __global__ void __launch_bounds__(256) repack(Copy a, Copy b) {
    const bool second = blockIdx.z >= a.count;
    const Copy copy = second ? b : a;
    const unsigned matrix = blockIdx.z - (second ? a.count : 0);
    const unsigned column = (blockIdx.x * 32 + threadIdx.x) * 8;
    if (column >= copy.columns) return;
    const REAL* const from = copy.from + matrix * copy.batch + column;
    REAL* const to = copy.to + 1ll * matrix * copy.rows * copy.pitch + column;
    for (unsigned row = blockIdx.y * 8 + threadIdx.y; row < copy.rows; row += gridDim.y * 8)
        *reinterpret_cast<uint4*>(to + row * copy.pitch) =
            eight(from + row * copy.ld, column == 0, copy.columns - column);
}
