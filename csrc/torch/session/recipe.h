// A recipe: what is kept to run an op again. The arguments as they were, but every tensor replaced by which
// input of the op it is and how it looked: tensors themselves would keep alive what the program has let go
// of.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <optional>
#include <vector>

#include "base/types.h"
#include "torch/dispatch/operators.h"

namespace remint {

// How a tensor looks at a storage.
struct TensorLook {
  c10::SmallVector<std::int64_t, 5> sizes;
  c10::SmallVector<std::int64_t, 5> strides;
  std::int64_t offset = 0;
  caffe2::TypeMeta dtype;
  bool conjugate = false;
  bool negative = false;
  bool requires_grad = false;

  void assign(const at::Tensor& tensor);
  // A tensor that looks like this at `nbytes` of memory, which it does not own.
  at::Tensor tensor_at(void* address, std::size_t nbytes) const;
  std::size_t nbytes() const;  // from the start of the storage to the last element
};

// Whether `tensor` is what can be taken apart and put together again like that: dense, strided, on the CPU.
bool is_plain(const at::Tensor& tensor);

// Whether `tensor` is all of its storage, each element once.
bool is_whole(const at::Tensor& tensor, const c10::StorageImpl& storage);
// Where a seeded op takes its random numbers from.
at::Generator generator_of(const Operator& op, const torch::jit::Stack& stack, std::size_t first);

struct RandomState {
  at::mt19937 engine;
  std::optional<float> next_float;
  std::optional<double> next_double;

  static std::unique_ptr<RandomState> of(at::Generator& generator);
  void restore(at::CPUGeneratorImpl& generator) const;
};

struct Recipe {
  // One tensor among the arguments.
  struct Slot {
    enum class Kind : std::uint8_t {
      kInput,    // input `index` of the op
      kOutput,   // overwritten whole: output `index` of the op
      kScratch,  // written for a side effect that already happened
      kEmpty,    // has no bytes
    };
    Kind kind = Kind::kEmpty;
    std::uint32_t index = 0;
    std::uint32_t argument = 0;
    std::int32_t element = -1;  // of a list
    TensorLook look;
  };
  // Where an output of the op comes from.
  struct Result {
    static constexpr std::uint32_t kWritten = ~std::uint32_t{0};
    std::uint32_t returned = kWritten;  // the tensor among all that are returned; kWritten: an argument
    Bytes nbytes = 0;
  };

  const Operator* op = nullptr;
  std::uint32_t source = kNone;  // the line of the program it came from, if it is known
  c10::DispatchKeySet keys;
  c10::impl::LocalDispatchKeySet local_keys{c10::impl::PODLocalDispatchKeySet{}};
  bool grad_mode = false;
  torch::jit::Stack arguments;  // tensors left out, but for wrapped numbers
  std::vector<Slot> slots;
  std::vector<Result> results;
  std::unique_ptr<RandomState> random;

  // Empty, with room for what comes next: recipes come and go with every op.
  void clear() {
    arguments.clear();
    slots.clear();
    results.clear();
    random.reset();
  }
};

// All tensors in `value` (a tensor, a list of them, an optional one), undefined ones included, in order.
template <typename Visit>
void for_tensors(const c10::IValue& value, Visit&& visit);

// The stack to run `recipe` with; `tensors` has one tensor per slot.
torch::jit::Stack make_stack(const Recipe& recipe, const std::vector<at::Tensor>& tensors);

template <typename Visit>
void for_tensors(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor(), -1);
  } else if (value.isTensorList()) {
    std::int32_t i = 0;
    for (const c10::IValue& element : value.toListRef()) visit(element.toTensor(), i++);
  } else if (value.isList()) {
    std::int32_t i = 0;
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) visit(element.toTensor(), i);
      ++i;
    }
  }
}

}  // namespace remint
