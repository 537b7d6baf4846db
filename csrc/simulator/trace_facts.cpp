#include <algorithm>
#include <vector>

#include "simulator/trace_columns.h"

namespace remint {

TraceFacts trace_facts(const TraceColumns& trace) {
  TraceFacts facts;
  // Storages are numbered by the tensor that is their root. An in-place op makes a fresh one in DTR's
  // reference, which the peak follows, and none where it writes in place, which the lower bound must allow
  // for.
  std::vector<std::int32_t> root(trace.num_tensors);
  std::vector<std::int32_t> root_in_place(trace.num_tensors);
  std::vector<std::int32_t> holders(trace.num_tensors, 0);
  std::vector<std::int32_t> holders_in_place(trace.num_tensors, 0);
  std::vector<char> constant(trace.num_tensors, 0);
  std::vector<std::size_t> counted_by(trace.num_tensors, ~std::size_t{0});
  auto nbytes = [&](std::int32_t tensor) {
    return trace.aliases[tensor] == kElsewhere ? 0 : trace.nbytes[tensor];
  };
  Bytes live = 0;
  Bytes live_constants = 0;
  for (std::size_t e = 0; e < trace.num_events; ++e) {
    const EventKind kind = trace.kind(e);
    if (kind >= EventKind::kMark) continue;
    if (kind == EventKind::kRelease) {
      const std::int32_t tensor = trace.args[trace.arg_offsets[e]];
      if (--holders[root[tensor]] == 0) live -= nbytes(root[tensor]);
      const std::int32_t storage = root_in_place[tensor];
      if (--holders_in_place[storage] == 0 && constant[storage]) live_constants -= nbytes(storage);
      continue;
    }
    Bytes at_hand = 0;
    for (std::int64_t a = trace.arg_offsets[e]; a < trace.arg_offsets[e + 1]; ++a) {
      const std::int32_t storage = root_in_place[trace.args[a]];
      // Once an op overwrote all of it, that op can make it again.
      if (constant[storage] && trace.effects[a] == kOverwrites) {
        constant[storage] = 0;
        live_constants -= nbytes(storage);
      }
      if (constant[storage] || counted_by[storage] == e) continue;
      counted_by[storage] = e;
      at_hand += nbytes(storage);
    }
    for (std::int64_t t = trace.out_offsets[e]; t < trace.out_offsets[e + 1]; ++t) {
      const std::int32_t tensor = static_cast<std::int32_t>(t);
      root[t] = root_in_place[t] = tensor;
      if (trace.aliases[t] >= 0) {
        const std::int32_t arg = trace.args[trace.arg_offsets[e] + trace.aliases[t]];
        root_in_place[t] = root_in_place[arg];
        if (kind != EventKind::kMutate) root[t] = root[arg];
      }
      ++holders[root[t]];
      ++holders_in_place[root_in_place[t]];
      if (root[t] == tensor) live += nbytes(tensor);
      if (root_in_place[t] != tensor) continue;
      if (kind == EventKind::kConstant) {
        constant[t] = 1;
        facts.constant_bytes += nbytes(tensor);
        live_constants += nbytes(tensor);
      } else {
        at_hand += nbytes(tensor);
      }
    }
    facts.computed += trace.nanoseconds[e];
    facts.peak_bytes = std::max(facts.peak_bytes, live);
    if (live_constants + at_hand > facts.min_budget_bytes) {
      facts.min_budget_bytes = live_constants + at_hand;
      facts.min_budget_event = e;
    }
  }
  return facts;
}

}  // namespace remint
