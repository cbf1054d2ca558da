// Float32 in plain multiply-adds: the main loop, and the kernel around it. It is the same however
// the tiles come. The kernel file defines, behind common/tma_f32_ring.cuh,
//
//     Maps                the tensor maps
//     FULL_ARRIVALS       arrivals at the barrier "full" of a stage
//     LOADING_PARAMETERS  parameters of the kernel behind `parts`, each after a comma
//     PREPARE_LOADING     what thread 0 does first
//     LOAD                what the four warps do that bring tiles

// The T elements of one lane from a row of a tile: vectors, SPAN vectors apart.
template <int T, int SPAN>
__device__ __forceinline__ void read_fragment(float (&fragment)[T], unsigned row) {
#pragma unroll
    for (int i = 0; i < T; i += VECTOR) {
        const float4 v = *static_cast<const float4*>(__cvta_shared_to_generic(row + i * SPAN * 4));
        fragment[i] = v.x, fragment[i + 1] = v.y, fragment[i + 2] = v.z, fragment[i + 3] = v.w;
    }
}

// Whether rows of a tile past the end of k are left out. Where C is stored by rows most products
// have little k; other forms keep the loop that they were tuned with.
constexpr bool SHORT_END = STORE == 3;

// Passes over a slice's rows of the last tile along k: rows past the end of k are zeros, and need
// none. One at least.
__device__ __forceinline__ unsigned passes_at_end(unsigned k, unsigned slice) {
    const int rows = int((k - 1) % KB + 1) - int(slice * SLICE_ROWS);
    return rows <= ROWS ? 1 : (min(rows, SLICE_ROWS) + ROWS - 1) / ROWS;
}

// sum = op(A) op(B) of one unit, with `last_passes` over its last tile. A pass multiplies ROWS rows
// of a tile and reads EARLY rows ahead: the first of the next tile before the last of this one are
// multiplied.
//
// A stage is released in the next pass, be it of the next unit. Reads from shared memory may
// still be under way when an instruction behind them arrives at a barrier, and a new tile then
// overwrites what they read (seen on an H200: wrong rows in 4 of 457 trials). They have ended when
// what they read has been multiplied, and that ends up anywhere within its own pass.
__device__ __forceinline__ void multiply(float (&sum)[TA][TB], unsigned steps, unsigned last_passes,
                                         Ring& ring, unsigned base, unsigned from_a,
                                         unsigned from_b) {
    float a[2 * EARLY][TA], b[2 * EARLY][TB];
    unsigned row_a, row_b, passes = SHORT_END && steps == 1 ? last_passes : SLICE_ROWS / ROWS;
    const auto enter = [&] {
        row_a = ring.tile + from_a;
        row_b = ring.tile + from_b;
        mbarrier_wait(ring.full, ring.parity);
    };
    const auto read = [&](int to, int row) {
        read_fragment<TA, LANES>(a[to % (2 * EARLY)], row_a + row * MB * 4);
        read_fragment<TB, LANES_N>(b[to % (2 * EARLY)], row_b + row * NB * 4);
    };
    enter();
#pragma unroll
    for (int q = 0; q < EARLY; q++) read(q, q);
#pragma unroll 1
    while (true) {
        ring.release_stage();
#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            if (q == ROWS - EARLY) {
                row_a += ROWS * MB * 4;
                row_b += ROWS * NB * 4;
                if (SLICE_ROWS == ROWS || --passes == 0) {  // its part of this tile is in registers
                    ring.to_release = ring.empty();
                    ring.advance(base);
                    steps--;
                    passes = SHORT_END && steps == 1 ? last_passes : SLICE_ROWS / ROWS;
                    if (steps == 0) {
#pragma unroll
                        for (int r = q; r < ROWS; r++)
                            add_outer_product(sum, a[r % (2 * EARLY)], b[r % (2 * EARLY)]);
                        return;
                    }
                    enter();
                }
            }
            read(q + EARLY, (q + EARLY) % ROWS);
            add_outer_product(sum, a[q % (2 * EARLY)], b[q % (2 * EARLY)]);
        }
    }
}

// The sums of all slices to the first one, in fixed order. `scratch` is the lane's own.
__device__ __forceinline__ void add_slices(float (&sum)[TA][TB], unsigned slice, float4* scratch) {
    constexpr int VECTORS = TA * TB / VECTOR, SQUARE_PITCH = WARPS_MN * 32;
    named_barrier_sync<WARPS * 32>(1);  // what was there before has been read
    if (slice > 0) {
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const float* const s = &sum[v * VECTOR / TB][v * VECTOR % TB];
            scratch[((slice - 1) * VECTORS + v) * SQUARE_PITCH] = {s[0], s[1], s[2], s[3]};
        }
    }
    named_barrier_sync<WARPS * 32>(1);
    if (slice > 0) return;
