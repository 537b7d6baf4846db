#include "torch/observe/recorder.h"

#include <algorithm>

namespace remint {

void Recorder::end_event(EventKind kind) {
  columns_.kinds.push_back(static_cast<std::uint8_t>(kind));
  columns_.arg_offsets.push_back(static_cast<std::int64_t>(columns_.args.size()));
  columns_.out_offsets.push_back(static_cast<std::int64_t>(columns_.nbytes.size()));
  columns_.request_offsets.push_back(static_cast<std::int64_t>(columns_.request_bytes.size()));
  if (columns_.nanoseconds.size() == columns_.kinds.size()) return;
  note_op(0, 0, -1, -1);  // it was none
}

void Recorder::note_op(Nanoseconds cost, std::uint64_t signature, std::int32_t name, std::int32_t source) {
  columns_.nanoseconds.push_back(cost);
  columns_.signatures.push_back(signature);
  columns_.names.push_back(name);
  columns_.sources.push_back(source);
}

void Recorder::mark(const char* name) {
  note_op(0, 0, static_cast<std::int32_t>(names_.size()), -1);
  names_.push_back(name);
  end_event(EventKind::kMark);
}

void Recorder::constant(Bytes nbytes, std::int32_t where) {
  columns_.nbytes.push_back(nbytes);
  columns_.aliases.push_back(where);
  end_event(EventKind::kConstant);
}

void Recorder::outside(Bytes nbytes, std::uint64_t first_number) {
  outside_.push_back(first_number);
  constant(nbytes, kElsewhere);
}

void Recorder::about(EventKind kind, std::uint64_t tensor) {
  columns_.args.push_back(static_cast<std::int32_t>(tensor));
  columns_.effects.push_back(kReads);
  end_event(kind);
}

void Recorder::gave_back(Bytes offset) {
  // The last that was allocated there.
  std::int64_t allocation = -1;
  std::int64_t found = -1;
  for (const Request& request : requests_) {
    if (request.nbytes < 0) continue;
    ++allocation;
    if (request.offset == offset) found = allocation;
  }
  if (found >= 0) requests_.push_back({0, -(found + 1), -1});
}

void Recorder::ran(const ObservedOp& op) {
  bool writes = op.op->writes_any;
  for (const ObservedOp::Argument& argument : op.arguments) {
    writes = writes || argument.effect != kReads;
    columns_.args.push_back(static_cast<std::int32_t>(argument.number));
    columns_.effects.push_back(argument.effect);
  }
  for (std::size_t k = 0; k < op.results.size(); ++k) {
    const ObservedOp::Result& result = op.results[k];
    columns_.nbytes.push_back(result.nbytes);
    columns_.aliases.push_back(result.alias);
    if (result.offset < 0) continue;
    auto asked_for = std::find_if(requests_.rbegin(), requests_.rend(), [&](const Request& request) {
      return request.nbytes >= 0 && request.offset == result.offset;
    });
    if (asked_for != requests_.rend()) asked_for->output = static_cast<std::int32_t>(k);
  }
  for (const Request& request : requests_) {
    columns_.request_bytes.push_back(request.nbytes);
    columns_.request_outputs.push_back(request.output);
  }
  requests_.clear();
  auto [name, is_new] = name_of_.try_emplace(op.op, static_cast<std::int32_t>(names_.size()));
  if (is_new) names_.push_back(op.op->name);
  note_op(op.cost, op.signature, name->second, static_cast<std::int32_t>(op.source));
  end_event(writes ? EventKind::kMutate : EventKind::kCall);
}

}  // namespace remint
