// Streams and events. Work is done when it is asked for, so a stream is always up to date.
#include <chrono>
#include <mutex>
#include <set>

#include "driver.hpp"

using namespace pymm_sim;

namespace {

using Clock = std::chrono::steady_clock;

struct Stream { unsigned flags; int priority; };
struct Event {
    unsigned flags;
    bool recorded;
    Clock::time_point time;
};
constexpr unsigned disable_timing = 2;

std::mutex mutex;
std::set<void*> streams, events;

bool live_event(void* event) {
    std::lock_guard lock(mutex);
    return events.count(event) != 0;
}

}  // namespace

bool pymm_sim::live_stream(void* stream) {
    auto number = reinterpret_cast<std::uintptr_t>(stream);
    if (number <= 2) return true;  // the default streams: null, legacy, per thread
    std::lock_guard lock(mutex);
    return streams.count(stream) != 0;
}

CU_EXPORT CUresult cuStreamCreateWithPriority(void** out, unsigned flags, int priority) {
    if (CUresult e = guard()) return e;
    if (!out || flags > 1) return invalid_value;
    std::lock_guard lock(mutex);
    *out = new Stream{flags, priority};
    streams.insert(*out);
    return success;
}

CU_EXPORT CUresult cuStreamCreate(void** out, unsigned flags) {
    return cuStreamCreateWithPriority(out, flags, 0);
}

CU_EXPORT CUresult cuStreamDestroy_v2(void* stream) {
    if (CUresult e = guard()) return e;
    std::lock_guard lock(mutex);
    if (!streams.erase(stream)) return invalid_handle;
    delete static_cast<Stream*>(stream);
    return success;
}

CU_EXPORT CUresult cuStreamQuery(void* stream) {
    if (CUresult e = guard()) return e;
    return live_stream(stream) ? success : invalid_handle;
}

CU_EXPORT CUresult cuStreamSynchronize(void* stream) { return cuStreamQuery(stream); }

CU_EXPORT CUresult cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
    if (CUresult e = guard()) return e;
    if (flags > 1) return invalid_value;
    return live_stream(stream) && live_event(event) ? success : invalid_handle;
}

CU_EXPORT CUresult cuStreamAttachMemAsync(void* stream, CUdeviceptr address, std::size_t,
                                          unsigned flags) {
    if (CUresult e = guard()) return e;
    if (!live_stream(stream)) return invalid_handle;
    return find(address) && (flags == 1 || flags == 2 || flags == 4) ? success : invalid_value;
}

CU_EXPORT CUresult cuEventCreate(void** out, unsigned flags) {
    if (CUresult e = guard()) return e;
    if (!out || flags > 7) return invalid_value;
    std::lock_guard lock(mutex);
    *out = new Event{flags, false, {}};
    events.insert(*out);
    return success;
}

CU_EXPORT CUresult cuEventDestroy_v2(void* event) {
    if (CUresult e = guard()) return e;
    std::lock_guard lock(mutex);
    if (!events.erase(event)) return invalid_handle;
    delete static_cast<Event*>(event);
    return success;
}

CU_EXPORT CUresult cuEventRecord(void* event, void* stream) {
    if (CUresult e = guard()) return e;
    if (!live_event(event) || !live_stream(stream)) return invalid_handle;
    auto* ev = static_cast<Event*>(event);
    ev->recorded = true;
    ev->time = Clock::now();
    return success;
}

CU_EXPORT CUresult cuEventQuery(void* event) {
    if (CUresult e = guard()) return e;
    return live_event(event) ? success : invalid_handle;
}

CU_EXPORT CUresult cuEventSynchronize(void* event) { return cuEventQuery(event); }

// Milliseconds of real time: those of a CPU that checks every access, no GPU's.
CU_EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, void* begin, void* end) {
    if (CUresult e = guard()) return e;
    if (!milliseconds) return invalid_value;
    if (!live_event(begin) || !live_event(end)) return invalid_handle;
    auto *a = static_cast<Event*>(begin), *b = static_cast<Event*>(end);
    if (!a->recorded || !b->recorded || ((a->flags | b->flags) & disable_timing))
        return invalid_handle;
    *milliseconds = std::chrono::duration<float, std::milli>(b->time - a->time).count();
    return success;
}

CU_EXPORT CUresult cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
    return cuEventElapsedTime_v2(milliseconds, begin, end);
}
