#include "torch/dispatch/operators.h"

#include <ATen/core/enum_tag.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace remint {
namespace {

using Names = std::unordered_set<std::string>;

// In-place ops that write every element and read none.
const Names& fillers() {
  static const auto* names =
      new Names{"aten::zero_",      "aten::fill_",        "aten::copy_",      "aten::normal_",
                "aten::uniform_",   "aten::random_",      "aten::bernoulli_", "aten::cauchy_",
                "aten::geometric_", "aten::exponential_", "aten::log_normal_"};
  return *names;
}

// Ops that make memory without writing it.
const Names& uninitialized() {
  static const auto* names = new Names{"aten::empty",
                                       "aten::empty_like",
                                       "aten::new_empty",
                                       "aten::empty_strided",
                                       "aten::new_empty_strided",
                                       "aten::empty_permuted",
                                       "aten::_empty_affine_quantized",
                                       "aten::resize",
                                       "aten::empty_quantized"};
  return *names;
}

// Ops that share memory though their schema does not say so.
const Names& silent_views() {
  static const auto* names = new Names{"aten::_unsafe_view", "aten::_reshape_alias", "aten::lift_fresh"};
  return *names;
}

// Ops after which the storage of an argument is no longer what it was, or is known elsewhere.
const Names& hand_outs() {
  static const auto* names =
      new Names{"aten::set_",        "aten::resize_",         "aten::resize_as_",
                "aten::set_data",    "aten::_resize_output_", "aten::resize_as_sparse_",
                "aten::_lazy_clone", "aten::_pin_memory"};
  return *names;
}

// Ops that return integers of which PyTorch keeps the address over other ops: a packed sequence's batch
// sizes.
const Names& read_around() {
  static const auto* names = new Names{"aten::_pack_padded_sequence"};
  return *names;
}

// Ops by which autograd takes a gradient that it was given, or copies it.
const Names& accumulating() {
  static const auto* names = new Names{"aten::detach", "aten::clone", "aten::copy_", "aten::add"};
  return *names;
}

bool is_namespace(const std::string& name, const char* space) {
  return name.compare(0, std::char_traits<char>::length(space), space) == 0;
}

// All operators that were asked for, by the address of their names.
struct Known {
  std::mutex mutex;
  std::unordered_map<const void*, const Operator*> operators;
  std::atomic<std::uint64_t> num_gone{0};
};

Known& known() {
  static auto* one = new Known();
  return *one;
}

const Operator& look_up(const c10::OperatorHandle& op) {
  std::lock_guard<std::mutex> lock(known().mutex);
  const Operator*& facts = known().operators[&op.operator_name()];
  if (facts == nullptr) facts = new Operator(op);
  return *facts;
}

}  // namespace

Operator::Operator(const c10::OperatorHandle& op) : handle(op), name(op.schema().name()) {
  const c10::FunctionSchema& schema = op.schema();
  const bool overwrites = fillers().count(name) > 0;
  bool tensors = false;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    Write write = Write::kNo;
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      const bool whole = argument.is_out() || (overwrites && i == 0);
      write = whole ? Write::kOverwrites : Write::kInPlace;
      writes_any = true;
    }
    writes.push_back(write);
    const auto type = argument.type()->str();
    if (type.find("Tensor") != std::string::npos) tensors = true;
    if (type.find("Generator") != std::string::npos) generator = static_cast<int>(i);
  }
  seeded = op.hasTag(at::Tag::nondeterministic_seeded);
  may_accumulate = accumulating().count(name) > 0;
  uninitialized = remint::uninitialized().count(name) > 0;
  hands_out = hand_outs().count(name) > 0 || is_namespace(name, "c10d") || is_namespace(name, "_c10d");
  read_around = remint::read_around().count(name) > 0;
  const bool has_statistics = op.schema().overload_name() != "no_stats";
  if (name == "aten::native_batch_norm" || (name == "aten::_native_batch_norm_legit" && has_statistics)) {
    statistics = 3;
    training = 5;
  } else if (name == "aten::_batch_norm_with_update") {
    statistics = 3;
  } else if (name == "aten::batch_norm_update_stats") {
    statistics = 1;
  }
  for (const c10::Argument& result : schema.returns()) {
    if (result.type()->str().find("Tensor") != std::string::npos) returns_tensors = true;
  }
  const bool aliases_only = [&] {
    if (schema.returns().empty()) return false;
    for (const c10::Argument& result : schema.returns()) {
      if (result.alias_info() == nullptr || result.alias_info()->isWrite()) return false;
    }
    return true;
  }();
  const bool moves_metadata = op.hasTag(at::Tag::inplace_view);
  view = tensors && !hands_out &&
         ((aliases_only && !writes_any) || moves_metadata || silent_views().count(name) > 0);
}

const Operator& operator_facts(const c10::OperatorHandle& op) {
  // Asked for with every op: what this thread found last is looked at first.
  struct Found {
    const void* key = nullptr;
    const Operator* facts = nullptr;
    std::uint64_t num_gone = 0;
  };
  static thread_local std::array<Found, 64> recent;
  const void* key = &op.operator_name();
  Found& last = recent[(reinterpret_cast<std::uintptr_t>(key) >> 6) % recent.size()];
  const std::uint64_t num_gone = known().num_gone.load(std::memory_order_relaxed);
  if (last.key != key || last.num_gone != num_gone) last = {key, &look_up(op), num_gone};
  return *last.facts;
}

void operator_gone(const c10::OperatorHandle& op) {
  std::lock_guard<std::mutex> lock(known().mutex);
  auto found = known().operators.find(&op.operator_name());
  if (found == known().operators.end()) return;
  found->second->gone = true;
  known().operators.erase(found);
  ++known().num_gone;
}

}  // namespace remint
