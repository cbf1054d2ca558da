// Graphs of kernels, each behind at most one other. Nothing is captured into them.
#include <algorithm>
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
struct Graph {
    std::vector<std::unique_ptr<Node>> nodes;
};
using Step = std::pair<Prepared, bool>;  // in order, and whether it may begin early
using Runnable = std::vector<Step>;

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
std::set<Runnable*> runnables;

template <class Thing>
bool take(std::set<Thing*>& known, Thing* thing) {
    std::lock_guard lock(mutex);
    if (!known.erase(thing)) return false;
    delete thing;
    return true;
}
template <class Thing>
bool lives(const std::set<Thing*>& known, Thing* thing) {
    std::lock_guard lock(mutex);
    return known.count(thing) != 0;
}
Node* node_of(const Graph& graph, Node* node) {
    for (auto& one : graph.nodes)
        if (one.get() == node) return node;
    return nullptr;
}

}  // namespace

CU_EXPORT CUresult cuGraphCreate(Graph** out, unsigned flags) {
    if (CUresult e = guard_alive()) return e;
    if (!out || flags) return invalid_value;
    std::lock_guard lock(mutex);
    graphs.insert(*out = new Graph);
    return success;
}

CU_EXPORT CUresult cuGraphDestroy(Graph* graph) {
    return take(graphs, graph) ? success : invalid_value;
}

CU_EXPORT CUresult cuGraphAddKernelNode_v2(Node** out, Graph* graph, Node* const*,
                                           std::size_t dependencies, const KernelNode* k) {
    if (CUresult e = guard()) return e;
    if (!out || !k || dependencies || !lives(graphs, graph)) return invalid_value;
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
    if (!lives(graphs, graph) || !from || !to) return invalid_value;
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
    if (!out || flags || !lives(graphs, graph)) return invalid_value;
    auto made = std::make_unique<Runnable>();
    Node* last = nullptr;  // who has none before it comes first
    for (std::size_t i = 0; i < graph->nodes.size(); i++) {
        auto next = std::find_if(graph->nodes.begin(), graph->nodes.end(),
                                 [&](auto& node) { return node->before == last; });
        if (next == graph->nodes.end()) return invalid_value;
        last = next->get();
        made->emplace_back(last->kernel, last->early);
    }
    std::lock_guard lock(mutex);
    runnables.insert(*out = made.release());
    return success;
}

CU_EXPORT CUresult cuGraphExecDestroy(Runnable* runnable) {
    return take(runnables, runnable) ? success : invalid_value;
}

CU_EXPORT CUresult cuGraphLaunch(Runnable* runnable, void* stream) {
    if (CUresult e = guard()) return e;
    if (!live_stream(stream)) return invalid_handle;
    if (!lives(runnables, runnable)) return invalid_value;
    for (const Step& step : *runnable)
        if (CUresult e = launch(step.first, step.second)) return e;
    return success;
}

CU_EXPORT CUresult cuStreamIsCapturing(void* stream, int* status) {
    if (CUresult e = guard()) return e;
    if (!status || !live_stream(stream)) return invalid_value;
    *status = 0;
    return success;
}
