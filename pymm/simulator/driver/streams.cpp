// Streams and events: in which order work is done.
//
// By default work is done when it is asked for. PYMM_SIMULATOR_STREAMS=late queues it instead, and
// does it no sooner than somebody waits for it; random:SEED does some of what is queued, of any
// stream, whenever more is. Both keep the order that CUDA promises and no other: work of one stream
// in turn, events, the legacy default stream behind and before all blocking ones. So what is freed
// or overwritten too early shows, and what two streams must not share.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "driver.hpp"

using namespace pymm_sim;

namespace {

using Clock = std::chrono::steady_clock;

struct Queue;
struct Mark {  // what an event stands for: a place in a queue
    std::weak_ptr<Queue> queue;
    bool done = false;
};
struct Op {
    Work work;                     // empty: the place of a mark
    std::shared_ptr<Mark> after;   // waits for this one
    std::shared_ptr<Mark> reached;
};
struct Queue {
    bool blocking;
    std::uint64_t number;
    std::deque<Op> ops;
    std::shared_ptr<Capture> capture;
};
struct Stream { unsigned flags; int priority; std::shared_ptr<Queue> queue; int device; };
struct Event {
    unsigned flags;
    bool recorded;
    Clock::time_point time;
    std::shared_ptr<Mark> mark;
    std::shared_ptr<Capture> capture;
    int device;
};
constexpr unsigned disable_timing = 2, non_blocking = 1;
constexpr int global_mode = 0, own_mode = 1, relaxed_mode = 2;

std::recursive_mutex mutex;
std::map<void*, Stream*> streams;
std::set<void*> events;
std::vector<std::shared_ptr<Queue>> queues;           // those that may hold work
std::vector<std::shared_ptr<Capture>> captures;       // those that are not ended
std::map<const Capture*, std::thread::id> capturing;  // the thread that began each
std::uint64_t numbers = 1, capture_numbers = 0, drawn = 0;
thread_local int interaction = global_mode;
thread_local std::shared_ptr<Queue> per_thread;

enum class When { now, late, random };

When when() {
    static const When wanted = [] {
        const char* text = std::getenv("PYMM_SIMULATOR_STREAMS");
        if (!text || !*text || !std::strcmp(text, "now")) return When::now;
        if (!std::strcmp(text, "late")) return When::late;
        if (!std::strncmp(text, "random:", 7) && text[7]) {
            char* end = nullptr;
            drawn = std::strtoull(text + 7, &end, 10) * 0x9E3779B97F4A7C15ull + 1;
            if (!*end) return When::random;
        }
        std::fprintf(stderr, "pymm simulator: PYMM_SIMULATOR_STREAMS=%s is not known; it may be "
                             "now, late or random:SEED\n", text);
        std::abort();
    }();
    return wanted;
}

std::uint64_t draw() {  // xorshift64
    drawn ^= drawn << 13;
    drawn ^= drawn >> 7;
    return drawn ^= drawn << 17;
}

std::shared_ptr<Queue> new_queue(bool blocking) {
    auto queue = std::make_shared<Queue>(Queue{blocking, ++numbers, {}, nullptr});
    queues.push_back(queue);
    return queue;
}

// The queue of a stream; null for the legacy default stream, whose work is done at once.
std::shared_ptr<Queue> queue_of(void* stream) {
    auto number = reinterpret_cast<std::uintptr_t>(stream);
    if (number <= 1) return nullptr;
    if (number == 2) {
        if (!per_thread) per_thread = new_queue(true);
        return per_thread;
    }
    auto found = streams.find(stream);
    return found == streams.end() ? nullptr : found->second->queue;
}

CUresult run_until(const std::shared_ptr<Mark>& mark);

// The first of a queue. An error of queued work belongs to no call: the context is lost, as after a
// kernel's fault.
CUresult step(const std::shared_ptr<Queue>& queue) {
    Op op = std::move(queue->ops.front());
    queue->ops.pop_front();
    if (op.after)
        if (CUresult e = run_until(op.after)) return e;
    if (op.work)
        if (CUresult e = op.work()) {
            std::fprintf(stderr, "pymm simulator: queued work failed with error %d: it uses memory "
                                 "that is freed, or never was\n", e);
            poison(illegal_address);
            return illegal_address;
        }
    if (op.reached) op.reached->done = true;
    return success;
}

CUresult run_all(const std::shared_ptr<Queue>& queue) {
    while (!queue->ops.empty())
        if (CUresult e = step(queue)) return e;
    return success;
}

CUresult run_until(const std::shared_ptr<Mark>& mark) {
    auto queue = mark->queue.lock();
    while (!mark->done && queue && !queue->ops.empty())
        if (CUresult e = step(queue)) return e;
    return success;
}

CUresult run_queues(bool blocking_only) {
    for (std::size_t i = 0; i < queues.size(); i++)
        if (!blocking_only || queues[i]->blocking)
            if (CUresult e = run_all(queues[i])) return e;
    return success;
}

CUresult run_some() {
    for (std::uint64_t left = draw() % 4; left > 0 && !queues.empty(); left--) {
        auto queue = queues[draw() % queues.size()];
        if (!queue->ops.empty())
            if (CUresult e = step(queue)) return e;
    }
    return success;
}

CUresult put(const std::shared_ptr<Queue>& queue, Op op) {
    queue->ops.push_back(std::move(op));
    return when() == When::random ? run_some() : success;
}

template <class Thing>
void forget(std::vector<std::shared_ptr<Thing>>& known, const std::shared_ptr<Thing>& gone) {
    known.erase(std::remove(known.begin(), known.end(), gone), known.end());
}

CUresult invalidate(Capture& capture, CUresult why) {
    capture.invalid = true;
    return why;
}

bool live_event(void* event) {
    std::lock_guard lock(mutex);
    return events.count(event) != 0;
}

// For calls that wait for streams: none of these may be captured.
CUresult waits_for(const Queue* queue) {
    for (auto& capture : captures)
        if (!queue || queue->capture == capture) return invalidate(*capture, capture_unsupported);
    return success;
}

}  // namespace

