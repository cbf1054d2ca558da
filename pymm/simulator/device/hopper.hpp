// The twin of cuda_src/common/hopper.cuh: translate.py puts it in that file's place. What is
// asynchronous on a GPU is done at once, by the thread that asks for it: TMA's copies, wgmma.
#pragma once

inline void* __cvta_shared_to_generic(std::size_t address) {
    // Addresses of shared memory have 32 bits there, and that of all blocks of a cluster lies
    // within 8 MiB here.
    const auto base = reinterpret_cast<std::uintptr_t>(pymm_sim::self().dynamic_shared);
    return reinterpret_cast<void*>(base + static_cast<int>(static_cast<unsigned>(address) -
                                                           static_cast<unsigned>(base)));
}

namespace pymm_sim::hopper {

struct alignas(64) TensorMap {
    unsigned long long words[16];
};
inline void prefetch_tensormap(const TensorMap*) {}

inline unsigned address_of_shared(const void* p) {
    return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(p));
}
template <class Value>
Value& at_shared(std::size_t address) {
    return *static_cast<Value*>(__cvta_shared_to_generic(address));
}

// --- barriers -----------------------------------------------------------------------------------

struct Barrier {
    unsigned short arrivals, left : 15, phase : 1;  // of a phase; still to come
    int bytes;                                      // still to come
};

inline std::uintptr_t key(unsigned barrier) {
    return reinterpret_cast<std::uintptr_t>(__cvta_shared_to_generic(barrier));
}
// Begins the next phase if nothing is left of this one; whether it did.
inline bool settle(Barrier& barrier) {
    if (barrier.left || barrier.bytes) return false;
    barrier.left = barrier.arrivals;
    barrier.phase ^= 1;
    return true;
}
PYMM_SIM_TWIN inline void mbarrier_init(unsigned barrier, unsigned arrivals) {
    const auto count = static_cast<unsigned short>(arrivals);
    PYMM_SIM_ACTING(maker, 0);
    at_shared<Barrier>(barrier) = {count, count, 0, 0};
    order(Sync::make, key(barrier));
}
inline void fence_mbarrier_init() { order(Sync::fence_made); }
PYMM_SIM_TWIN inline void mbarrier_arrive(unsigned barrier) {
    PYMM_SIM_ACTING(barrier, 0);
    auto& b = at_shared<Barrier>(barrier);
    assert(b.left > 0);
    b.left--;
    const bool complete = settle(b);
    order(Sync::arrive, key(barrier));
    if (complete) order(Sync::complete, key(barrier));
}
// How far the shared memory of a block of the cluster lies behind this block's.
PYMM_SIM_UNCHECKED inline unsigned reach(unsigned barrier, unsigned block, const char* does) {
    return static_cast<unsigned>(
        self().calls->reach(key(barrier), block, does, __builtin_return_address(0)));
}
__forceinline__ void mbarrier_arrive(unsigned barrier, unsigned block) {
    mbarrier_arrive(barrier + reach(barrier, block, "arrives at a barrier"));
}
PYMM_SIM_TWIN inline void mbarrier_expect_tx(unsigned barrier, unsigned bytes) {
    PYMM_SIM_ACTING(barrier, 0);
    at_shared<Barrier>(barrier).bytes += static_cast<int>(bytes);
    mbarrier_arrive(barrier);
}
PYMM_SIM_TWIN inline void mbarrier_wait(unsigned barrier, unsigned parity) {
    PYMM_SIM_ACTING(barrier, 0);
    // While one thread waits, all others come as far as they can: more turns than these none takes.
    for (int turns = 0; at_shared<Barrier>(barrier).phase == parity; turns++) {
        assert(turns < 100000 && "some thread of the block does not come to this barrier");
        yield();
    }
    order(Sync::pass, key(barrier));
}

inline unsigned block_in_cluster() { return self().rank; }
// Relaxed, as the instruction of the header is: orders what made mbarriers, after a fence, and no
// other access. With `releases` it orders all that the thread did before.
inline void cluster_arrive(bool releases = false, PYMM_SIM_HERE) {
    self().calls->cluster_arrive(releases, file, line);
}
inline void cluster_wait(PYMM_SIM_HERE) { self().calls->cluster_wait(file, line); }
inline void warpgroup_sync(int id) { barrier_sync(id, 128); }
template <int COUNT>
void named_barrier_sync(int id) {
    barrier_sync(id, COUNT);
}
template <int COUNT>
void setmaxnreg_inc() {}
template <int COUNT>
void setmaxnreg_dec() {}

// --- numbers in shared memory -------------------------------------------------------------------

