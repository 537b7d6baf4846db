#include "torch/observe/figures.h"

#include <algorithm>
#include <map>

#include "torch/session/owned_storages.h"
#include "torch/session/state.h"

namespace remint {
namespace {

constexpr const char* kMadeAsleep = "made while memory was plentiful (learn=False prevents it)";

std::string why_pinned(const SessionState& state, StorageId id) {
  const Records& records = state.engine->records();
  const OwnedStorage* owned = state.owned->owner(id);
  if (owned == nullptr) {
    // The program dropped it.
    for (ValueId value : records.storage(id).values) {
      for (const Value::Reader& reader : records.value(value).readers) {
        return "kept to run " + state.recipes[records.op(reader.op).tag].op->name + " again";
      }
    }
    return "about to be freed";
  }
  switch (owned->reason) {
    case PinReason::kParameter:
      return "parameters";
    case PinReason::kGradient:
      return "gradients";
    case PinReason::kAddressKnown:
      return "addresses handed out (numpy(), data_ptr() and the like)";
    case PinReason::kCollective:
      return "results of collectives, which cannot be repeated";
    case PinReason::kAsked:
      return "remint.pin";
    case PinReason::kAsleep:
      return kMadeAsleep;
    case PinReason::kNoRecipe:
      return owned->made_by != nullptr ? "made by " + owned->made_by->name + ", which cannot be repeated"
                                       : "filled where remint cannot see it";
    case PinReason::kNone:
      break;
  }
  // The engine pinned it: its inputs have changed since.
  return "made by " + (owned->made_by != nullptr ? owned->made_by->name : "an op") +
         ", whose inputs have changed or were freed since (like optimizer state)";
}

}  // namespace

Figures figures_of(const SessionState& state) {
  Figures figures;
  figures.statistics = state.engine->statistics();
  figures.num_scores = state.engine->num_scores();
  figures.num_storages = state.engine->records().num_storages();
  figures.budget = state.options.budget;
  figures.peak = state.engine->memory().peak();
  figures.used = state.engine->memory().used();
  figures.pinned = state.engine->pinned_bytes();
  for (const auto& [offset, raw] : state.owned->raw()) figures.pinned += raw.nbytes;
  figures.needed = std::max(state.engine->needed_bytes(), state.failed_need);
  figures.spilled = state.spilled;
  figures.collectives = state.collectives;
  if (const Tier* tier = state.engine->tier()) {
    figures.tier_used = tier->used();
    figures.tier_peak = tier->peak();
    figures.tier_bandwidth = tier->bandwidth();
    figures.transferred = state.transferred;
  }
  // With a soft wall what the budget manages is memory of the device's allocator, too.
  const Bytes managed = state.options.soft ? figures.used : 0;
  figures.outside = std::max<Bytes>(0, state.backend.ordinary_bytes() - state.ordinary_before - managed);
  return figures;
}

std::vector<std::pair<std::string, Bytes>> pinned_by(const SessionState& state) {
  std::map<std::string, Bytes> sums;
  const Records& records = state.engine->records();
  for (StorageId id = 0; id < records.num_storage_slots(); ++id) {
    const Storage& storage = records.storage(id);
    if (!storage.in_use() || !storage.pinned || storage.block == kNone) continue;
    sums[why_pinned(state, id)] += storage.nbytes;
  }
  for (const auto& [offset, raw] : state.owned->raw()) {
    if (!raw.running)
      sums[raw.address_known ? kMadeAsleep : "filled where remint cannot see it"] += raw.nbytes;
  }
  std::vector<std::pair<std::string, Bytes>> sorted(sums.begin(), sums.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

}  // namespace remint