#pragma unroll
    for (int other = 0; other < SLICES - 1; other++)
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            float* const s = &sum[v * VECTOR / TB][v * VECTOR % TB];
            const float4 more = scratch[(other * VECTORS + v) * SQUARE_PITCH];
            s[0] += more.x, s[1] += more.y, s[2] += more.z, s[3] += more.w;
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemm(const __grid_constant__ Maps maps, int m, int n, int k, int batch, float alpha, float beta,
         int batched_a, int batched_b, int boxed, float* C, long long ldc, long long batch_c,
         float* parts LOADING_PARAMETERS EPILOGUE_PARAMETER) {
    extern __shared__ __align__(128) unsigned char shared[];
    unsigned base = address_of_shared(shared);
    make_opaque(base);  // kept, not computed anew in every step
    if (threadIdx.x == 0) {
        const unsigned full = base + STAGES * STAGE_BYTES;
        PREPARE_LOADING;
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(full + 8 * s, FULL_ARRIVALS);
            mbarrier_init(full + 8 * (STAGES + s), WARPS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    const Product p{unsigned(batch), (k + KB - 1u) / KB, (m + MB - 1u) / MB, (n + NB - 1u) / NB};
#if SPLIT > 1
    if (threadIdx.x == 0 && p.whole(gridDim.x) > 0) rounds_of = gridDim.x;
#endif
    const unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (warp >= WARPS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        LOAD;
        return;
    }
    setmaxnreg_inc<CONSUMER_REGISTERS>();
    // Offsets of the lane's first vectors: its slice, its warp's tile, its place in the warp.
    const unsigned slice = warp / WARPS_MN, tile = warp % WARPS_MN;
    const unsigned y = tile / WARPS_N * (TA * LANES) + lane / LANES_N * VECTOR;
    const unsigned x = tile % WARPS_N * (TB * LANES_N) + lane % LANES_N * VECTOR;
    const unsigned from_a = (slice * SLICE_ROWS * MB + y) * 4;
    const unsigned from_b = A_BYTES + (slice * SLICE_ROWS * NB + x) * 4;
    float4* const scratch =
        reinterpret_cast<float4*>(shared + RING_BYTES) + threadIdx.x % (WARPS_MN * 32);
    Ring ring{base, base + STAGES * STAGE_BYTES, 0};
    for (unsigned id = blockIdx.x; id < p.units(); id += gridDim.x) {
        float sum[TA][TB] = {};
        unsigned steps = Unit(p, id).steps();
        const unsigned last_passes =
            Unit(p, id).end == p.steps ? passes_at_end(k, slice) : SLICE_ROWS / ROWS;
        make_opaque(steps);
        if (steps > 0) multiply(sum, steps, last_passes, ring, base, from_a, from_b);
        if (SLICES > 1) {
            add_slices(sum, slice, scratch);
            if (slice > 0) continue;
        }
        make_opaque(id);
        const Unit unit(p, id);  // computed anew: kept, it would take registers from the loop
#if STORE == 2
        const unsigned row = unit.i0 + tile / WARPS_N * HIGH;
        const unsigned column = unit.j0 + tile % WARPS_N * WIDE;
        if (boxed && beta == 0.0f && !unit.is_split && !partly_stored(row, column, HIGH, WIDE)) {
            const unsigned slot = base + RING_BYTES + SCRATCH_BYTES + tile * (HIGH * WIDE * 4);
            if (any_stored(row, column, HIGH, WIDE))
                store_warp(sum, &maps.c, slot, row, column, unit.matrix, alpha EPILOGUE_ARGUMENT);
            continue;
        }
#endif
#if STORE == 3
        if (!unit.is_split) {
            Output{C + unit.matrix * batch_c, ldc, unsigned(m), unsigned(n), alpha,
                   beta EPILOGUE_POINTER}
                .store_rows(sum, base + RING_BYTES + SCRATCH_BYTES + tile * (LANES * WIDE * 4),
                            unit.i0 + tile / WARPS_N * HIGH, unit.j0 + tile % WARPS_N * WIDE);
            continue;
        }
#endif
        if (unit.is_split) {
            const unsigned pitch = (n + 3) / 4 * 4;
            const long long before = (1ll * unit.part * batch + unit.matrix) * m;
            Output{parts + before * pitch, pitch, unsigned(m), pitch, 1.0f, 0.0f}.store(
                sum, unit.i0 + y, unit.j0 + x);
        } else {
            Output{C + unit.matrix * batch_c, ldc, unsigned(m), unsigned(n), alpha,
                   beta EPILOGUE_POINTER}
                .store(sum, unit.i0 + y, unit.j0 + x);
        }
    }
#if STORE == 2
    if (lane == 0) bulk_wait_group();  // what they read must not go before they have
#endif
}
