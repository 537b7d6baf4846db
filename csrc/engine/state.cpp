#include "engine/state.h"

#include "policies/policy_table.h"

namespace remint {

EngineState::EngineState(const EngineOptions& options, std::unique_ptr<Memory> memory, Device& device)
    : settings(settings_for(options, dynamic_cast<Ideal*>(memory.get()) == nullptr)),
      memory(std::move(memory)),
      arena(dynamic_cast<Arena*>(this->memory.get())),
      candidates(records, *this->memory),
      tier(options.tier.bytes > 0 ? std::make_unique<Tier>(options.tier, records) : nullptr),
      policy(make_policy({options, settings, records, candidates, arena, tier.get()})),
      device(device),
      max_rematerialized(settings.max_rematerialized),
      deallocation(settings.deallocation) {}

void EngineState::tell_blocks(BlockChange change, StorageId id) {
  const Storage& s = records.storage(id);
  const bool placed = s.block != kNone;
  const BlockEvent event{clock,
                         change,
                         id,
                         root_tag(id),
                         placed ? memory->address(s.block) : 0,
                         placed ? memory->footprint(s.nbytes) : 0};
  observers.tell(Observer::kBlocks, [&](Observer& observer) { observer.block(event); });
}

void EngineState::tell_taken_blocks(BlockChange change, BlockId block, Bytes nbytes) {
  const BlockEvent event{clock, change, kNone, 0, memory->address(block), memory->footprint(nbytes)};
  observers.tell(Observer::kBlocks, [&](Observer& observer) { observer.block(event); });
}

}  // namespace remint
