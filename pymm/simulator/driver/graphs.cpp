// Graphs: of kernels, each behind at most one other; and of work that was captured, in the order in
// which it was put on the streams. A graph that is done runs by itself: no second launch of it
// begins before the first has ended.
#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "driver.hpp"

using namespace pymm_sim;

namespace {

struct Node {
    Prepared kernel;
    Node* before = nullptr;
    bool early = false;
};
// What lives as long as a graph and all that was made of it.
struct UserObject {
    void* argument;
    void (*destroy)(void*);
    ~UserObject() { destroy(argument); }
};
using UserObjects = std::vector<std::shared_ptr<UserObject>>;
struct Graph {
    std::vector<std::unique_ptr<Node>> nodes;
    std::vector<Work> captured;
    UserObjects owned;
};
struct Runnable {
    std::vector<Work> steps;  // in order
    UserObjects owned;
};

// CUDA_KERNEL_NODE_PARAMS_v2 and CUgraphEdgeData (cuda.h).
struct KernelNode {
    void* function;
    unsigned grid[3], block[3], dynamic;
    void **parameters, **extra;
    void *kernel, *context;
};
struct Edge {
    unsigned char from_port, to_port, type, unused[5];
};
static_assert(sizeof(KernelNode) == 72 && sizeof(Edge) == 8, "as in cuda.h");

std::mutex mutex;
std::set<Graph*> graphs;
std::map<Runnable*, std::shared_ptr<Runnable>> runnables;
std::map<UserObject*, std::pair<std::shared_ptr<UserObject>, unsigned>> objects;

bool lives(Graph* graph) {
    std::lock_guard lock(mutex);
    return graphs.count(graph) != 0;
}
Node* node_of(const Graph& graph, Node* node) {
    for (auto& one : graph.nodes)
        if (one.get() == node) return node;
    return nullptr;
}

}  // namespace

void pymm_sim::record(Capture& capture, Work work) {
    std::lock_guard lock(mutex);
    static_cast<Graph*>(capture.graph)->captured.push_back(std::move(work));
}

void* pymm_sim::new_graph() {
    std::lock_guard lock(mutex);
    auto* graph = new Graph;
    graphs.insert(graph);
    return graph;
}

CU_EXPORT CUresult cuGraphCreate(Graph** out, unsigned flags) {
    if (CUresult e = guard_alive()) return e;
    if (!out || flags) return invalid_value;
    *out = static_cast<Graph*>(new_graph());
    return success;
}

CU_EXPORT CUresult cuGraphDestroy(Graph* graph) {
    std::unique_ptr<Graph> gone;  // what it owned is told without the lock
    std::lock_guard lock(mutex);
    if (!graphs.erase(graph)) return invalid_value;
    gone.reset(graph);
    return success;
}

CU_EXPORT CUresult cuGraphAddKernelNode_v2(Node** out, Graph* graph, Node* const*,
                                           std::size_t dependencies, const KernelNode* k) {
    if (CUresult e = guard()) return e;
    if (!out || !k || dependencies || !lives(graph)) return invalid_value;
    auto node = std::make_unique<Node>();
    const dim3 grid(k->grid[0], k->grid[1], k->grid[2]);
    const dim3 block(k->block[0], k->block[1], k->block[2]);
    if (CUresult e = prepare(node->kernel, k->function, grid, block, k->dynamic, k->parameters,
                             k->extra))
        return e;
    *out = node.get();
    graph->nodes.push_back(std::move(node));
    return success;
}

CU_EXPORT CUresult cuGraphAddDependencies_v2(Graph* graph, Node* const* from, Node* const* to,
                                             const Edge* edges, std::size_t count) {
    if (CUresult e = guard_alive()) return e;
    if (!lives(graph) || !from || !to) return invalid_value;
    for (std::size_t i = 0; i < count; i++) {
        Node *first = node_of(*graph, from[i]), *second = node_of(*graph, to[i]);
        const bool early = edges && edges[i].type == 1;
        if (!first || !second || (edges && edges[i].from_port != early)) return invalid_value;
        if (second->before) return not_supported;
        second->before = first;
        second->early = early;
    }
    return success;
}

