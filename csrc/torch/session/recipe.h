// A recipe: what is kept to run an op again. The arguments as they were, but every tensor replaced by which
// input of the op it is and how it looked: tensors themselves would keep alive what the program has dropped.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <vector>

#include "base/containers.h"
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

  bool operator==(const TensorLook& other) const;

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

// What the recipes of ops that look alike share.
struct RecipeForm {
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

    bool operator==(const Slot& other) const;
  };
  // Where an output of the op comes from.
  struct Result {
    static constexpr std::uint32_t kWritten = ~std::uint32_t{0};
    std::uint32_t returned = kWritten;  // the tensor among all that are returned; kWritten: an argument
    Bytes nbytes = 0;

    bool operator==(const Result& other) const {
      return returned == other.returned && nbytes == other.nbytes;
    }
  };

  const Operator* op = nullptr;
  c10::DispatchKeySet keys;
  c10::impl::LocalDispatchKeySet local_keys{c10::impl::PODLocalDispatchKeySet{}};
  bool grad_mode = false;
  torch::jit::Stack arguments;  // tensors left out, but for wrapped numbers
  std::vector<Slot> slots;
  std::vector<Result> results;

  // Whether both run the same kernel on the same arguments, to the bit. False if that is not sure: so a form
  // with a wrapped number or a generator is not even the same as itself.
  bool surely_same(const RecipeForm& other) const;
  // The vectors keep their memory.
  void clear() {
    arguments.clear();
    slots.clear();
    results.clear();
  }
};

struct Recipe {
  const Operator* op = nullptr;
  std::uint32_t source = kNone;            // the line of the program it came from, if it is known
  std::shared_ptr<const RecipeForm> form;  // null while the op runs for the first time
  std::unique_ptr<RandomState> random;
};

// The stack to run a recipe with; `tensors` has one tensor per slot.
torch::jit::Stack make_stack(const RecipeForm& form, const std::vector<at::Tensor>& tensors);

// All recipes of a session, by the ids that the engine knows them by.
class RecipeTable {
 public:
  // An empty recipe; `id` gets its id.
  Recipe& add(std::uint64_t& id) {
    if (free_.empty()) free_.push_back(recipes_.append());
    id = free_.back();
    free_.pop_back();
    return recipes_[static_cast<std::uint32_t>(id)];
  }
  void remove(std::uint64_t id) {
    Recipe& recipe = recipes_[static_cast<std::uint32_t>(id)];
    recipe.form.reset();
    recipe.random.reset();
    free_.push_back(static_cast<std::uint32_t>(id));
  }
  Recipe& operator[](std::uint64_t id) { return recipes_[static_cast<std::uint32_t>(id)]; }
  const Recipe& operator[](std::uint64_t id) const { return recipes_[static_cast<std::uint32_t>(id)]; }
  void clear() {
    recipes_ = {};
    free_.clear();
    latest_ = {};
  }

  // A form like `draft`: the latest one of that signature, or a copy. Steps repeat few forms very often, and
  // the recipes of a deep network are many.
  std::shared_ptr<const RecipeForm> share(const RecipeForm& draft, std::uint64_t signature);

 private:
  static constexpr std::size_t kLatest = 1024;

  Table<Recipe> recipes_;
  std::vector<std::uint32_t> free_;
  std::vector<std::shared_ptr<const RecipeForm>> latest_;  // by signature; later ones take the places
};

}  // namespace remint
