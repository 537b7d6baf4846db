// A trace as the core sees it: the columns of remint.trace.Trace. See there for what they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace remint {

enum class EventKind : std::uint8_t {
  kConstant,
  kCall,
  kView,
  kMutate,
  kRelease,
  kMark,
  kPin,          // it is never evicted from now on
  kFix,          // nor moved
  kMaterialize,  // it is read outside of all ops
};

// A tensor that shares no argument's storage.
inline constexpr std::int32_t kFresh = -1;
inline constexpr std::int32_t kOnce = -2;       // it cannot be recomputed, though an op made it
inline constexpr std::int32_t kRaw = -3;        // so, and it has no record before an op reads it
inline constexpr std::int32_t kElsewhere = -4;  // a constant that takes no bytes of the budget

// What an op does to an argument beside what `aliases` says.
inline constexpr std::uint8_t kReads = 0;
inline constexpr std::uint8_t kSideEffect = 1;  // writes it, and nothing that it makes depends on it
inline constexpr std::uint8_t kOverwrites = 2;  // writes all of it and reads nothing of it

struct TraceColumns {
  std::size_t num_events = 0;
  std::size_t num_tensors = 0;
  std::size_t num_held = 0;
  const std::uint8_t* kinds = nullptr;
  const std::int64_t* nanoseconds = nullptr;
  const std::int64_t* arg_offsets = nullptr;
  const std::int32_t* args = nullptr;
  const std::uint8_t* effects = nullptr;
  const std::int64_t* out_offsets = nullptr;
  const std::int64_t* nbytes = nullptr;
  const std::int32_t* aliases = nullptr;
  const std::int64_t* request_offsets = nullptr;
  const std::int64_t* request_bytes = nullptr;
  const std::int32_t* request_outputs = nullptr;
  const std::int32_t* held = nullptr;

  EventKind kind(std::size_t event) const { return static_cast<EventKind>(kinds[event]); }
};

// Columns that are being written.
struct RecordedColumns {
  std::vector<std::uint8_t> kinds;
  std::vector<std::int64_t> nanoseconds;
  std::vector<std::uint64_t> signatures;  // ops of one kind: operator, sizes and types
  std::vector<std::int32_t> names;
  std::vector<std::int32_t> sources;
  std::vector<std::int64_t> arg_offsets{0};
  std::vector<std::int32_t> args;
  std::vector<std::uint8_t> effects;
  std::vector<std::int64_t> out_offsets{0};
  std::vector<std::int64_t> nbytes;
  std::vector<std::int32_t> aliases;
  std::vector<std::int64_t> request_offsets{0};
  std::vector<std::int64_t> request_bytes;
  std::vector<std::int32_t> request_outputs;

  // Nothing is held.
  TraceColumns view() const {
    TraceColumns view;
    view.num_events = kinds.size();
    view.num_tensors = nbytes.size();
    view.kinds = kinds.data();
    view.nanoseconds = nanoseconds.data();
    view.arg_offsets = arg_offsets.data();
    view.args = args.data();
    view.effects = effects.data();
    view.out_offsets = out_offsets.data();
    view.nbytes = nbytes.data();
    view.aliases = aliases.data();
    view.request_offsets = request_offsets.data();
    view.request_bytes = request_bytes.data();
    view.request_outputs = request_outputs.data();
    return view;
  }
};

// What can be said of a trace without running it.
struct TraceFacts {
  Bytes peak_bytes = 0;        // when storages are freed as soon as the program releases them
  Bytes min_budget_bytes = 0;  // no schedule can do with less: one op's inputs and outputs, and the constants
  std::size_t min_budget_event = 0;  // the op that needs so much
  Bytes constant_bytes = 0;
  Nanoseconds computed = 0;
};

TraceFacts trace_facts(const TraceColumns& trace);

}  // namespace remint
