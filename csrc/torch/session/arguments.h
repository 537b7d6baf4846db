// What an operator call touches: the storages of its arguments, and how it writes them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <vector>

#include "torch/dispatch/operators.h"
#include "torch/session/state.h"

namespace remint {

class Arguments {
 public:
  // A storage that the op touches.
  struct Touched {
    c10::StorageImpl* storage = nullptr;
    OwnedStorage* owned = nullptr;  // null: not of this session
    ValueId value = kNone;
    std::uint32_t input = kNone;   // its place among the inputs of the recipe
    std::uint32_t output = kNone;  // its place among the outputs of the recipe
    Operator::Write write = Operator::Write::kNo;
    bool whole = true;  // every tensor that is written is all of the storage
    bool read = false;
  };
  // A tensor among the arguments.
  struct Use {
    std::uint32_t argument = 0;
    std::int32_t element = -1;
    const at::Tensor* tensor = nullptr;
    std::uint32_t touched = kNone;  // kNone: no bytes
  };

  explicit Arguments(SessionState& state) : state_(state) {}

  // Finds the values of all arguments, which start at stack[first], and decides how each is written.
  // Repeatable.
  void look(const Operator& op, const torch::jit::Stack& stack, std::size_t first);
  // The engine has locked the arguments: references that kept them until then go.
  void locked() { drop_references(); }

  // Whether the op can be run again from a recipe.
  bool recordable() const { return recordable_; }
  void set_unrecordable() { recordable_ = false; }
  const std::vector<Use>& uses() const { return uses_; }
  std::vector<Touched>& touched() { return touched_; }

 private:
  void look_at(const Operator& op, std::uint32_t argument, std::int32_t element, const at::Tensor& tensor,
               Operator::Write write);
  void identify(Touched& touched, bool reads);
  void decide_writes(const Operator& op);
  void drop_references();

  SessionState& state_;
  bool recordable_ = true;
  std::vector<Use> uses_;
  std::vector<Touched> touched_;
  std::vector<ValueId> referenced_;  // constants that only this call holds until the engine has locked them
};

}  // namespace remint
