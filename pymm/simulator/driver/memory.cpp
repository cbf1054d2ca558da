// Device memory, and the shadow that says which of its bytes a kernel may read.
//
// Kernels are compiled with g++'s -fsanitize=kernel-address: before each access they look at one
// shadow byte per 8 bytes of memory, at (address >> 3) + 0x7fff8000. 0 means all 8 bytes are good,
// 1 to 7 that only so many are, and a negative value calls load() or store() of this driver
// (block.cpp). All of the shadow is unmapped except for what a kernel may touch, so that a wild
// address faults in the shadow, not in memory. Bytes that exist but were never written are
// `undecided`: a store marks them, a load of one is an error.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "driver.hpp"

// Where the shadow begins, and how many bits of (address >> 3) it has room for: elsewhere and fewer
// in a driver that is itself under a sanitizer of g++'s, which needs the place.
#ifndef PYMM_SIM_SHADOW
#define PYMM_SIM_SHADOW 0x7fff8000
#define PYMM_SIM_SHADOW_BITS 44
#define PYMM_SIM_ARENA_BITS 40
#endif

namespace pymm_sim {
namespace {

constexpr std::uintptr_t shadow_begin = PYMM_SIM_SHADOW;
constexpr std::uintptr_t shadow_bytes = std::uintptr_t{1} << PYMM_SIM_SHADOW_BITS;
constexpr std::size_t arena_bytes = std::size_t{1} << PYMM_SIM_ARENA_BITS;  // addresses only
constexpr std::size_t span = 32 << 10;  // memory covered by one page of shadow
constexpr std::uint8_t forbidden = 0xFA, undecided = 0xF1;

std::shared_mutex mutex;
std::map<std::uintptr_t, std::unique_ptr<Region>> regions;
std::map<std::uintptr_t, std::size_t> holes;  // free stretches of the arena
std::uintptr_t cursor;       // next fit: an address comes back as late as possible, so that a use
                             // after free is seen
std::size_t used[device::most_devices], most_used[device::most_devices];
std::size_t limit;           // what a device has; 0: as the environment says
unsigned serials;

std::uint8_t* shadow(std::uintptr_t address) {
    return reinterpret_cast<std::uint8_t*>(((address >> 3) & (shadow_bytes - 1)) + shadow_begin);
}

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

// Opens memory, and the shadow of it and of a forbidden span on either side.
bool open_pages(std::uintptr_t begin, std::size_t bytes) {
    std::size_t whole = round_up(bytes, span);
    bool ok = mprotect(reinterpret_cast<void*>(begin), whole, PROT_READ | PROT_WRITE) == 0 &&
              mprotect(shadow(begin - span), (whole + 2 * span) / 8, PROT_READ | PROT_WRITE) == 0;
    if (ok) forbid(begin - span, whole + 2 * span);
    return ok;
}

void close_pages(std::uintptr_t begin, std::size_t bytes) {
    std::size_t whole = round_up(bytes, span);
    void* pages[] = {reinterpret_cast<void*>(begin), shadow(begin - span)};
    std::size_t sizes[] = {whole, (whole + 2 * span) / 8};
    for (int i = 0; i < 2; i++) {
        madvise(pages[i], sizes[i], MADV_DONTNEED);
        mprotect(pages[i], sizes[i], PROT_NONE);
    }
}

// A stretch of the arena with a span to spare on either side; 0 when none is left.
std::uintptr_t take(std::size_t bytes) {
    std::size_t wanted = round_up(bytes, span) + 2 * span;
    auto hole = holes.lower_bound(cursor);
    for (std::size_t tried = 0; tried <= holes.size(); tried++, ++hole) {
        if (hole == holes.end()) hole = holes.begin();
        if (hole == holes.end()) return 0;
        if (hole->second < wanted) continue;
        auto [begin, size] = *hole;
        holes.erase(hole);
        if (size > wanted) holes[begin + wanted] = size - wanted;
        cursor = begin + wanted;
        return begin + span;
    }
    return 0;
}

void give(std::uintptr_t begin, std::size_t bytes) {
    std::size_t size = round_up(bytes, span) + 2 * span;
    begin -= span;
    auto next = holes.lower_bound(begin);
    if (next != holes.end() && next->first == begin + size) {
        size += next->second;
        next = holes.erase(next);
    }
    if (next != holes.begin()) {
        auto before = std::prev(next);
        if (before->first + before->second == begin) {
            before->second += size;
            return;
        }
    }
    holes[begin] = size;
}

// The written bits of granule g, and the ones it has.
std::uint8_t live_bits(const Region& r, std::size_t g) {
    std::size_t left = r.bytes - g * 8;
    return left >= 8 ? 0xFF : static_cast<std::uint8_t>((1u << left) - 1);
}

std::uint8_t written_bits(const Region& r, std::size_t g) {
    std::uint8_t s = *shadow(r.begin + g * 8);
    if (s == 0) return 0xFF;
    return s < 8 ? static_cast<std::uint8_t>((1u << s) - 1)
                 : __atomic_load_n(&r.written[g], __ATOMIC_RELAXED);
}

void mark_bits(Region& r, std::size_t g, std::uint8_t bits) {
    std::uint8_t live = live_bits(r, g);
    std::uint8_t now = __atomic_or_fetch(&r.written[g], bits, __ATOMIC_RELAXED);
    if ((now & live) == live)
        *shadow(r.begin + g * 8) = live == 0xFF ? 0 : __builtin_popcount(live);
}

std::uint8_t bits_between(std::size_t first, std::size_t last) {  // [first, last) of 8
    return static_cast<std::uint8_t>((1u << last) - (1u << first));
}

}  // namespace

std::size_t device::memory_bytes() {
    if (limit) return limit;
    static const std::size_t bytes = [] {
        const char* text = std::getenv("PYMM_SIMULATOR_MEMORY");
        long long n = text ? std::atoll(text) : 0;
        return n > 0 ? static_cast<std::size_t>(n) : std::size_t{8} << 30;
    }();
    return bytes;
}

bool start_memory(std::string& why_not) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* want = reinterpret_cast<void*>(shadow_begin);
    void* got = mmap(want, shadow_bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != want) {
        if (got != MAP_FAILED) munmap(got, shadow_bytes);
        why_not = "cannot reserve 16 TiB of addresses from 0x7fff8000 on (they hold which bytes of "
                  "device memory are good); lift `ulimit -v`";
        return false;
    }
    void* arena = mmap(nullptr, arena_bytes + span, PROT_NONE, flags, -1, 0);
    if (arena == MAP_FAILED) {
        why_not = "cannot reserve the addresses of device memory (1 TiB); lift `ulimit -v`";
        return false;
    }
    cursor = round_up(reinterpret_cast<std::uintptr_t>(arena), span);
    holes[cursor] = arena_bytes;
    return true;
}

