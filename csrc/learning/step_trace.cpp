#include "learning/step_trace.h"

#include <unordered_map>

namespace remint {
namespace {

void end_event(RecordedColumns& columns, EventKind kind, Nanoseconds nanoseconds, std::uint64_t signature,
               std::int32_t name, std::int32_t source) {
  columns.kinds.push_back(static_cast<std::uint8_t>(kind));
  columns.nanoseconds.push_back(nanoseconds);
  columns.signatures.push_back(signature);
  columns.names.push_back(name);
  columns.sources.push_back(source);
  columns.arg_offsets.push_back(static_cast<std::int64_t>(columns.args.size()));
  columns.out_offsets.push_back(static_cast<std::int64_t>(columns.nbytes.size()));
  columns.request_offsets.push_back(static_cast<std::int64_t>(columns.request_bytes.size()));
}

}  // namespace

TraceColumns StepTrace::view() const {
  TraceColumns view = columns.view();
  view.held = held.data();
  view.num_held = held.size();
  return view;
}

bool StepTrace::same_as(const StepTrace& other) const {
  const RecordedColumns& a = columns;
  const RecordedColumns& b = other.columns;
  return a.kinds == b.kinds && a.signatures == b.signatures && a.arg_offsets == b.arg_offsets &&
         a.args == b.args && a.effects == b.effects && a.out_offsets == b.out_offsets &&
         a.nbytes == b.nbytes && a.aliases == b.aliases && a.request_offsets == b.request_offsets &&
         a.request_bytes == b.request_bytes && a.request_outputs == b.request_outputs;
}

std::size_t StepTrace::num_bytes() const {
  const std::size_t events = columns.kinds.size();
  return events * (1 + 8 + 8 + 4 + 4 + 3 * 8) + columns.args.size() * 5 + columns.nbytes.size() * 12 +
         columns.request_bytes.size() * 12 + held.size() * 4 + constants.size() * 9;
}

std::optional<StepTrace> cut_step(const RecordedColumns& recorded, const std::vector<std::uint64_t>& outside,
                                  std::uint64_t first_number,
                                  const std::function<std::optional<Existing>(std::uint64_t)>& existing) {
  StepTrace step;
  const std::size_t num_events = recorded.kinds.size();
  const std::size_t num_recorded = recorded.nbytes.size();
  auto is_outside = [&](std::size_t event) {
    return static_cast<EventKind>(recorded.kinds[event]) == EventKind::kConstant &&
           recorded.aliases[recorded.out_offsets[event]] == kElsewhere;
  };
  // Per tensor that was recorded: its number among those that the step made, or which memory outside it is.
  std::vector<std::int32_t> made(num_recorded, -1);
  std::vector<std::uint64_t> outside_of(num_recorded);
  std::int32_t num_made = 0;
  std::size_t num_outside = 0;
  for (std::size_t event = 0; event < num_events; ++event) {
    const bool elsewhere = is_outside(event);
    for (std::int64_t t = recorded.out_offsets[event]; t < recorded.out_offsets[event + 1]; ++t) {
      if (elsewhere) {
        outside_of[t] = outside[num_outside++];
      } else {
        made[t] = num_made++;
      }
    }
  }

  std::vector<Existing> constants;
  std::unordered_map<std::uint64_t, std::int32_t> constant_of;   // by number
  std::unordered_map<std::uint64_t, std::int32_t> same_outside;  // by first number
  for (std::size_t event = 0; event < num_events; ++event) {
    const bool releases = static_cast<EventKind>(recorded.kinds[event]) == EventKind::kRelease;
    for (std::int64_t a = recorded.arg_offsets[event]; a < recorded.arg_offsets[event + 1]; ++a) {
      const auto number = static_cast<std::uint64_t>(recorded.args[a]);
      const bool before = number < first_number;
      if (!before && made[number - first_number] >= 0) continue;
      auto [found, is_new] = constant_of.try_emplace(number, static_cast<std::int32_t>(constants.size()));
      if (is_new) {
        const std::optional<Existing> there = before
                                                  ? existing(number)
                                                  : Existing{recorded.nbytes[number - first_number],
                                                             kElsewhere, outside_of[number - first_number]};
        if (!there) return std::nullopt;
        if (there->where == kElsewhere)
          found->second = same_outside.try_emplace(there->first_number, found->second).first->second;
        if (found->second == static_cast<std::int32_t>(constants.size())) {
          constants.push_back(*there);
          step.constants.push_back(number);
          step.read.push_back(0);
        }
      }
      if (!releases) step.read[found->second] = 1;
    }
  }
  RecordedColumns& columns = step.columns;
  for (const Existing& there : constants) {
    columns.nbytes.push_back(there.nbytes);
    columns.aliases.push_back(there.where);
    end_event(columns, EventKind::kConstant, 0, 0, -1, -1);
  }
  const auto num_constants = static_cast<std::int32_t>(constants.size());
  auto tensor_of = [&](std::int32_t number) {
    const auto wide = static_cast<std::uint64_t>(number);
    const std::int32_t index = wide >= first_number ? made[wide - first_number] : -1;
    return index >= 0 ? num_constants + index : constant_of[wide];
  };
  std::vector<char> released(static_cast<std::size_t>(num_constants + num_made), 0);
  for (std::size_t event = 0; event < num_events; ++event) {
    const auto kind = static_cast<EventKind>(recorded.kinds[event]);
    const std::int64_t first_arg = recorded.arg_offsets[event];
    if (kind == EventKind::kMark || is_outside(event)) continue;
    if (kind == EventKind::kRelease) {
      const std::int32_t tensor = tensor_of(recorded.args[first_arg]);
      released[tensor] = 1;
      // When the session finds that weights are no longer used depends on what went on before the step. It
      // frees no bytes of the budget.
      if (tensor < num_constants && constants[tensor].where == kElsewhere) continue;
    }
    for (std::int64_t a = first_arg; a < recorded.arg_offsets[event + 1]; ++a) {
      columns.args.push_back(tensor_of(recorded.args[a]));
      columns.effects.push_back(recorded.effects[a]);
    }
    for (std::int64_t t = recorded.out_offsets[event]; t < recorded.out_offsets[event + 1]; ++t) {
      columns.nbytes.push_back(recorded.nbytes[t]);
      columns.aliases.push_back(recorded.aliases[t]);
    }
    for (std::int64_t r = recorded.request_offsets[event]; r < recorded.request_offsets[event + 1]; ++r) {
      columns.request_bytes.push_back(recorded.request_bytes[r]);
      columns.request_outputs.push_back(recorded.request_outputs[r]);
    }
    end_event(columns, kind, recorded.nanoseconds[event], recorded.signatures[event], recorded.names[event],
              recorded.sources[event]);
  }
  for (std::int32_t tensor = 0; tensor < static_cast<std::int32_t>(columns.nbytes.size()); ++tensor) {
    if (!released[tensor]) step.held.push_back(tensor);
  }
  return step;
}

}  // namespace remint
