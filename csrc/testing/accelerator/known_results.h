// What is known of the results of an op before it has run: their shapes, and which of them are arguments. It
// is learned when an op runs for the first time with arguments of these sizes and types; from then on the
// host need not wait for it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace remint::testing {

struct Result {
  enum class Kind : std::uint8_t { kUndefined, kArgument, kView, kFresh };
  Kind kind = Kind::kUndefined;
  std::size_t argument = 0;  // among all tensors of the arguments
  at::Tensor look;           // without bytes: sizes, strides and type
};

struct KnownResults {
  struct Value {
    bool is_list = false;
    std::vector<Result> tensors;
  };
  bool must_wait = false;  // some results cannot be made ahead
  std::vector<Value> values;

  static std::string key_of(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
  // Null if this call is new.
  static const KnownResults* find(const std::string& key);
  static void add(const std::string& key, KnownResults known);
};

// A tensor that looks like this one, without bytes.
at::Tensor look_of(const at::Tensor& tensor);

}  // namespace remint::testing