void make_region(Region& r, std::uintptr_t begin, std::size_t bytes, Space space) {
    r.begin = begin;
    r.bytes = bytes;
    r.space = space;
    if (space != Space::host)
        r.written.reset(static_cast<std::uint8_t*>(std::calloc(bytes / 8 + 1, 1)));
    std::size_t granules = (bytes + 7) / 8;
    std::memset(shadow(begin), space == Space::host ? 0 : undecided, granules);
    if (space == Space::host && bytes % 8) *shadow(begin + bytes) = bytes % 8;
}

Region* allocate(std::size_t bytes, Space space) {
    std::unique_lock lock(mutex);
    std::size_t charge = space == Space::global ? round_up(bytes, device::alignment) : 0;
    if (charge < (space == Space::global ? bytes : 0)) return nullptr;
    const int device = current_device();
    if (charge > device::memory_bytes() || used[device] > device::memory_bytes() - charge)
        return nullptr;
    std::uintptr_t begin = bytes < arena_bytes ? take(bytes) : 0;
    if (!begin) return nullptr;
    if (!open_pages(begin, bytes)) {
        give(begin, bytes);
        return nullptr;
    }
    used[device] += charge;
    most_used[device] = std::max(most_used[device], used[device]);
    auto region = std::unique_ptr<Region>(
        new Region{0, 0, space, device, ++serials, {nullptr, std::free}, nullptr});
    make_region(*region, begin, bytes, space);
    return (regions[begin] = std::move(region)).get();
}

bool release(std::uintptr_t begin, Space space) {
    std::unique_lock lock(mutex);
    auto it = regions.find(begin);
    if (it == regions.end() || it->second->space != space) return false;
    std::size_t bytes = it->second->bytes;
    if (space == Space::global) used[it->second->device] -= round_up(bytes, device::alignment);
    regions.erase(it);
    close_pages(begin, bytes);
    give(begin, bytes);
    return true;
}

