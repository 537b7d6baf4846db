// The events of one step, cut out of what a session recorded, as a trace of their own.
//
// What the program had when the step began comes first, as constants, in the order in which the step touches
// them, and so does memory outside of the budget, whenever it got its numbers. So two steps that do the same
// have the same trace, whatever numbers their tensors had in the session.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "simulator/trace_columns.h"

namespace remint {

// Something that the program had when the step began.
struct Existing {
  Bytes nbytes;
  std::int32_t where;          // kFresh, kRaw or kElsewhere
  std::uint64_t first_number;  // of memory outside of the budget: the first one that it ever had
};

struct StepTrace {
  RecordedColumns columns;
  std::vector<std::int32_t> held;        // tensors that the step does not release
  std::vector<std::uint64_t> constants;  // what the session called the constants
  std::vector<char> read;                // per constant: whether the step does more with it than release it

  std::size_t num_constants() const { return constants.size(); }
  TraceColumns view() const;
  // Whether the other step does the same. Costs do not count.
  bool same_as(const StepTrace& other) const;
  std::size_t num_bytes() const;
};

// Nothing if the step touches a tensor that was neither there nor made. `outside`: of the constants outside
// of the budget that were recorded, the first numbers that they ever had.
std::optional<StepTrace> cut_step(const RecordedColumns& recorded, const std::vector<std::uint64_t>& outside,
                                  std::uint64_t first_number,
                                  const std::function<std::optional<Existing>(std::uint64_t)>& existing);

}  // namespace remint
