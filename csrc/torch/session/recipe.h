// A recipe: what is kept to run an op again. The arguments as they were, but every tensor replaced by which
// input of the op it is and how it looked: tensors themselves would keep alive what the program has dropped.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <vector>

#include "base/types.h"
#include "torch/backends/backend.h"
#include "torch/dispatch/operators.h"

namespace remint {

// How a tensor looks at a storage.
struct TensorLook {
  c10::SmallVector<std::int64_t, 10> extents;  // sizes, then strides
  std::int64_t offset = 0;
  caffe2::TypeMeta dtype;
  bool conjugate = false;
  bool negative = false;
  bool requires_grad = false;

  at::IntArrayRef sizes() const { return {extents.data(), extents.size() / 2}; }
  at::IntArrayRef strides() const { return {extents.data() + extents.size() / 2, extents.size() / 2}; }

  void assign(const at::Tensor& tensor);
  // A tensor that looks like this at `nbytes` of memory, which it does not own.
  at::Tensor tensor_at(Backend& backend, void* address, std::size_t nbytes) const;
  std::size_t nbytes() const;  // from the start of the storage to the last element
};

// Whether `tensor` is all of its storage, each element once.
bool is_whole(const at::Tensor& tensor, const c10::StorageImpl& storage);
// Where a seeded op takes its random numbers from.
at::Generator generator_of(const Backend& backend, const Operator& op, const torch::jit::Stack& stack,
                           std::size_t first);

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

  // The vectors keep their memory: recipes come and go with every op.
  void clear() {
    arguments.clear();
    slots.clear();
    results.clear();
    random.reset();
  }
};

// The stack to run `recipe` with; `tensors` has one tensor per slot.
torch::jit::Stack make_stack(const Recipe& recipe, const std::vector<at::Tensor>& tensors);

// All recipes of a session, by the ids that the engine knows them by.
class RecipeTable {
 public:
  // An empty recipe; `id` gets its id.
  Recipe& add(std::uint64_t& id) {
    if (free_.empty()) {
      free_.push_back(recipes_.size());
      recipes_.emplace_back();
    }
    id = free_.back();
    free_.pop_back();
    std::unique_ptr<Recipe>& slot = recipes_[id];
    if (slot == nullptr) slot = std::make_unique<Recipe>();
    return *slot;
  }
  void remove(std::uint64_t id) {
    // Recipes that are used again save allocations; those of a peak are given back.
    constexpr std::size_t kSpare = 64;
    if (free_.size() < kSpare) {
      recipes_[id]->clear();
    } else {
      recipes_[id].reset();
    }
    free_.push_back(id);
  }
  Recipe& operator[](std::uint64_t id) { return *recipes_[id]; }
  const Recipe& operator[](std::uint64_t id) const { return *recipes_[id]; }
  void clear() {
    recipes_.clear();
    free_.clear();
  }

 private:
  std::vector<std::unique_ptr<Recipe>> recipes_;
  std::vector<std::uint64_t> free_;
};

}  // namespace remint
