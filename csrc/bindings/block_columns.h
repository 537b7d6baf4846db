// The log of blocks for Python: one array per column, the changes as a string.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "engine/observer.h"

namespace remint {

inline pybind11::tuple block_columns(const std::vector<BlockEvent>& log) {
  const auto size = static_cast<pybind11::ssize_t>(log.size());
  pybind11::array_t<double> seconds(size);
  std::string changes(log.size(), ' ');
  pybind11::array_t<std::int64_t> storages(size), tags(size), addresses(size), nbytes(size);
  for (std::size_t i = 0; i < log.size(); ++i) {
    const BlockEvent& event = log[i];
    seconds.mutable_data()[i] = static_cast<double>(event.time - 1) * 1e-9;
    changes[i] = static_cast<char>(event.change);
    storages.mutable_data()[i] = event.storage == kNone ? -1 : static_cast<std::int64_t>(event.storage);
    tags.mutable_data()[i] = static_cast<std::int64_t>(event.tag);
    addresses.mutable_data()[i] = event.address;
    nbytes.mutable_data()[i] = event.nbytes;
  }
  return pybind11::make_tuple(seconds, changes, storages, tags, addresses, nbytes);
}

}  // namespace remint
