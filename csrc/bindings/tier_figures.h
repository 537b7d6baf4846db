// The figures of the tier for Python, of simulations and of real runs.
#pragma once

#include <pybind11/pybind11.h>

#include "engine/engine.h"

namespace remint {

inline void add_tier_figures(pybind11::dict& d, const Statistics& s, Bytes peak) {
  d["num_offloads"] = s.num_offloads;
  d["num_clean_offloads"] = s.num_clean_offloads;
  d["num_fetches"] = s.num_fetches;
  d["offloaded_bytes"] = s.offloaded_bytes;
  d["fetched_bytes"] = s.fetched_bytes;
  d["transfer_ns"] = s.transferring;
  d["tier_peak_bytes"] = peak;
}

}  // namespace remint