Region* find(std::uintptr_t address) {
    std::shared_lock lock(mutex);
    auto it = regions.upper_bound(address);
    if (it == regions.begin()) return nullptr;
    Region* r = std::prev(it)->second.get();
    return r->contains(address, 1) ? r : nullptr;
}

Region* nearest(std::uintptr_t address) {
    std::shared_lock lock(mutex);
    auto after = regions.upper_bound(address);
    Region* below = after == regions.begin() ? nullptr : std::prev(after)->second.get();
    Region* above = after == regions.end() ? nullptr : after->second.get();
    if (!below || !above) return below ? below : above;
    std::uintptr_t past = address < below->end() ? 0 : address - below->end();
    return past <= above->begin - address ? below : above;
}

std::size_t free_bytes() {
    std::shared_lock lock(mutex);
    const std::size_t all = device::memory_bytes(), taken = used[current_device()];
    return all > taken ? all - taken : 0;
}

void* reserve_window(std::size_t bytes) {
    std::unique_lock lock(mutex);
    return reinterpret_cast<void*>(take(bytes));
}

void commit_window(void* begin, std::size_t bytes) {
    auto address = reinterpret_cast<std::uintptr_t>(begin);
    if (!open_pages(address, bytes)) std::abort();
}

void forbid(std::uintptr_t begin, std::size_t bytes) {
    std::memset(shadow(begin), forbidden, (bytes + 7) / 8);
}

void forget_writes(Region& r) {
    std::memset(r.written.get(), 0, r.bytes / 8 + 1);
    std::memset(shadow(r.begin), undecided, (r.bytes + 7) / 8);
}

void allow(const void* begin, std::size_t bytes) {
    auto first = reinterpret_cast<std::uintptr_t>(begin) / span * span;
    auto last = round_up(reinterpret_cast<std::uintptr_t>(begin) + bytes, span);
    mprotect(shadow(first), (last - first) / 8, PROT_READ | PROT_WRITE);
}

bool in_shadow(std::uintptr_t address) {
    return address >= shadow_begin && address - shadow_begin < shadow_bytes;
}

std::uintptr_t meant_by(std::uintptr_t shadow_address) {
    return (shadow_address - shadow_begin) << 3;
}

void mark_written(Region& r, std::size_t offset, std::size_t bytes) {
    if (!bytes || r.space == Space::host) return;
    std::size_t end = offset + bytes, first = offset / 8, last = (end - 1) / 8;
    if (first == last) return mark_bits(r, first, bits_between(offset % 8, end - first * 8));
    mark_bits(r, first, bits_between(offset % 8, 8));
    mark_bits(r, last, bits_between(0, end - last * 8));
    std::memset(shadow(r.begin + (first + 1) * 8), 0, last - first - 1);
}

bool is_written(const Region& r, std::size_t offset, std::size_t bytes) {
    if (r.space == Space::host) return true;
    for (std::size_t g = offset / 8; g * 8 < offset + bytes; g++) {
        std::size_t from = g * 8 < offset ? offset - g * 8 : 0;
        std::size_t to = offset + bytes - g * 8 < 8 ? offset + bytes - g * 8 : 8;
        std::uint8_t wanted = bits_between(from, to);
        if ((written_bits(r, g) & wanted) != wanted) return false;
    }
    return true;
}

void copy_state(Region& to, std::size_t to_offset, const Region& from, std::size_t from_offset,
                std::size_t bytes) {
    if (is_written(from, from_offset, bytes)) return mark_written(to, to_offset, bytes);
    for (std::size_t i = 0; i < bytes;) {  // runs of written bytes
        std::size_t run = 0;
        while (i + run < bytes && is_written(from, from_offset + i + run, 1)) run++;
        mark_written(to, to_offset + i, run);
        i += run ? run : 1;
    }
}

}  // namespace pymm_sim

// For tests: what each device has from now on (0: as at first), and the most that was allocated on
// one since the last such question.
CU_EXPORT void pymm_simulator_limit_memory(std::size_t bytes) {
    std::unique_lock lock(pymm_sim::mutex);
    pymm_sim::limit = bytes;
}

CU_EXPORT std::size_t pymm_simulator_most_used(int device) {
    std::unique_lock lock(pymm_sim::mutex);
    if (device < 0 || device >= pymm_sim::device::most_devices) return 0;
    const std::size_t most = pymm_sim::most_used[device];
    pymm_sim::most_used[device] = pymm_sim::used[device];
    return most;
}
