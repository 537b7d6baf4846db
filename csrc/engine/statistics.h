// What a run counted.
#pragma once

#include "base/types.h"

namespace remint {

struct Statistics {
  std::uint64_t num_ops = 0;
  // Bytes that were dropped to free up space, or because somebody asked for it.
  std::uint64_t num_evictions = 0;
  // Bytes that were dropped because the program released them, for good or while recipes still need them.
  std::uint64_t num_frees = 0;
  std::uint64_t num_rematerializations = 0;
  std::uint64_t num_searches = 0;
  // Bytes that left for the tier: with a transfer, or without one where the tier had an unchanged copy.
  std::uint64_t num_offloads = 0;
  std::uint64_t num_clean_offloads = 0;
  std::uint64_t num_fetches = 0;
  Bytes offloaded_bytes = 0;  // that were transferred
  Bytes fetched_bytes = 0;
  Nanoseconds transferring = 0;
  Nanoseconds computed = 0;  // by ops of the program, once each
  Nanoseconds rematerialized = 0;
  Nanoseconds searching = 0;  // real time
  Bytes moved_bytes = 0;
  // Bytes that left to free up space, or because somebody asked for it, whatever way.
  std::uint64_t num_evicted() const { return num_evictions + num_offloads + num_clean_offloads; }
  // What a run without a budget would not have spent.
  Nanoseconds bringing_back() const { return rematerialized + transferring; }
  double unusable_bytes = 0;  // free bytes that could not serve the request, summed over searches
};

}  // namespace remint