bool pymm_sim::live_stream(void* stream) {
    auto number = reinterpret_cast<std::uintptr_t>(stream);
    if (number <= 2) return true;  // the default streams: null, legacy, per thread
    std::lock_guard lock(mutex);
    return streams.count(stream) != 0;
}

bool pymm_sim::launches_here(void* stream) {
    std::lock_guard lock(mutex);
    auto found = streams.find(stream);
    return found == streams.end() || found->second->device == current_device();
}

CUresult pymm_sim::in_stream(void* stream, Work work) {
    std::lock_guard lock(mutex);
    auto queue = queue_of(stream);
    if (!queue) {
        for (auto& capture : captures) {
            auto origin = queue_of(capture->origin);
            if (origin && origin->blocking) return invalidate(*capture, capture_implicit);
        }
        if (CUresult e = run_queues(true)) return e;
        return work();
    }
    if (queue->capture) {
        if (queue->capture->invalid) return capture_invalidated;
        record(*queue->capture, std::move(work));
        return success;
    }
    return when() == When::now ? work() : put(queue, {std::move(work), nullptr, nullptr});
}

CUresult pymm_sim::settle() {
    std::lock_guard lock(mutex);
    return run_queues(false);
}

CUresult pymm_sim::settle_default() {
    std::lock_guard lock(mutex);
    return run_queues(true);
}

CUresult pymm_sim::guard_unsafe() {
    if (CUresult e = guard()) return e;
    if (interaction == relaxed_mode) return success;
    std::lock_guard lock(mutex);
    for (auto& capture : captures) {
        const bool own = capturing[capture.get()] == std::this_thread::get_id();
        if (capture->mode == global_mode || (capture->mode == own_mode && own))
            return invalidate(*capture, capture_unsupported);
    }
    return success;
}

std::shared_ptr<Capture> pymm_sim::capture_of(void* stream) {
    std::lock_guard lock(mutex);
    auto queue = queue_of(stream);
    return queue ? queue->capture : nullptr;
}

std::shared_ptr<Capture> pymm_sim::begin_capture(void* stream, int mode) {
    std::lock_guard lock(mutex);
    auto queue = queue_of(stream);
    if (!queue || queue->capture) return nullptr;
    queue->capture = std::make_shared<Capture>();
    *queue->capture = {++capture_numbers, mode, stream, new_graph(), false};
    captures.push_back(queue->capture);
    capturing[queue->capture.get()] = std::this_thread::get_id();
    return queue->capture;
}

std::shared_ptr<Capture> pymm_sim::end_capture(void* stream) {
    std::lock_guard lock(mutex);
    auto queue = queue_of(stream);
    auto ended = queue ? queue->capture : nullptr;
    if (!ended || ended->origin != stream) return nullptr;
    for (auto& other : queues)
        if (other->capture == ended) other->capture = nullptr;
    forget(captures, ended);
    capturing.erase(ended.get());
    return ended;
}

CU_EXPORT CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
    if (!mode || *mode < global_mode || *mode > relaxed_mode) return invalid_value;
    std::swap(*mode, interaction);
    return success;
}

CU_EXPORT CUresult cuStreamCreateWithPriority(void** out, unsigned flags, int priority) {
    if (CUresult e = guard()) return e;
    if (!out || flags > 1) return invalid_value;
    std::lock_guard lock(mutex);
    auto* made = new Stream{flags, priority, new_queue(!(flags & non_blocking)), current_device()};
    streams[*out = made] = made;
    return success;
}

