#include "torch/session/known_step.h"

#include <unordered_map>
#include <unordered_set>

#include "torch/session/owned_storages.h"

namespace remint {

std::optional<FoundConstants> find_constants(SessionState& state, const KnownStep& known, std::uint32_t id,
                                             const StepBefore& before) {
  FoundConstants result;
  Surroundings& surroundings = result.surroundings;
  std::vector<Bytes>& sizes = result.sizes;
  std::unordered_map<std::uint64_t, OwnedStorage*> owners;
  std::unordered_map<std::uint64_t, Bytes> raw_offsets;
  for (OwnedStorage* owned : state.owned->owners()) {
    if (owned != nullptr) owners[state.number_of(owned->value)] = owned;
  }
  for (const auto& [offset, raw] : state.owned->raw()) raw_offsets[raw.number] = offset;
  std::unordered_set<Bytes> taken;
  for (std::size_t i = 0; i < known.roles.size(); ++i) {
    const Role& role = known.roles[i];
    const Bytes nbytes = known.trace.columns.nbytes[i];
    Occupied there{-1, 0};
    sizes.push_back(nbytes);
    if (known.trace.columns.aliases[i] == kElsewhere) {
      surroundings.constants.push_back(there);
      continue;
    }
    std::uint64_t number = role.number;
    if (role.step != kNone) {
      if (role.step != before.id) return std::nullopt;
      number = before.numbers.number_at(number);
    }
    if (auto raw = raw_offsets.find(number); raw != raw_offsets.end()) {
      there = {raw->second, state.arena->footprint(nbytes)};
    } else if (auto found = owners.find(number); found != owners.end()) {
      const ValueId value = found->second->value;
      if (state.storage_of(value).nbytes != nbytes) return std::nullopt;
      if (!state.engine->defined(value) && known.trace.read[i]) {
        try {
          state.engine->materialize(value);
        } catch (const OutOfMemory&) {
          return std::nullopt;
        }
      }
      const Storage& s = state.storage_of(value);
      if (s.has_bytes() && s.block != kNone)
        there = {state.arena->block(s.block).address, state.arena->footprint(nbytes)};
    } else {
      return std::nullopt;
    }
    if (there.address < 0) {
      sizes.back() = 0;
    } else {
      taken.insert(there.address);
    }
    surroundings.constants.push_back(there);
    if (role.step == id && before.id == id) {
      surroundings.heirs.emplace_back(static_cast<std::uint32_t>(role.number), static_cast<std::uint32_t>(i));
    }
  }
  for (BlockId block_id = state.arena->first(); block_id != kNone;
       block_id = state.arena->block(block_id).next) {
    const Arena::Block& block = state.arena->block(block_id);
    if (!block.free() && taken.count(block.address) == 0)
      surroundings.others.push_back({block.address, block.nbytes});
  }
  return result;
}

}  // namespace remint