inline void store_shared_pair(unsigned to, float first, float second) {
    at_shared<float2>(to) = {first, second};
}
inline double load_shared(unsigned address) { return at_shared<double>(address); }
inline double2 load_shared_2(unsigned address) { return at_shared<double2>(address); }
inline void store_shared(unsigned address, double2 x) { at_shared<double2>(address) = x; }

inline void stmatrix_x4(unsigned row, const unsigned (&r)[4]) {
    const unsigned lane = self().lane;
    for (unsigned i = 0; i < 4; i++)
        at_shared<unsigned>(__shfl_sync(~0u, row, i * 8 + lane / 4) + lane % 4 * 4) = r[i];
}

inline void make_opaque(unsigned&) {}
inline void make_opaque(int&) {}
inline void make_opaque(double*&) {}
inline unsigned read_thread_index() { return threadIdx.x; }

inline unsigned round_tf32(float x) {
    const unsigned bits = __float_as_uint(x), size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u) return 0x7FFFFFFFu;
    return (size < 0x7F800000u ? bits + 0x1000u : bits) & ~0x1FFFu;
}

// --- boxes --------------------------------------------------------------------------------------

// Bits 4 and on of an address are turned by bits 7 and on: all eight pieces of 16 bytes of a row of
// 128 bytes change places, or four, or two.
inline unsigned swizzled(unsigned address, unsigned width) {
    return address ^ (width >= 32 ? (address >> 7 & (width / 16 - 1)) << 4 : 0);
}

// Calls `move(shared address, global address, whether it lies inside)` for all elements of a box.
template <class Move>
void each_element(const TensorMap* map, unsigned place, int x, int y, int z, Move move) {
    TensorDescription d;
    std::memcpy(&d, map, sizeof d);
    assert(d.size && "the tensor map has not been made");
    assert(place % 128 == 0 && "boxes lie at multiples of 128 bytes");
    assert(x * static_cast<long long>(d.size) % 16 == 0 &&
           "boxes begin at multiples of 16 bytes: elsewhere an H200 meets an illegal instruction");
    for (unsigned j = 0; j < d.box[1]; j++)
        for (unsigned i = 0; i < d.box[0]; i++) {
            const auto column = static_cast<long long>(x) + i, row = static_cast<long long>(y) + j;
            const bool within = row >= 0 && row < static_cast<long long>(d.extents[1]) && z >= 0 &&
                                z < static_cast<long long>(d.extents[2]);
            const auto from = d.address + column * d.size + row * d.strides[0] + z * d.strides[1];
            move(d, swizzled(place + (j * d.box[0] + i) * d.size, d.swizzle), from,
                 within ? column : -1);
        }
}
template <class Word>
void fetch_one(unsigned to, std::uintptr_t from, bool inside) {
    at_shared<Word>(to) = inside ? *reinterpret_cast<const Word*>(from) : Word{0};
}
PYMM_SIM_TWIN
inline void tma_load(unsigned target, const TensorMap* map, unsigned barrier, int x, int y,
                      int z) {
    unsigned bytes = 0;
    const auto fetch = [&](const TensorDescription& d, unsigned to, std::uintptr_t from,
                           long long column) {
        const bool inside = column >= 0 && column < static_cast<long long>(d.extents[0]);
        bytes += d.size;
        if (d.size == 2) return fetch_one<unsigned short>(to, from, inside);
        if (d.size == 8) return fetch_one<unsigned long long>(to, from, inside);
        fetch_one<unsigned>(to, from, inside);
        if (d.rounded) at_shared<unsigned>(to) = round_tf32(at_shared<float>(to));
    };
    {
        PYMM_SIM_ACTING(fetch, key(barrier));
        each_element(map, target, x, y, z, fetch);
    }
    PYMM_SIM_ACTING(barrier, key(barrier));
    auto& b = at_shared<Barrier>(barrier);
    b.bytes -= static_cast<int>(bytes);
    if (settle(b)) order(Sync::complete, key(barrier));
}
__forceinline__ void tma_load(unsigned target, const TensorMap* map, unsigned barrier, int x, int y,
                              int z, unsigned short blocks) {
    assert(blocks && "the copy goes to one block or more");
    for (unsigned block = 0; blocks >> block; block++) {
        if (!(blocks >> block & 1)) continue;
        const unsigned away = reach(barrier, block, "copies to a barrier");
        tma_load(target + away, map, barrier + away, x, y, z);
    }
}
// Whole pieces of 16 bytes, as a GPU does it: what begins inside of a row ends where it ends.
PYMM_SIM_TWIN inline void tma_store(const TensorMap* map, unsigned source, int x, int y, int z) {
    PYMM_SIM_ACTING(send, 0);
    each_element(map, source, x, y, z, [&](const TensorDescription& d, unsigned from,
                                           std::uintptr_t to, long long column) {
        const long long piece = 16 / d.size, first = column / piece * piece;
        if (column < 0 || first >= static_cast<long long>(d.extents[0])) return;
        for (unsigned byte = 0; byte < d.size; byte++)
            reinterpret_cast<char*>(to)[byte] = at_shared<char>(from + byte);
    });
}
inline void bulk_commit_group() { order(Sync::commit_send); }
template <int LATEST = 0>
void bulk_wait_group_read() {
    order(Sync::wait_send, LATEST);
}
inline void bulk_wait_group() { order(Sync::wait_send); }
inline void fence_proxy_async() {}

