// The options of the engine: one type, with one set of defaults, for simulations and for real runs.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "base/types.h"

namespace remint {

// How much `coop` and `clairvoyant` look at where there are many blocks, or many candidates.
enum class WindowLooks : std::uint8_t {
  kFew,       // a few stretches, or what an index says
  kAll,       // everything: slow. For tests
  kCompared,  // `coop`: a few stretches; then all blocks, to see what that would have found. For benchmarks
};

// Which way bytes leave that a recipe can make. What none can make goes to the tier in any case.
enum class TierUse : std::uint8_t {
  kEither,     // value by value, the way on which they are back sooner
  kRecompute,  // they are recomputed
  kOffload,    // they go to the tier, if the program has them
};

// Memory below the budget's own: tier.h.
struct TierOptions {
  Bytes bytes = 0;          // 0: there is none
  double bandwidth = 1e9;   // bytes per second, either way
  Nanoseconds latency = 0;  // of each transfer
  Bytes alignment = 4096;   // copies take multiples of it
  TierUse use = TierUse::kEither;
};

// Which evicted ancestors of a value cost nothing in the scores of `clairvoyant`: those that are made again
// for something else, too.
enum class SharedAncestors : std::uint8_t {
  kNone,
  kLater,  // if that is needed no earlier than the value
  kAll,
};

// What a caller can choose. What is not set depends on the memory and the policy: see `EngineSettings`.
struct EngineOptions {
  std::string policy = "dtr-eq";
  double ignore_small = 0.0;  // the policy passes over candidates smaller than this fraction of the mean size
  bool sample = false;        // the policy scores sqrt(n) candidates drawn at random instead of all n
  double time_exponent = 1.0;  // of the time until a value is needed, in the scores of `clairvoyant`
  SharedAncestors shared_ancestors = SharedAncestors::kNone;
  std::uint64_t seed = 0;  // for `sample` and the policy `random`
  WindowLooks windows = WindowLooks::kFew;
  Deallocation deallocation = Deallocation::kEager;
  std::optional<bool> partition;                  // unset: what the policy's row in the table says
  std::optional<bool> moving;                     // unset: on the arena
  std::optional<std::uint32_t> max_depth;         // unset: 10,000 on the arena
  std::optional<Nanoseconds> max_rematerialized;  // unset: no limit
  TierOptions tier;
  bool check = false;  // the caller checks the engine's books after every op: slow, for tests
};

// The options with all defaults filled in. Ideal memory has the semantics of DTR's reference: no addresses,
// so no partition and no moves, and no limit of depth.
struct EngineSettings {
  // DTR's reference: all outputs of an op are reserved at once and known before it runs, and dead records
  // stay, because their cost still counts in the scores of their neighbours.
  bool reference = false;
  Deallocation deallocation = Deallocation::kEager;
  bool partition = false;  // cheap and expensive bytes at two ends of the arena
  bool moving = false;     // blocks may be moved together where no free block is large enough
  // A value that takes a longer chain of ops than this to rematerialize is pinned, so that records do not
  // grow with the length of a loop.
  std::uint32_t max_depth = std::numeric_limits<std::uint32_t>::max();
  // More rematerialization than this raises Thrash.
  Nanoseconds max_rematerialized = std::numeric_limits<Nanoseconds>::max();
};

EngineSettings settings_for(const EngineOptions& options, bool arena);

}  // namespace remint
