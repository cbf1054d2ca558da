// In which order the threads of a cluster, mostly one block, get their turn.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "worker.hpp"

namespace pymm_sim {

bool read_order(Order& o) {
    const char* text = std::getenv("PYMM_SIMULATOR_ORDER");
    if (!text || !*text || !std::strcmp(text, "rotate")) return true;
    char* end = nullptr;
    if (!std::strcmp(text, "forward")) o.kind = Order::forward;
    else if (!std::strcmp(text, "backward")) o.kind = Order::backward;
    else if (!std::strncmp(text, "random:", 7) && text[7]) {
        o.kind = Order::random;
        o.seed = std::strtoull(text + 7, &end, 10);
    }
    if (o.kind != Order::rotate && (!end || !*end)) return true;
    std::fprintf(stderr, "pymm simulator: PYMM_SIMULATOR_ORDER=%s is not known; it may be forward, "
                         "backward, random:SEED or rotate\n", text);
    return false;
}

void shuffle(Worker& w) {  // Fisher-Yates over xorshift64
    for (unsigned i = w.threads - 1; i > 0; i--) {
        w.random ^= w.random << 13;
        w.random ^= w.random >> 7;
        w.random ^= w.random << 17;
        std::swap(w.order[i], w.order[w.random % (i + 1)]);
    }
}

void choose_order(Worker& w, std::uint64_t cluster) {
    const Order& wanted = w.launch->order;
    auto kind = wanted.kind;
    if (kind == Order::rotate) {
        constexpr decltype(kind) turns[] = {Order::forward, Order::backward, Order::random};
        kind = turns[(w.launch->serial + cluster) % 3];
    }
    for (unsigned i = 0; i < w.threads; i++)
        w.order[i] = static_cast<std::uint16_t>(kind == Order::backward ? w.threads - 1 - i : i);
    w.shuffled = kind == Order::random;
    w.random = (wanted.seed + 1) * 0x9E3779B97F4A7C15ull + cluster * 0xD1342543DE82EF95ull + 1;
    if (w.shuffled) shuffle(w);
}

}  // namespace pymm_sim
