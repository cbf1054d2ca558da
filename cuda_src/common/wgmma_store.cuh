// The end of a unit of work: C <- alpha sum + beta C of one warpgroup, by way of the Output of
// common/wgmma_tile.cuh.

// Stores C, or a part of its sums, from one warpgroup; `slot` is for the next piece. In a warm-up,
// which only loads the instructions, nothing is stored.
__device__ __forceinline__ void store_tile(float (&sum)[ROWS][TB / 2], Output out, const Unit& unit,
                                           unsigned char* staging, unsigned& slot, unsigned group,
                                           bool warm_up) {
    const unsigned i0 = unit.i0 + group / WARPGROUPS_N * TA,
                   j0 = unit.j0 + group % WARPGROUPS_N * TB;
    const bool elected = threadIdx.x % 128 == 0;
    out.end_m = warm_up ? 0 : MB < 64 ? min(out.m, unit.i0 + MB) : out.m;
    out.end_n = NB < 64 ? min(out.n, unit.j0 + NB) : out.n;
    out.C += unit.matrix * out.step;
#pragma unroll
    for (int u = 0; u < ROWS; u++) {
        const unsigned i = i0 + u * 64;
        if constexpr (SPLIT > 1) {
            out.store_part(sum[u], unit.part, unit.matrix, i, j0);
            continue;
        }
        out.scale(sum[u], i, j0);
#if EPILOGUE
        out.finish(sum[u], i, j0);
#endif
#pragma unroll
        for (int x = 0; x < TB; x += PIECE_COLUMNS) {
            // The last piece of a width that is no multiple begins earlier: some columns are stored
            // twice, with the same values.
            const int h = x + PIECE_COLUMNS <= TB ? x : TB - PIECE_COLUMNS;
            if (!any_stored(i, j0 + h, 64, PIECE_COLUMNS)) continue;
            const bool cut = partly_stored(i, j0 + h, 64, PIECE_COLUMNS);
            unsigned char* const piece = staging + slot * STAGED_BYTES;
            const unsigned staged = address_of_shared(piece);
            slot = slot + 1 == SLOTS ? 0 : slot + 1;
            if (!WARPS_STORE && elected) bulk_wait_group_read<SLOTS - 1>();
            WARPS_STORE ? __syncwarp() : warpgroup_sync(group + 1);
            out.stage(staged, sum[u] + h / 2);
            if (WARPS_STORE || !out.boxed || cut) {
                __syncwarp();
                out.copy(piece, i, j0 + h, cut);
                if (cut && elected) bulk_commit_group();  // empty, but it counts as this slot's
                continue;
            }
            fence_proxy_async();
            warpgroup_sync(group + 1);
            if (!elected || warm_up) continue;
#pragma unroll
            for (int q = 0; q < PIECE_COLUMNS / LINE; q++)
                tma_store(out.map, staged + q * PIECE, j0 + h + q * LINE, i, unit.matrix);
            bulk_commit_group();
        }
    }
}