// --- wgmma --------------------------------------------------------------------------------------

inline float cut_tf32(unsigned bits) { return __uint_as_float(bits & ~0x1FFFu); }

// An operand in shared memory, as its descriptor says (PTX ISA 9.0, "Matrix Descriptor").
struct Described {
    unsigned long long bits;
    unsigned begin, across, down, width;  // bytes; `width` of a swizzled row

    explicit Described(unsigned long long descriptor) : bits(descriptor) {
        const unsigned base = address_of_shared(self().dynamic_shared);
        begin = base + (((bits & 0x3FFF) * 16 - base) & 0x3FFFF);
        across = (bits >> 16 & 0x3FFF) * 16;
        down = (bits >> 32 & 0x3FFF) * 16;
        assert(bits >> 62 != 0 && "rows of an operand of wgmma are swizzled here");
        width = 256 >> (bits >> 62);
    }
    // Where the number of `row` at depth p is, from `begin` on, where rows lie along k.
    unsigned along(unsigned row, unsigned p, unsigned size) const {
        return row / 8 * down + row % 8 * width + p * size;
    }
    // The same where they lie across k.
    unsigned athwart(unsigned row, unsigned p, unsigned size) const {
        const unsigned inside = row * size;
        return inside / width * across + p / 8 * down + p % 8 * width + inside % width;
    }
    template <class Word>
    Word word(bool k_major, unsigned row, unsigned p) const {
        const unsigned size = sizeof(Word);
        const unsigned offset = k_major ? along(row, p, size) : athwart(row, p, size);
        return at_shared<Word>(swizzled(begin + offset, width));
    }
};

// The right operand of a wgmma as numbers. All 128 threads read the same ones: the first of them
// takes them from shared memory, the others only look whether the bytes there are still the same.
struct Numbers {
    static constexpr unsigned MOST_BYTES = 65536, MOST = 16 * 256;
    std::uint64_t run;
    unsigned long long bits;
    unsigned rows, depth, reader;
    bool k_major;
    alignas(8) unsigned char bytes[MOST_BYTES];
    float values[MOST];  // [p][row]
};

// None of these three is checked: d is the thread's own, b the driver's.
bool same_bytes(const void* a, const void* b, std::size_t bytes);
void copy_words(void* to, const void* from, std::size_t bytes);
// d += a b for `count` elements of d: two of a at each depth, of b those at b[p * count * 2].
void add_products(float* d, unsigned count, const float* a, const float* b, unsigned depth);

// What `read(row, p)` gives for all of an operand of `rows` x DEPTH words.
template <class Word, unsigned DEPTH, class Read>
const float* numbers(const Described& of, bool k_major, unsigned rows, Read read) {
    constexpr unsigned ATOM = 1024, SLOTS = 16;  // a swizzled row stays within its 1024 bytes
    auto* const table = static_cast<Numbers*>(self().calls->scratch(SLOTS * sizeof(Numbers)));
    Numbers& found = table[(of.bits ^ of.bits >> 6) % SLOTS];
    const unsigned last = k_major ? of.along(rows - 1, DEPTH - 1, sizeof(Word))
                                  : of.athwart(rows - 1, DEPTH - 1, sizeof(Word));
    const unsigned first = of.begin / ATOM * ATOM;
    const unsigned bytes = (of.begin + last) / ATOM * ATOM + ATOM - first;
    const void* const there = &at_shared<char>(first);
    assert(rows * DEPTH <= Numbers::MOST && bytes <= Numbers::MOST_BYTES);
#ifdef PYMM_SIM_RACES
    const unsigned reader = self().linear / 128;  // every warpgroup is seen to read
#else
    const unsigned reader = 0;
#endif
    if (found.run == self().run && found.reader == reader && found.bits == of.bits &&
        found.rows == rows && found.depth == DEPTH && found.k_major == k_major &&
        same_bytes(found.bytes, there, bytes))
        return found.values;
    for (unsigned p = 0; p < DEPTH; p++)
        for (unsigned row = 0; row < rows; row++) found.values[p * rows + row] = read(row, p);
    copy_words(found.bytes, there, bytes);
    found.run = self().run;
    found.bits = of.bits;
    found.rows = rows;
    found.reader = reader;
    found.depth = DEPTH;
    found.k_major = k_major;
    return found.values;
}

