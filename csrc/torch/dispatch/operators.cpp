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
const Names& pinning() {
  static const auto* names =
      new Names{"aten::set_",        "aten::resize_",         "aten::resize_as_",
                "aten::set_data",    "aten::_resize_output_", "aten::resize_as_sparse_",
                "aten::_lazy_clone", "aten::_pin_memory"};
  return *names;
}

using ByAddress = Operator::ByAddress;

// Composite ops that read memory by address, between the ops they are made of. By name and overload.
ByAddress access_of(const c10::FunctionSchema& schema) {
  static const auto* table = new std::unordered_map<std::string, ByAddress>{
      {"aten::ctc_loss.Tensor", ByAddress::kIntegers},
      {"aten::tensor_split.tensor_indices_or_sections", ByAddress::kIntegers},
      {"aten::lstm.data", ByAddress::kIntegers},
      {"aten::gru.data", ByAddress::kIntegers},
      {"aten::rnn_tanh.data", ByAddress::kIntegers},
      {"aten::rnn_relu.data", ByAddress::kIntegers},
      {"aten::_pad_packed_sequence.", ByAddress::kIntegers},
      {"aten::quantized_lstm.data", ByAddress::kIntegers},
      {"aten::quantized_gru.data", ByAddress::kIntegers},
      {"aten::_sobol_engine_draw.", ByAddress::kAll},
      {"aten::_sobol_engine_ff_.", ByAddress::kAll},
      {"aten::_sobol_engine_initialize_state_.", ByAddress::kAll},
      {"aten::_sobol_engine_scramble_.", ByAddress::kAll},
      {"aten::choose_qparams_optimized.", ByAddress::kAll},
      {"aten::_rowwise_prune.", ByAddress::kAll},
      {"aten::fbgemm_linear_fp16_weight.", ByAddress::kAll},
      {"aten::fbgemm_linear_fp16_weight_fp32_activation.", ByAddress::kAll},
      {"aten::fbgemm_linear_int8_weight.", ByAddress::kAll},
      {"aten::fbgemm_linear_int8_weight_fp32_activation.", ByAddress::kAll},
      {"aten::fbgemm_linear_quantize_weight.", ByAddress::kAll},
      {"aten::fbgemm_pack_gemm_matrix_fp16.", ByAddress::kAll},
      {"aten::fbgemm_pack_quantized_matrix.", ByAddress::kAll},
      {"aten::fbgemm_pack_quantized_matrix.KN", ByAddress::kAll},
      {"aten::_saturate_weight_to_fp16.", ByAddress::kWrites},
      {"aten::sparse_compressed_tensor.comp_plain_value_size", ByAddress::kKeeps},
      {"aten::sparse_compressed_tensor.comp_plain_value", ByAddress::kKeeps},
      {"aten::_sparse_compressed_tensor_unsafe.", ByAddress::kKeeps},
      {"aten::_sparse_csr_tensor_unsafe.", ByAddress::kKeeps},
      {"aten::_sparse_csc_tensor_unsafe.", ByAddress::kKeeps},
      {"aten::_sparse_bsr_tensor_unsafe.", ByAddress::kKeeps},
      {"aten::_sparse_bsc_tensor_unsafe.", ByAddress::kKeeps}};
  auto found = table->find(schema.name() + "." + schema.overload_name());
  return found == table->end() ? ByAddress::kNothing : found->second;
}

// Whether it returns an object, which may keep its arguments: packed weights.
bool returns_object(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.type()->kind() == c10::TypeKind::ClassType) return true;
  }
  return false;
}

// Ops by which autograd takes a gradient that it was given, or copies it.
const Names& accumulating() {
  static const auto* names = new Names{"aten::detach", "aten::clone", "aten::copy_", "aten::add"};
  return *names;
}

bool starts_with(const std::string& text, const char* start) {
  return text.rfind(start, 0) == 0;
}

// Ops that talk to other ranks: those of PyTorch's namespaces for that, and any op that is given a process
// group.
bool is_collective(const c10::FunctionSchema& schema) {
  for (const char* space :
       {"c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "_dtensor::", "symm_mem::"}) {
    if (starts_with(schema.name(), space)) return true;
  }
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.name() == "group_name" ||
        argument.type()->str().find("c10d.ProcessGroup") != std::string::npos) {
      return true;
    }
  }
  return false;
}

bool has_tensors(const c10::Argument& argument) {
  return argument.type()->str().find("Tensor") != std::string::npos;
}

// The schemas of in-place collectives do not say what they write. So every tensor counts as written, but for
// what is called an input, and what is only sent.
bool collective_writes(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  if (!has_tensors(argument)) return false;
  const std::string& name = schema.name();
  if (name == "_c10d_functional::irecv" || name == "_c10d_functional::batch_p2p_ops") return true;
  // They copy their input into the buffer that the ranks share.
  if (starts_with(name, "symm_mem::one_shot_all_reduce_copy")) return argument.name() == "symm_buffer";
  static const auto* read_only =
      new Names{"c10d::send", "c10d::barrier", "c10d::monitored_barrier_", "c10d::check_for_nan"};
  if (!starts_with(name, "c10d::") || read_only->count(name) > 0) return false;
  return argument.name().find("input") == std::string::npos;
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
  collective = is_collective(schema);
  bool tensors = false;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    Write write = Write::kNo;
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      const bool whole = argument.is_out() || (overwrites && i == 0);
      write = whole ? Write::kOverwrites : Write::kInPlace;
    } else if (collective && collective_writes(schema, argument)) {
      write = Write::kInPlace;
    }
    // Says who uses the tensor, and writes nothing.
    if (name == "aten::record_stream") write = Write::kNo;
    writes_any = writes_any || write != Write::kNo;
    writes.push_back(write);
    tensors = tensors || has_tensors(argument);
    if (argument.type()->str().find("Generator") != std::string::npos) generator = static_cast<int>(i);
    if (argument.name() == "device") device = static_cast<int>(i);
  }
  seeded = op.hasTag(at::Tag::nondeterministic_seeded);
  may_accumulate = accumulating().count(name) > 0;
  uninitialized = remint::uninitialized().count(name) > 0;
  pins_arguments = pinning().count(name) > 0 || collective || returns_object(schema);
  // Kernels of others may be Python code, which an error of ours cannot pass through, or count what they do.
  may_retry = starts_with(name, "aten::");
  by_address = access_of(schema);
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
    returns_tensors = returns_tensors || has_tensors(result);
  }
  const bool aliases_only = [&] {
    if (schema.returns().empty()) return false;
    for (const c10::Argument& result : schema.returns()) {
      if (result.alias_info() == nullptr || result.alias_info()->isWrite()) return false;
    }
    return true;
  }();
  const bool moves_metadata = op.hasTag(at::Tag::inplace_view);
  view = tensors && !pins_arguments &&
         ((aliases_only && !writes_any) || moves_metadata || silent_views().count(name) > 0);
}

const Operator& operator_facts(const c10::OperatorHandle& op) {
  // Asked for with every op: what this thread found last is looked at first.
  struct Found {
    const void* key = nullptr;
    const Operator* facts = nullptr;
    std::uint64_t num_gone = 0;
  };
  static thread_local std::array<Found, 256> recent;
  const void* key = &op.operator_name();
  // Addresses of operators are alike in their low bits.
  const std::uint64_t hash = reinterpret_cast<std::uintptr_t>(key) * 0x9E3779B97F4A7C15u;
  Found& last = recent[hash >> 56];
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
