// What a session says about itself: figures, and what did not fit.
#include <algorithm>
#include <cstdio>
#include <map>

#include "torch/session/session.h"

namespace remint {
namespace {

std::string format_bytes(Bytes nbytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(nbytes) / (1024.0 * 1024.0));
  return text;
}

}  // namespace

Session::Figures Session::figures() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (closed_) return final_;
  Figures figures;
  figures.statistics = engine_->statistics();
  figures.num_scores = engine_->num_scores();
  figures.num_storages = engine_->records().num_storages();
  figures.budget = options_.budget;
  figures.peak = engine_->memory().peak();
  figures.used = engine_->memory().used();
  figures.pinned = engine_->pinned_bytes();
  for (const auto& [offset, loose] : loose_) figures.pinned += loose.nbytes;
  figures.needed = std::max(engine_->needed_bytes(), failed_need_);
  figures.spilled = spilled_;
  figures.bookkeeping = bookkeeping_;
  return figures;
}

std::vector<OperatorStatistics> Session::by_operator() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  std::vector<OperatorStatistics> rows;
  for (const auto& [key, statistics] : by_operator_) {
    rows.push_back(statistics);
    rows.back().op = key.first;
    if (key.second != kNone) rows.back().place = source_lines_->place(key.second);
  }
  return rows;
}

std::vector<DecisionLog::Event> Session::events() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return events_.events();
}

std::vector<Timeline::Sample> Session::timeline() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return timeline_.samples();
}

void Session::set_costs(std::vector<Given> costs) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  given_costs_ = std::move(costs);
  next_cost_ = 0;
}

void Session::check() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (closed_ || busy_) return;
  settle();
  engine_->check();
}

std::string Session::why_pinned(StorageId id) const {
  const Held* held = id < holders_.size() ? holders_[id] : nullptr;
  if (held == nullptr) {
    // The program let go of it.
    for (ValueId value : engine_->records().storage(id).values) {
      for (const Value::Reader& reader : engine_->records().value(value).readers) {
        const auto* recipe = reinterpret_cast<const Recipe*>(engine_->records().op(reader.op).tag);
        return "kept to run " + recipe->op->name + " again";
      }
    }
    return "about to be freed";
  }
  switch (held->why) {
    case Why::kParameter:
      return "parameters";
    case Why::kGradient:
      return "gradients";
    case Why::kHandedOut:
      return "addresses handed out (numpy(), data_ptr() and the like)";
    case Why::kAsked:
      return "remint.pin";
    case Why::kNoRecipe:
      return held->made_by != nullptr ? "made by " + held->made_by->name + ", which cannot be repeated"
                                      : "filled where remint cannot see it";
    case Why::kNone:
      break;
  }
  // The engine pinned it: what it was computed from has changed since. Mostly gradients and optimizer state.
  return "made by " + (held->made_by != nullptr ? held->made_by->name : "an op") +
         " from what was overwritten since (gradients, optimizer state)";
}

std::vector<std::pair<std::string, Bytes>> Session::pinned_by() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  std::map<std::string, Bytes> sums;
  if (closed_) return {};
  for (StorageId id = 0; id < engine_->records().num_storage_slots(); ++id) {
    const Storage& storage = engine_->records().storage(id);
    if (!storage.in_use() || !storage.pinned || storage.block == kNone) continue;
    sums[why_pinned(id)] += storage.nbytes;
  }
  for (const auto& [offset, loose] : loose_) {
    if (!loose.running) sums["filled where remint cannot see it"] += loose.nbytes;
  }
  std::vector<std::pair<std::string, Bytes>> sorted(sums.begin(), sums.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

void Session::fail(const OutOfMemory& error) {
  const auto pinned = pinned_by();
  Bytes pinned_bytes = 0;
  for (const auto& [why, nbytes] : pinned) pinned_bytes += nbytes;
  Bytes locked = 0;
  for (StorageId id = 0; id < engine_->records().num_storage_slots(); ++id) {
    const Storage& storage = engine_->records().storage(id);
    if (storage.in_use() && storage.has_bytes() && !storage.pinned && storage.locked())
      locked += storage.nbytes;
  }
  Bytes running = 0;
  for (const auto& [offset, loose] : loose_) {
    if (loose.running) running += loose.nbytes;
  }
  const Bytes at_once = locked + running + error.requested;
  // What cannot move splits the arena, so a budget of the sum alone may not do.
  Bytes enough = pinned_bytes + at_once;
  failed_need_ = std::max(failed_need_, enough);
  if (enough <= options_.budget) enough = options_.budget + error.requested;
  std::string message = format_bytes(options_.budget) + " cannot hold " +
                        (current_ != nullptr ? current_->name : "an allocation between ops") +
                        ", which needs " + format_bytes(at_once) + " at once: it asked for " +
                        format_bytes(error.requested) + ", beside " + format_bytes(locked) +
                        " of its inputs and " + format_bytes(running) +
                        " it had already (pinned: " + format_bytes(pinned_bytes);
  for (std::size_t i = 0; i < pinned.size() && i < 4; ++i) {
    message += (i == 0 ? ", of which " : "; ") + format_bytes(pinned[i].second) + " " + pinned[i].first;
  }
  message += "; " + format_bytes(options_.budget - engine_->memory().used()) + " are free, " +
             format_bytes(arena_->largest_free()) + " of them in one piece";
  message += "). The smallest budget to get past this op is about " + format_bytes(enough) + ".";
  raise_budget_error(message, pinned_bytes + at_once);
}

}  // namespace remint
