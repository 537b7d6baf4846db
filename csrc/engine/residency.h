// Where the bytes of a storage are: one state per storage, and the legal changes between states.
//
//                    recorded                       evicted, taken over
//      (free slot) ───────────▶ evicted ◀──────────────────────────────── resident
//           ▲                    │  │  ──────────────────────────────────▶   │
//           │      dropped       │  │            made, taken over            │ moved out
//           ├────────────────────┘  │                                        ▼
//           │                       └─────────────────────────────────▶  elsewhere
//           │                                   adopted                   │      ▲
//           └────────────────────────  cached  ◀──────────────────────────┘      │ used again
//                      dropped            └───────────────────────────────────────┘
//
// Two more states are for a lower tier (tier.h):
//   resident ──copied out──▶ resident with a copy ──dropped──▶ offloaded ──fetched──▶ resident with a copy
// Once its bytes are written, or were moved out, a resident storage has no copy any more. An offloaded one
// that a recipe can make gives its copy up when the program releases it.
//
// Whether bytes may be evicted or moved is said by `pinned`, `fixed` and the locks of a storage, not here.
#pragma once

#include <cstdint>

namespace remint {

enum class Residency : std::uint8_t {
  kFree,              // the slot of the table holds no storage: it is gone
  kEvicted,           // no bytes; a recipe makes them (for the first time, too)
  kResident,          // in a block of the memory
  kElsewhere,         // a constant in memory that is not ours: it has no block and counts no bytes
  kCached,            // the same, but nothing needs it now: only the record is there, for its next use
  kOffloaded,         // a copy in a lower tier, no block
  kResidentWithCopy,  // in a block, and an unchanged copy is in a lower tier
};

// Whether an op could read the bytes right now.
constexpr bool has_bytes(Residency residency) {
  return residency == Residency::kResident || residency == Residency::kElsewhere ||
         residency == Residency::kCached || residency == Residency::kResidentWithCopy;
}

// Whether nothing has to run again to have the bytes: they are there, or in a lower tier.
constexpr bool is_kept(Residency residency) {
  return has_bytes(residency) || residency == Residency::kOffloaded;
}

constexpr bool is_legal(Residency from, Residency to) {
  using R = Residency;
  switch (from) {
    case R::kFree:
      return to == R::kEvicted;
    case R::kEvicted:
      return to == R::kResident || to == R::kElsewhere || to == R::kFree;
    case R::kResident:
      return to == R::kEvicted || to == R::kElsewhere || to == R::kResidentWithCopy;
    case R::kElsewhere:
      return to == R::kEvicted || to == R::kCached;
    case R::kCached:
      return to == R::kElsewhere || to == R::kFree;
    case R::kOffloaded:
      return to == R::kResidentWithCopy || to == R::kEvicted || to == R::kElsewhere;
    case R::kResidentWithCopy:
      return to == R::kOffloaded || to == R::kResident;
  }
  return false;
}

}  // namespace remint