CU_EXPORT CUresult cuGraphInstantiateWithFlags(Runnable** out, Graph* graph,
                                               unsigned long long flags) {
    if (CUresult e = guard_alive()) return e;
    if (!out || flags || !lives(graph)) return invalid_value;
    auto made = std::make_shared<Runnable>();
    Node* last = nullptr;  // who has none before it comes first
    for (std::size_t i = 0; i < graph->nodes.size(); i++) {
        auto next = std::find_if(graph->nodes.begin(), graph->nodes.end(),
                                 [&](auto& node) { return node->before == last; });
        if (next == graph->nodes.end()) return invalid_value;
        last = next->get();
        made->steps.push_back([kernel = last->kernel, early = last->early] {
            return launch(kernel, early);
        });
    }
    made->steps.insert(made->steps.end(), graph->captured.begin(), graph->captured.end());
    made->owned = graph->owned;
    std::lock_guard lock(mutex);
    runnables[*out = made.get()] = made;
    return success;
}

CU_EXPORT CUresult cuGraphExecDestroy(Runnable* runnable) {
    std::shared_ptr<Runnable> gone;
    std::lock_guard lock(mutex);
    auto found = runnables.find(runnable);
    if (found == runnables.end()) return invalid_value;
    gone = found->second;
    runnables.erase(found);
    return success;
}

CU_EXPORT CUresult cuGraphLaunch(Runnable* runnable, void* stream) {
    if (CUresult e = guard()) return e;
    if (!live_stream(stream)) return invalid_handle;
    std::shared_ptr<Runnable> own;
    {
        std::lock_guard lock(mutex);
        auto found = runnables.find(runnable);
        if (found == runnables.end()) return invalid_value;
        own = found->second;
    }
    return in_stream(stream, [own]() -> CUresult {
        for (const Work& step : own->steps)
            if (CUresult e = step()) return e;
        return success;
    });
}

CU_EXPORT CUresult cuUserObjectCreate(UserObject** out, void* argument, void (*destroy)(void*),
                                      unsigned references, unsigned flags) {
    if (CUresult e = guard_alive()) return e;
    if (!out || !destroy || !references || flags != 1) return invalid_value;
    std::shared_ptr<UserObject> made(new UserObject{argument, destroy});
    std::lock_guard lock(mutex);
    objects[*out = made.get()] = {made, references};
    return success;
}

CU_EXPORT CUresult cuGraphRetainUserObject(Graph* graph, UserObject* object, unsigned count,
                                           unsigned flags) {
    if (CUresult e = guard_alive()) return e;
    if (!lives(graph) || count != 1 || flags > 1) return invalid_value;
    std::lock_guard lock(mutex);
    auto found = objects.find(object);
    if (found == objects.end()) return invalid_value;
    graph->owned.push_back(found->second.first);
    if (flags == 1 && --found->second.second == 0) objects.erase(found);  // the caller's moves
    return success;
}

CU_EXPORT CUresult cuStreamBeginCapture_v2(void* stream, int mode) {
    if (CUresult e = guard()) return e;
    if (!live_stream(stream) || mode < 0 || mode > 2) return invalid_value;
    return begin_capture(stream, mode) ? success : capture_unsupported;
}

CU_EXPORT CUresult cuStreamEndCapture(void* stream, Graph** out) {
    if (CUresult e = guard()) return e;
    if (!live_stream(stream) || !out) return invalid_value;
    *out = nullptr;
    auto ended = end_capture(stream);
    if (!ended) return capture_unmatched;
    if (ended->invalid) {
        cuGraphDestroy(static_cast<Graph*>(ended->graph));
        return capture_invalidated;
    }
    *out = static_cast<Graph*>(ended->graph);
    return success;
}

CU_EXPORT CUresult cuStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* number,
                                             void** graph, void**, std::size_t*) {
    if (CUresult e = guard()) return e;
    if (!status || !live_stream(stream)) return invalid_value;
    auto capture = capture_of(stream);
    *status = !capture ? 0 : capture->invalid ? 2 : 1;
    if (capture && number) *number = capture->number;
    if (capture && graph) *graph = capture->graph;
    return success;
}

CU_EXPORT CUresult cuStreamIsCapturing(void* stream, int* status) {
    return cuStreamGetCaptureInfo_v2(stream, status, nullptr, nullptr, nullptr, nullptr);
}
