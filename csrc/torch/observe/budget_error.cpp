#include "torch/observe/budget_error.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "torch/observe/figures.h"
#include "torch/session/owned_storages.h"
#include "torch/session/state.h"

namespace py = pybind11;

namespace remint {

std::string format_bytes(Bytes nbytes, Rounding rounding) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (nbytes < 1024) return std::to_string(nbytes) + " B";
  double number = static_cast<double>(nbytes) / 1024.0;
  std::size_t unit = 0;
  while (number >= 1024.0 && unit + 1 < std::size(kUnits)) {
    number /= 1024.0;
    ++unit;
  }
  if (rounding == Rounding::kUp) number = std::ceil(number * 10.0) / 10.0;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", number, kUnits[unit]);
  return text;
}

namespace {

// Where the memory of a budget is when something does not fit.
struct Shortage {
  std::vector<std::pair<std::string, Bytes>> pinned;
  Bytes pinned_bytes = 0;
  Bytes inputs = 0;   // of the op that runs, or of the replay that it waits for
  Bytes running = 0;  // what the op was given so far
  Bytes free = 0;
  Bytes largest_free = 0;
};

Shortage shortage_of(const SessionState& state) {
  Shortage s;
  s.pinned = pinned_by(state);
  for (const auto& [why, nbytes] : s.pinned) s.pinned_bytes += nbytes;
  const Records& records = state.engine->records();
  for (StorageId id = 0; id < records.num_storage_slots(); ++id) {
    const Storage& storage = records.storage(id);
    if (storage.in_use() && storage.has_bytes() && !storage.pinned && storage.locked())
      s.inputs += storage.nbytes;
  }
  for (const auto& [offset, raw] : state.owned->raw()) {
    if (raw.running) s.running += raw.nbytes;
  }
  s.free = state.options.budget - state.engine->memory().used();
  s.largest_free = state.arena->largest_free();
  return s;
}

std::string what_holds_the_memory(const Shortage& s) {
  std::string text = "In the way: ";
  text += s.pinned_bytes == 0 ? "nothing that cannot be evicted"
                              : format_bytes(s.pinned_bytes) + " that cannot be evicted";
  for (std::size_t i = 0; i < s.pinned.size() && i < 4; ++i) {
    text += (i == 0 ? " (" : "; ") + format_bytes(s.pinned[i].second) + " " + s.pinned[i].first;
  }
  if (!s.pinned.empty()) text += ")";
  if (s.inputs > 0) text += ", " + format_bytes(s.inputs) + " of inputs";
  if (s.running > 0) text += ", " + format_bytes(s.running) + " given to the op before";
  text += ". Free: " + format_bytes(s.free);
  if (s.largest_free < s.free) text += ", " + format_bytes(s.largest_free) + " of it in one piece";
  return text + ".";
}

// Why the tier did not help.
std::string state_of_tier(const SessionState& state) {
  const Tier& tier = *state.engine->tier();
  std::string text = "Offloaded: " + format_bytes(tier.used() - tier.clean_bytes()) + " of " +
                     format_bytes(state.options.engine.tier.bytes) + ".";
  if (!state.store->problem().empty()) text += " Nothing was lost, but " + state.store->problem() + ".";
  return text;
}

}  // namespace

void raise_budget_error(const std::string& message, Bytes min_budget, Bytes known_budget,
                        const std::string& op) {
  python_error error;
  {
    py::gil_scoped_acquire gil;
    py::object type = py::module_::import("remint.errors").attr("BudgetError");
    py::object known = known_budget == 0 ? py::object(py::none()) : py::object(py::int_(known_budget));
    py::object name = op.empty() ? py::object(py::none()) : py::object(py::str(op));
    py::object instance = type(message, py::arg("min_budget_bytes") = min_budget,
                               py::arg("known_budget_bytes") = known, py::arg("op") = name);
    PyErr_SetObject(type.ptr(), instance.ptr());
    error.persist();
  }
  throw std::move(error);
}

void warn_user(const std::string& message) {
  // Verbatim: PyTorch would add "Triggered internally at" and our file otherwise.
  c10::warn(c10::Warning(c10::UserWarning(), {"", "remint", 0}, "remint: " + message, /*verbatim=*/true));
}

void raise_shortage(SessionState& state, const OutOfMemory& error) {
  const Shortage s = shortage_of(state);
  const bool away = dynamic_cast<const SourceAway*>(&error) != nullptr;
  const bool in_circles = dynamic_cast<const ReplayInCircles*>(&error) != nullptr;
  const Bytes budget = state.options.budget;
  const Bytes waiting = in_circles ? std::max(error.at_once, error.requested) : error.requested;
  const Bytes needed = s.pinned_bytes + s.inputs + s.running + waiting;
  state.failed_need = std::max(state.failed_need, needed);

  // Advice is about programs on the CPU.
  const bool is_cpu = state.backend.device().is_cpu();
  const std::string op = state.current != nullptr ? state.current->name : "an allocation between ops";
  std::string message = "the budget of " + format_bytes(budget);
  if (state.options.several || !is_cpu) {
    message += " on " + state.backend.device().str();
  }
  message += " is too small for " + op;
  if (away) {
    message +=
        ": its inputs were evicted, and to recompute them takes parameters that FSDP has freed and not "
        "gathered again";
  } else if (in_circles) {
    message += ": the values that recomputing its inputs takes push each other out of memory";
  } else {
    message += ", which asked for " + format_bytes(error.requested);
  }
  message += ".\n" + what_holds_the_memory(s) + "\n";
  if (needed > budget) {
    message += "Use a budget of at least " + format_bytes(needed, Rounding::kUp) +
               ". That is a lower bound, known from this op: the whole step may need more." +
               (is_cpu ? " `remint advise` finds a budget that works." : "");
  } else {
    // In sum there is room, but not in one piece, or not for all that a replay takes on its way.
    message += "Use a larger budget. Which one works is not known; try " +
               format_bytes(budget + std::max(error.requested, budget / 10), Rounding::kUp) +
               (is_cpu ? ", or find one with `remint advise`." : ".");
  }
  if (state.store != nullptr) message += "\n" + state_of_tier(state);
  raise_budget_error(message, needed, 0, op);
}

}  // namespace remint
