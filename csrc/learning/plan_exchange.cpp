#include "learning/plan_exchange.h"

#include <algorithm>
#include <cstring>

namespace remint {
namespace {

constexpr char kQuestion[] = "remint step 1\n";
constexpr char kAnswer[] = "remint plan 1\n";

template <typename T>
void write(std::string& text, const std::vector<T>& column) {
  text.append(reinterpret_cast<const char*>(column.data()), column.size() * sizeof(T));
}

}  // namespace

std::string write_question(const PlanQuestion& question, const StepTrace& step,
                           const std::vector<Bytes>& sizes, const std::vector<std::int32_t>& held) {
  const RecordedColumns& columns = step.columns;
  std::string text = kQuestion;
  const std::vector<std::int64_t> head{question.limits.budget,
                                       question.limits.alignment,
                                       static_cast<std::int64_t>(question.seconds * 1e3),
                                       static_cast<std::int64_t>(question.hash),
                                       static_cast<std::int64_t>(columns.kinds.size()),
                                       static_cast<std::int64_t>(columns.args.size()),
                                       static_cast<std::int64_t>(columns.nbytes.size()),
                                       static_cast<std::int64_t>(columns.request_bytes.size()),
                                       static_cast<std::int64_t>(held.size())};
  std::vector<std::int64_t> nbytes = columns.nbytes;
  std::copy(sizes.begin(), sizes.end(), nbytes.begin());
  write(text, head);
  write(text, columns.kinds);
  write(text, columns.nanoseconds);
  write(text, columns.arg_offsets);
  write(text, columns.args);
  write(text, columns.effects);
  write(text, columns.out_offsets);
  write(text, nbytes);
  write(text, columns.aliases);
  write(text, columns.request_offsets);
  write(text, columns.request_bytes);
  write(text, columns.request_outputs);
  write(text, held);
  return text;
}

std::optional<PlannedActions> read_answer(const std::string& answer) {
  constexpr std::size_t kHead = sizeof kAnswer - 1;
  std::int64_t counts[2];
  if (answer.size() < kHead + sizeof counts || answer.compare(0, kHead, kAnswer) != 0) return std::nullopt;
  std::memcpy(counts, answer.data() + kHead, sizeof counts);
  const std::size_t left = (answer.size() - kHead - sizeof counts) / sizeof(std::uint32_t);
  for (std::int64_t count : counts) {
    if (count < 0 || static_cast<std::size_t>(count) > left) return std::nullopt;
  }
  std::vector<std::uint32_t> numbers(static_cast<std::size_t>(counts[0] + counts[1]));
  if (answer.size() != kHead + sizeof counts + numbers.size() * sizeof(std::uint32_t)) return std::nullopt;
  std::memcpy(numbers.data(), answer.data() + kHead + sizeof counts, numbers.size() * sizeof(std::uint32_t));
  PlannedActions plan;
  plan.first.assign(numbers.begin(), numbers.begin() + counts[0]);
  for (auto action = numbers.begin() + counts[0]; action != numbers.end(); ++action)
    plan.actions.push_back({(*action & 1) != 0, *action >> 1});
  return plan;
}

}  // namespace remint
