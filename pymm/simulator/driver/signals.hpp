// The handlers stand only while a kernel runs; outside, faults are Python's own affair.
#pragma once

namespace pymm_sim {
void catch_signals();
void release_signals();
}  // namespace pymm_sim