// d += a b, of 64 x COUNT / 2 and so on: `left` is asked for numbers of a; those of b are at
// right[p][column].
template <unsigned DEPTH, int COUNT, class Left>
void multiply_tiles(float (&d)[COUNT], bool add, Left left, const float* right) {
    const unsigned lane = self().lane, warp = threadIdx.x % 128 / 32;
    if (!add)
        for (float& x : d) x = 0.0f;
    float a[DEPTH * 2];
    for (unsigned p = 0; p < DEPTH; p++) {
        a[p * 2] = left(warp * 16 + lane / 4, p);
        a[p * 2 + 1] = left(warp * 16 + lane / 4 + 8, p);
    }
    add_products(d, COUNT, a, right + lane % 4 * 2, DEPTH);
}

inline unsigned long long describe(unsigned address) {
    return (address & 0x3FFFFu) >> 4 | (8192ull >> 4) << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}
template <int COLUMNS, int DOWN>
unsigned long long mn_major_descriptor(unsigned address) {
    constexpr unsigned long long SWIZZLE = COLUMNS == 64 ? 1 : COLUMNS == 32 ? 2 : 3;
    return (address & 0x3FFFFu) >> 4 | (2ull * DOWN * COLUMNS >> 4) << 16 |
           (16ull * COLUMNS >> 4) << 32 | SWIZZLE << 62;
}
template <int COLUMNS>
unsigned long long k_major_descriptor(unsigned address) {
    return mn_major_descriptor<COLUMNS, 64>(address);
}
// The four warps of a warpgroup go together: none multiplies, and none sees a product's end, before
// all do.
inline void meet_warpgroup() { barrier_sync(16 + self().linear / 128, 128); }
inline void wgmma_fence() { meet_warpgroup(); }
inline void wgmma_commit_group() { order(Sync::commit_product); }
template <int N>
void wgmma_wait_group() {
    meet_warpgroup();
    order(Sync::wait_product, N);
}

template <bool K_MAJOR_A, bool K_MAJOR_B, class Half, int COUNT>
PYMM_SIM_TWIN
void wgmma(Half, float (&d)[COUNT], unsigned long long a, unsigned long long b, bool add) {
    PYMM_SIM_ACTING(product, 0);
    const Described left(a), right(b);
    const float* const columns = numbers<Half, 16>(
        right, K_MAJOR_B, COUNT * 2,
        [&](unsigned j, unsigned p) { return widen(right.word<Half>(K_MAJOR_B, j, p)); });
    multiply_tiles<16>(
        d, add, [&](unsigned i, unsigned p) { return widen(left.word<Half>(K_MAJOR_A, i, p)); },
        columns);
}

template <int COUNT>
const float* columns_tf32(unsigned long long b) {
    const Described right(b);
    return numbers<unsigned, 8>(right, true, COUNT * 2, [&](unsigned j, unsigned p) {
        return cut_tf32(right.word<unsigned>(true, j, p));
    });
}
template <int COUNT>
PYMM_SIM_TWIN
void wgmma_tf32(float (&d)[COUNT], unsigned long long a, unsigned long long b, bool add) {
    PYMM_SIM_ACTING(product, 0);
    const Described left(a);
    multiply_tiles<8>(
        d, add,
        [&](unsigned i, unsigned p) { return cut_tf32(left.word<unsigned>(true, i, p)); },
        columns_tf32<COUNT>(b));
}
// a in registers: each number is read where the lane that holds it has it.
template <int COUNT>
PYMM_SIM_TWIN
void wgmma_tf32(float (&d)[COUNT], const unsigned (&a)[4], unsigned long long b, bool add) {
    PYMM_SIM_ACTING(product, 0);
    const auto* const of = of_every_lane(a);
    multiply_tiles<8>(d, add,
                      [&](unsigned i, unsigned p) {
                          const unsigned(&there)[4] = *of[self().lane / 4 * 4 + p % 4];
                          return cut_tf32(there[p / 4 * 2 + i / 8 % 2]);
                      },
                      columns_tf32<COUNT>(b));
    __syncwarp();  // no lane's numbers change before all have been read
}

}  // namespace pymm_sim::hopper
