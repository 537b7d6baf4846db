#include "torch/observe/budget_error.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdio>

#include "torch/observe/figures.h"
#include "torch/session/owned_storages.h"
#include "torch/session/state.h"

namespace py = pybind11;

namespace remint {

std::string format_bytes(Bytes nbytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(nbytes) / (1024.0 * 1024.0));
  return text;
}

void raise_budget_error(const std::string& message, Bytes min_budget) {
  python_error error;
  {
    py::gil_scoped_acquire gil;
    py::object type = py::module_::import("remint.errors").attr("BudgetError");
    py::object instance = type(message, py::arg("min_budget_bytes") = min_budget);
    PyErr_SetObject(type.ptr(), instance.ptr());
    error.persist();
  }
  throw std::move(error);
}

void raise_shortage(SessionState& state, const OutOfMemory& error) {
  const auto pinned = pinned_by(state);
  Bytes pinned_bytes = 0;
  for (const auto& [why, nbytes] : pinned) pinned_bytes += nbytes;
  Bytes locked = 0;
  const Records& records = state.engine->records();
  for (StorageId id = 0; id < records.num_storage_slots(); ++id) {
    const Storage& storage = records.storage(id);
    if (storage.in_use() && storage.has_bytes() && !storage.pinned && storage.locked())
      locked += storage.nbytes;
  }
  Bytes running = 0;
  for (const auto& [offset, raw] : state.owned->raw()) {
    if (raw.running) running += raw.nbytes;
  }
  const bool in_circles = dynamic_cast<const ReplayInCircles*>(&error) != nullptr;
  const Bytes budget = state.options.budget;
  const Bytes waiting = in_circles ? std::max(error.at_once, error.requested) : error.requested;
  const Bytes at_once = locked + running + waiting;
  const Bytes needed = pinned_bytes + at_once;
  state.failed_need = std::max(state.failed_need, needed);
  // What cannot move splits the arena, so a budget of the sum alone may not do.
  const Bytes enough = needed <= budget ? budget + error.requested : needed;
  std::string message = format_bytes(budget) + " cannot hold " +
                        (state.current != nullptr ? state.current->name : "an allocation between ops") +
                        ", which needs " + format_bytes(at_once) + " at once: ";
  if (in_circles) {
    message +=
        "recomputing its inputs takes values that push each other out of memory, again and again. The last "
        "request that did not fit was " +
        format_bytes(error.requested);
  } else {
    message += "it asked for " + format_bytes(error.requested) + ", beside " + format_bytes(locked) +
               " of its inputs and " + format_bytes(running) + " it had already";
  }
  message += " (pinned: " + format_bytes(pinned_bytes);
  for (std::size_t i = 0; i < pinned.size() && i < 4; ++i) {
    message += (i == 0 ? ", of which " : "; ") + format_bytes(pinned[i].second) + " " + pinned[i].first;
  }
  message += "; " + format_bytes(budget - state.engine->memory().used()) + " are free, " +
             format_bytes(state.arena->largest_free()) + " of them in one piece). ";
  if (in_circles && needed <= budget) {
    message +=
        "Use a larger budget. The smallest one that works is not known; try " + format_bytes(enough) + ".";
  } else {
    message += "The smallest budget to get past this op is about " + format_bytes(enough) + ".";
  }
  raise_budget_error(message, needed);
}

}  // namespace remint