CU_EXPORT CUresult cuStreamCreate(void** out, unsigned flags) {
    return cuStreamCreateWithPriority(out, flags, 0);
}

// What is queued is still done.
CU_EXPORT CUresult cuStreamDestroy_v2(void* stream) {
    if (CUresult e = guard()) return e;
    std::lock_guard lock(mutex);
    auto found = streams.find(stream);
    if (found == streams.end()) return invalid_handle;
    if (when() == When::now) forget(queues, found->second->queue);
    delete found->second;
    streams.erase(found);
    return success;
}

CU_EXPORT CUresult cuStreamGetId(void* stream, unsigned long long* out) {
    if (CUresult e = guard()) return e;
    if (!out || !live_stream(stream)) return invalid_value;
    std::lock_guard lock(mutex);
    auto queue = queue_of(stream);
    if (queue && queue->capture)  // as seen with driver 580: the question ends the capture
        return invalidate(*queue->capture, capture_unsupported);
    *out = queue ? queue->number : 1;
    return success;
}

CU_EXPORT CUresult cuStreamQuery(void* stream) {
    if (CUresult e = guard()) return e;
    if (!live_stream(stream)) return invalid_handle;
    std::lock_guard lock(mutex);
    auto queue = queue_of(stream);
    if (queue && queue->capture) return invalidate(*queue->capture, capture_unsupported);
    if (!queue || queue->ops.empty()) return success;
    CUresult e = step(queue);  // whoever asks again and again sees progress
    return e ? e : queue->ops.empty() ? success : not_ready;
}

CU_EXPORT CUresult cuStreamSynchronize(void* stream) {
    if (CUresult e = guard()) return e;
    if (!live_stream(stream)) return invalid_handle;
    std::lock_guard lock(mutex);
    auto queue = queue_of(stream);
    if (!queue) return run_queues(true);
    if (CUresult e = waits_for(queue.get())) return e;
    CUresult e = run_all(queue);
    return e ? e : guard();
}

CU_EXPORT CUresult cuCtxSynchronize() {
    if (CUresult e = guard()) return e;
    std::lock_guard lock(mutex);
    if (CUresult e = waits_for(nullptr)) return e;
    CUresult e = run_queues(false);
    return e ? e : guard();
}

CU_EXPORT CUresult cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
    if (CUresult e = guard()) return e;
    if (flags > 1) return invalid_value;
    if (!live_stream(stream) || !live_event(event)) return invalid_handle;
    std::lock_guard lock(mutex);
    auto queue = queue_of(stream);
    auto* ev = static_cast<Event*>(event);
    if (ev->capture) {  // the stream joins the capture, where it has one
        if (!queue || (queue->capture && queue->capture != ev->capture)) return capture_isolation;
        queue->capture = ev->capture;
        return success;
    }
    if (queue && queue->capture)
        return ev->recorded ? invalidate(*queue->capture, capture_isolation) : success;
    if (!ev->mark || ev->mark->done) return success;
    return queue ? put(queue, {nullptr, ev->mark, nullptr}) : run_until(ev->mark);
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
    *out = new Event{flags, false, {}, nullptr, nullptr, current_device()};
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
    std::lock_guard lock(mutex);
    auto* ev = static_cast<Event*>(event);
    auto found = streams.find(stream);
    if ((found == streams.end() ? current_device() : found->second->device) != ev->device)
        return invalid_handle;
    auto queue = queue_of(stream);
    ev->recorded = true;
    ev->time = Clock::now();
    ev->mark = nullptr;
    ev->capture = queue ? queue->capture : nullptr;
    if (ev->capture) return ev->capture->invalid ? capture_invalidated : success;
    if (!queue) return run_queues(true);
    if (queue->ops.empty()) return success;
    ev->mark = std::make_shared<Mark>(Mark{queue, false});
    return put(queue, {nullptr, nullptr, ev->mark});
}

CU_EXPORT CUresult cuEventQuery(void* event) {
    if (CUresult e = guard()) return e;
    if (!live_event(event)) return invalid_handle;
    std::lock_guard lock(mutex);
    auto* ev = static_cast<Event*>(event);
    if (ev->capture) return invalidate(*ev->capture, capture_unsupported);
    if (!ev->mark || ev->mark->done) return success;
    auto queue = ev->mark->queue.lock();
    if (CUresult e = queue && !queue->ops.empty() ? step(queue) : success) return e;
    return ev->mark->done ? success : not_ready;
}

CU_EXPORT CUresult cuEventSynchronize(void* event) {
    if (CUresult e = guard()) return e;
    if (!live_event(event)) return invalid_handle;
    std::lock_guard lock(mutex);
    auto* ev = static_cast<Event*>(event);
    if (ev->capture) return invalidate(*ev->capture, capture_unsupported);
    CUresult e = ev->mark ? run_until(ev->mark) : success;
    return e ? e : guard();
}

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
